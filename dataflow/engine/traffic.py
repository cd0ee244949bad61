"""What passes between the chains of a node, and between the node and others.

Invariant: nothing of a node that has left is taken in until it joins again. A chain hears of another node's messages,
ends and coming and going in the order in which they happened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from dataflow.engine.chain_state import ChainState
from dataflow.engine.events import (
    CreditGranted,
    Event,
    GrantCredit,
    MessageArrived,
    NodeJoined,
    NodeLeft,
    SendEnd,
    SendMessage,
    StreamEnded,
)
from dataflow.engine.flow import UnderWay
from dataflow.engine.inbox import Delivery
from dataflow.engine.inputs import Source
from dataflow.engine.moment import Moment
from dataflow.engine.news import Change, Happening
from dataflow.engine.tally import Tally
from dataflow.engine.turns import Turns
from dataflow.engine.wiring import Wiring
from dataflow.ports import Emission
from dataflow.reports import Rates


class Traffic:
    """The messages, credit and ends of one node.

    Args:
        wiring: where everything goes.
        turns: woken, when something has come for a chain.
        tally: counts bytes.
        moment: takes what is for others.

    Attributes:
        to_self: what the node has sent to itself, to come back in as events.
        joins: how many nodes have joined.
    """

    def __init__(self, wiring: Wiring, turns: Turns, tally: Tally, moment: Moment) -> None:
        self._wiring, self._turns, self._tally, self._moment = wiring, turns, tally, moment
        self._node, self._entries, self._crossings = wiring.node, wiring.entries, wiring.crossings
        self._gone: set[int] = set()
        self._deaf = False
        self._under_way = UnderWay()
        self.to_self: deque[Event] = deque()
        self.joins = 0

    @property
    def closed(self) -> bool:
        """Whether every other node has been told that nothing more comes."""
        return all(crossing.closed for crossing in self._crossings.values())

    # Out

    def emit(self, operator: str, emission: Emission, joins: int) -> None:
        """Send what an operator has emitted on every edge that leaves its output; to no node that joined later."""
        for number in self._wiring.leaving(operator, emission.port):
            crossing = self._crossings.get(number)
            if crossing is not None:
                self._send(crossing.send(emission, joins))
            else:
                self._deliver((number, None), Delivery(self._entries[number][1], emission.message))

    def end_outputs(self, state: ChainState) -> None:
        """Tell everybody downstream that nothing more comes from a chain, unless they know."""
        if state.silent:
            return
        state.silent = True
        for number in self._wiring.leaving_chain(state):
            if number in self._crossings:
                self._send(self._crossings[number].close())
            else:
                target = self._entries[number][0]
                target.open_inputs.end((number, None))
                self._turns.wake(target)

    def credit_granted(self, event: CreditGranted) -> None:
        """Send what has waited for credit."""
        stream = event.stream
        self._send(self._crossings[stream.edge].grant(stream.target, event.nbytes))

    def limit(self, rates: Rates) -> None:
        """Have no more under way than links carry in a moment: what would queue is made later, of more."""
        for peer, link in rates.links.items():
            nbytes = self._under_way.nbytes(peer, link)
            if nbytes is not None:
                for crossing in self._crossings.values():
                    self._send(crossing.limit(peer, nbytes))

    def consumed(self, delivery: Delivery) -> None:
        """Return the credit that a message held."""
        stream = delivery.stream
        if stream is None or not delivery.nbytes:
            return
        if stream.source == self._node:
            self.to_self.append(CreditGranted(stream, delivery.nbytes))
        else:
            self._moment.commands.append(GrantCredit(stream, delivery.nbytes))

    def _send(self, commands: Iterable[SendMessage | SendEnd]) -> None:
        """Pass on what is for others; what this node sends to itself comes back in as an event.

        A deaf node does not know whether anybody needs what it does for others, so it says no end of that.
        """
        for command in commands:
            target = command.stream.target
            if target == self._node:
                if isinstance(command, SendMessage):
                    self.to_self.append(MessageArrived(command.stream, command.message, command.nbytes))
                else:
                    self.to_self.append(StreamEnded(command.stream))
                continue
            if isinstance(command, SendEnd) and self._deaf and self._crossings[command.stream.edge].is_service:
                continue
            if isinstance(command, SendMessage):
                sent_nbytes = self._tally.sent_nbytes
                sent_nbytes[target] = sent_nbytes.get(target, 0) + command.nbytes
            self._moment.commands.append(command)

    # In

    def message_arrived(self, event: MessageArrived) -> None:
        """Take in a message, unless its sender has left.

        A deaf node still returns its credit: whoever waits for that would take in nothing of this node's.
        """
        stream, size = event.stream, event.nbytes
        source = stream.source
        if source in self._gone:
            if self._deaf:
                self.consumed(Delivery("", event.message, stream, size))
            return
        if source != self._node:
            received_nbytes = self._tally.received_nbytes
            received_nbytes[source] = received_nbytes.get(source, 0) + size
        state, port = self._entries[stream.edge]
        delivery = Delivery(port, event.message, stream, size)
        if state.news or state.ending:
            self._hear(state, source, delivery)
        else:
            self._deliver((stream.edge, source), delivery)

    def stream_ended(self, event: StreamEnded) -> None:
        """Take in that nothing more comes on a stream."""
        edge, node, _ = event.stream
        if self._deaf and node != self._node:
            return
        self._hear(self._entries[edge][0], node, (edge, node))

    def node_left(self, event: NodeLeft) -> None:
        """Send a node nothing more, and have the chains hear that it has left."""
        if event.node in self._gone and not self._deaf:
            return
        self._gone.add(event.node)
        for crossing in self._crossings.values():
            crossing.drop(event.node)
        for state in self._turns.chains:
            state.forget(event.node)
            if not self._deaf:
                self._hear(state, event.node, Change.THROUGH if event.ended else Change.BURIED)

    def node_joined(self, event: NodeJoined) -> None:
        """A node that is a member from the start, as another incarnation than its first, makes no difference."""
        if event.node not in self._gone or self._deaf:
            return
        self._gone.remove(event.node)
        self._under_way.forget(event.node)
        self.joins += 1
        for crossing in self._crossings.values():
            self._send(crossing.join(event.node, self.joins))
        for state in self._turns.chains:
            if state.chain.minds_joining or state.open_inputs.of(event.node):
                self._hear(state, event.node, Change.JOINED)

    def turn_deaf(self, nodes: int) -> None:
        """Take in nothing more of other nodes, as if all that they send had ended; `nodes` is how many there are."""
        self._deaf = True
        self._gone.update(node for node in range(nodes) if node != self._node)
        for state in self._turns.chains:
            state.open_inputs.close_others(self._node)
            self._turns.wake(state)

    def told(self, state: ChainState, node: int) -> None:
        """A chain's operators have been told that a node has left or joined."""
        state.telling = None
        self._deliver_all(state, state.news.told(node))

    def _hear(self, state: ChainState, node: int, what: Happening) -> None:
        """Have a chain take in what has happened of a node; whoever sends to one that is ending comes too late."""
        if not state.ending:
            self._deliver_all(state, state.news.hear(node, what))
        elif isinstance(what, Delivery):
            self.consumed(what)

    def _deliver_all(self, state: ChainState, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            assert delivery.stream is not None
            self._deliver((delivery.stream.edge, delivery.stream.source), delivery)
        self._turns.wake(state)

    def _deliver(self, source: Source, delivery: Delivery) -> None:
        state, _ = self._entries[source[0]]
        replaced = state.inbox.push(delivery)
        self._turns.wake(state)
        if state.chain.gather:
            state.saw(source, delivery)
        if replaced is not None:
            self.consumed(replaced)
