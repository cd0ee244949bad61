"""Which nodes of a simulated cluster are there, which of them hear of each other, and which links are whole.

Invariant: nothing reaches a node that is dead, nor one that was started again what was meant for the one before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from dataflow.engine import coordination as co
from dataflow.engine.events import Event, NodeJoined, NodeLeft, Started
from dataflow.engine.membership import Members, changes
from dataflow.sim.clock import VirtualClock
from dataflow.sim.faults import PATIENCE_S, Fault, LinkChanges, LinkFails, NodeFails
from dataflow.sim.network import SimNetwork


class Lives:
    """The lives of the nodes of one job.

    Args:
        clock: the clock.
        network: loses what nodes that die have under way.
        nodes: how many there are.
        latency_s: seconds until a node hears what the coordinator tells it.
        feed_at: gives a node's engine an event at a certain time.
        join_at: the same of another node's joining, with the epoch of the membership: `hear` is called just before.
        coordinate: gives the coordinator an event.
        vacant: places that no machine has at the start.

    Attributes:
        dead: nodes that do nothing.
        incarnations: how often each node had been started before, by number.
        epochs: of the newest membership of which each has told all who joined with it to its engine.
    """

    def __init__(
        self,
        clock: VirtualClock,
        network: SimNetwork,
        nodes: int,
        latency_s: float,
        feed_at: Callable[[float, int, Event], None],
        join_at: Callable[[float, int, NodeJoined, int], None],
        coordinate: Callable[[co.Event], None],
        vacant: Collection[int] = (),
    ) -> None:
        self._clock, self._network, self._latency_s = clock, network, latency_s
        self._feed_at, self._join_at, self._coordinate = feed_at, join_at, coordinate
        self.dead, self._vacant = set(vacant), set(vacant)
        self.incarnations, self.epochs = [0] * nodes, [0] * nodes
        self._failed: set[int] = set()
        """Nodes whose machines are away, on which nothing can be started."""
        self._members: list[Members | None] = [None] * nodes
        self._absent: list[set[int]] = [set() for _ in range(nodes)]
        self._heard: dict[tuple[int, int], int] = {}
        self._cuts: Counter[tuple[int, int]] = Counter()
        self._down_since_s: dict[tuple[int, int], float] = {}

    def is_there(self, node: int, incarnation: int) -> bool:
        """Whether a node is there as this incarnation."""
        return node not in self.dead and incarnation == self.incarnations[node]

    def knows(self, node: int, other: int) -> bool:
        """Whether a node takes another for the incarnation that it is; what is sent to one that is gone is lost."""
        incarnation = self.incarnations[other]
        return not incarnation or node == other or self._heard.get((node, other)) == incarnation

    def start(self, node: int) -> None:
        """Have a node begin, and hear who is not there."""
        now = self._clock.now()
        self._feed_at(now, node, Started())
        members = self._members[node]
        ended = members.ended if members else ()
        for other in sorted(self._absent[node]):
            self._feed_at(now, node, NodeLeft(other, ended=other in ended))
        self._absent[node].clear()

    def die(self, node: int) -> None:
        """Have a node do nothing more."""
        self.dead.add(node)
        self._network.drop(node)

    def kill(self, nodes: Sequence[int]) -> None:
        """Have nodes die, and the coordinator hear of it."""
        for node in sorted(set(nodes) - self.dead):
            self.die(node)
            self._clock.at(self._clock.now(), self._coordinate, co.NodeExited(node, "by SIGKILL"))

    def revive(self, node: int, incarnation: int) -> None:
        """Have a node be there again, which has forgotten everything, unless its machine is away."""
        self.incarnations[node], self._members[node] = incarnation, None
        self._heard = {pair: times for pair, times in self._heard.items() if node not in pair}
        if node in self._failed:
            return
        self.dead.discard(node)
        self._network.join(node)
        for link, cuts in self._cuts.items():
            if node in link and cuts:
                self._down_since_s[link] = self._clock.now()

    def take(self, node: int) -> None:
        """Have a machine that takes no part so far take a node's place; it does nothing yet."""
        self._vacant.discard(node)
        self._failed.discard(node)

    def has_machine(self, node: int) -> bool:
        """Whether any machine has, or had, a node's place."""
        return node not in self._vacant

    def meet(self, node: int, members: Members) -> None:
        """Have a node hear of a membership."""
        if node in self.dead:
            return
        before = self._members[node]
        at_s = self._clock.now() + (0.0 if before is None else self._latency_s)  # who begins has heard of all
        now = changes(before, members, node)
        if before is None:
            self._absent[node] = set(range(len(self.incarnations))) - {node} - members.addresses.keys()
            self._clock.at(self._clock.now(), self._coordinate, co.NodeReady(node))
            self.epochs[node] = members.epoch
        self._members[node] = members
        for other in now.left:
            self._feed_at(at_s, node, NodeLeft(other, ended=other in members.ended))
        for other, incarnation in now.joined.items():
            if other in self._absent[node]:  # before the start: else it would seem to have been there from the first on
                self._absent[node].remove(other)
                self._feed_at(at_s, node, NodeLeft(other))
            self._join_at(at_s, node, NodeJoined(other, incarnation), members.epoch)
        for link, cuts in self._cuts.items():
            if node in link and cuts and sum(link) - node in members.addresses:
                self._be_patient(link)

    def hear(self, node: int, other: int, incarnation: int, epoch: int) -> None:
        """Note that a node is told now that another has joined."""
        self._heard[node, other] = incarnation
        self.epochs[node] = max(self.epochs[node], epoch)

    def declare(self, faults: Sequence[Fault], detection_s: float) -> None:
        """Have faults of nodes and links happen; the coordinator hears of a node's failure `detection_s` later."""
        at = self._clock.at
        for fault in faults:
            match fault:
                case NodeFails(at_s=at_s, node=node, for_s=for_s):
                    at(at_s, self._fail, node)
                    reason, known_s = f"it failed at second {at_s:g}, as declared", at_s + detection_s
                    at(known_s, self._lose, co.NodeLost(node, reason))
                    if for_s is not None:
                        at(max(known_s, at_s + for_s), self._come_back, node)
                case LinkFails(at_s=at_s, node=node, other=other, for_s=for_s):
                    at(at_s, self._cut, (min(node, other), max(node, other)))
                    if for_s is not None:
                        at(at_s + for_s, self._mend, (min(node, other), max(node, other)))
                case LinkChanges(at_s=at_s, node=node, rate=rate):
                    at(at_s, self._change_rate, (node, rate))

    def _fail(self, node: int) -> None:
        if self.has_machine(node):
            self._failed.add(node)
            self.die(node)
            self._clock.at(self._clock.now() + PATIENCE_S, self._miss, (node, self.incarnations[node]))

    def _miss(self, missed: tuple[int, int]) -> None:
        """Have those that are there say so of a node that has failed: if it had ended, nobody else would."""
        (node, incarnation), why = missed, f"no connection for {PATIENCE_S:g} s"
        for other in range(len(self.incarnations)):
            if node in self.dead and other not in self.dead:
                self._coordinate(co.LinkBroken(other, node, why, incarnation))

    def _lose(self, lost: co.NodeLost) -> None:
        if lost.node in self._failed:
            self._coordinate(lost)

    def _come_back(self, node: int) -> None:
        if node in self._failed:
            self._failed.discard(node)
            self._coordinate(co.NodeBack(node))

    def _cut(self, nodes: tuple[int, int]) -> None:
        self._network.cut(*nodes)
        self._cuts[nodes] += 1
        if self._cuts[nodes] == 1:
            self._down_since_s[nodes] = self._clock.now()
            self._be_patient(nodes)

    def _mend(self, nodes: tuple[int, int]) -> None:
        self._network.mend(*nodes)
        self._cuts[nodes] -= 1

    def _be_patient(self, link: tuple[int, int]) -> None:
        since_s = self._down_since_s[link]
        self._clock.at(self._clock.now() + PATIENCE_S, self._lose_patience, (link, since_s))

    def _lose_patience(self, down: tuple[tuple[int, int], float]) -> None:
        """Have both ends say so of a link that has been down since then, if both have been there all the time."""
        link, since_s = down
        if self._cuts[link] and self._down_since_s[link] == since_s and not self.dead.intersection(link):
            for node, peer in (link, link[::-1]):
                why = f"no connection for {PATIENCE_S:g} s"
                self._coordinate(co.LinkBroken(node, peer, why, self.incarnations[peer]))

    def _change_rate(self, change: tuple[int, float]) -> None:
        self._network.change(*change)
