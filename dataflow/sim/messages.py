"""What simulated nodes send each other: made ready, carried and dealt with, each of which takes its time.

Invariant: nothing reaches an engine that was meant for the node before it, nor of a sender that is dead or started
again before the node has dealt with it.
"""

from __future__ import annotations

from typing import Any

from dataflow.engine.events import CreditGranted, Event, GrantCredit, MessageArrived, SendEnd, SendMessage, StreamEnded
from dataflow.plan.physical import StreamId
from dataflow.sim.clock import Action, VirtualClock
from dataflow.sim.costs import TaskTimes
from dataflow.sim.endings import Endings
from dataflow.sim.lives import Lives
from dataflow.sim.meter import Meter
from dataflow.sim.network import SimNetwork
from dataflow.sim.processors import Processors


class Messages:
    """The messages of one job.

    Args:
        clock: the clock.
        network: carries them; gives what has arrived to `arrived`.
        processors: of the nodes.
        times: how long nodes take for a message.
        lives: of the nodes.
        endings: told of the ends of streams.
        meters: by node; none if nobody minds.
        feed: gives an engine an event.

    Attributes:
        count: how many were sent from node to node.
    """

    def __init__(
        self,
        clock: VirtualClock,
        network: SimNetwork,
        processors: Processors,
        times: TaskTimes,
        lives: Lives,
        endings: Endings,
        meters: list[Meter],
        feed: Action,
    ) -> None:
        self._clock, self._network, self._processors, self._times = clock, network, processors, times
        self._lives, self._endings, self._meters, self._feed = lives, endings, meters, feed
        self._at_received: Action = self._receive  # a method would be bound anew each time
        self._at_packed: Action = self._hand_over
        self.count = 0

    def send(self, node: int, command: SendMessage) -> None:
        """Have a node send a message, unless it is for one that is gone."""
        stream, nbytes = command.stream, command.nbytes
        self.count += 1
        if self._meters and node != stream.target:
            self._meters[node].sent(stream.target, self._clock.now())
            self._meters[node].exchanged(self._times.message_s(node, nbytes))
        arrival = MessageArrived(stream, command.message, nbytes)
        if not self._lives.knows(node, stream.target):
            return
        if self._times.messages_cost and node != stream.target:
            self._pack(node, stream, arrival, nbytes)
        else:
            self._network.send(node, stream.target, arrival, nbytes)

    def send_end(self, node: int, command: SendEnd) -> None:
        """Have a node say that nothing more comes on a stream."""
        stream = command.stream
        if not self._lives.knows(node, stream.target):
            return
        self._endings.sent(stream)
        if self._times.messages_cost and node != stream.target:
            self._pack(node, stream, StreamEnded(stream), None)
        else:
            self._network.send(node, stream.target, StreamEnded(stream), 0)

    def _pack(self, node: int, stream: StreamId, event: Event, nbytes: int | None) -> None:
        """Have a node make a message of so many bytes, or anything else, ready to be sent."""
        lives = self._lives.incarnations[stream.source], self._lives.incarnations[stream.target]
        self._handle(node, nbytes, self._at_packed, (stream, event, nbytes or 0, lives))

    def _hand_over(self, packed: tuple[StreamId, Event, int, tuple[int, int]]) -> None:
        """Give the network what a node has packed, unless one of the two has failed since."""
        stream, event, nbytes, lives = packed
        now = self._lives.incarnations[stream.source], self._lives.incarnations[stream.target]
        if stream.source not in self._lives.dead and lives == now:
            self._network.send(stream.source, stream.target, event, nbytes)

    def _handle(self, node: int, nbytes: int | None, action: Action, argument: Any) -> None:
        """Do something once a node has dealt with a message of so many bytes; with anything else, has come to it."""
        self._processors.beside(node, 0.0 if nbytes is None else self._times.message_s(node, nbytes), action, argument)

    def grant(self, node: int, command: GrantCredit) -> None:
        """Have a node return credit, for which it takes no time."""
        if self._lives.knows(node, command.stream.source):
            self._network.signal(node, command.stream.source, CreditGranted(command.stream, command.nbytes))

    def arrived(self, source: int, target: int, event: Event) -> None:
        """Have a node deal with what the network has brought it, and then its engine."""
        nbytes = event.nbytes if type(event) is MessageArrived else None
        if self._meters and nbytes is not None and source != target:
            self._meters[source].arrived(target, nbytes, self._clock.now())
            self._meters[target].exchanged(self._times.message_s(target, nbytes))
        if type(event) is StreamEnded:
            self._endings.arrived(event.stream)
        incarnations = self._lives.incarnations
        if self._times.messages_cost and source != target:
            received = target, event, incarnations[target], source, incarnations[source]
            self._handle(target, nbytes, self._at_received, received)
        else:
            self._feed((target, event, incarnations[target]))

    def _receive(self, received: tuple[int, Event, int, int, int]) -> None:
        """Give an engine what its node has dealt with, unless the sender has been started again meanwhile."""
        target, event, incarnation, source, its_incarnation = received
        if self._lives.incarnations[source] == its_incarnation:
            self._feed((target, event, incarnation))
