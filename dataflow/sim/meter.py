"""What the nodes of a simulation measure of themselves: how fast they, and their links, have been."""

from __future__ import annotations

from collections import defaultdict, deque

from dataflow.plan.physical import PhysicalPlan
from dataflow.reports import LinkRates, NodeStatistics, Rates


class Meter:
    """Measures one node. What is sent to a node arrives there in order; it counts when it does.

    Args:
        plan: what is run.
    """

    def __init__(self, plan: PhysicalPlan) -> None:
        graph = plan.graph
        self._exchanging = {
            chain.head
            for chain in plan.chains
            if any(graph.operator(name).sends or graph.operator(name).receives for name in chain.operators)
        }
        self._began_s = self._blocked_s = self._compute_s = self._exchange_s = 0.0
        self._steps = 0
        self._node = _Busy()
        self._links: defaultdict[int, _Link] = defaultdict(_Link)

    def sent(self, peer: int, now: float) -> None:
        """A message has been handed to the network."""
        link = self._links[peer]
        link.sent_s.append(now)
        link.busy.begin(now)
        self._node.begin(now)

    def arrived(self, peer: int, nbytes: int, now: float) -> None:
        """The oldest message under way to a peer has arrived."""
        link = self._links[peer]
        link.delay_s += now - link.sent_s.popleft()
        link.messages += 1
        link.nbytes += nbytes
        link.busy.end(now)
        self._node.end(now)

    def exchanged(self, seconds: float) -> None:
        """The node has worked for its connections."""
        self._exchange_s += seconds

    def ran(self, chain: str, pool: str, seconds: float) -> None:
        """A task has run."""
        if pool == "compute":
            self._compute_s += seconds
        if chain in self._exchanging:
            self._exchange_s += seconds

    def read(self, done: NodeStatistics, now: float) -> Rates:
        """What the node has done since this was asked last; its engine has counted `done`."""
        rates = Rates(
            seconds=now - self._began_s,
            steps=done.steps - self._steps,
            compute_s=self._compute_s,
            exchange_s=self._exchange_s,
            busy_s=self._node.take(now),
            blocked_s=done.waiting_s - self._blocked_s,
            links={peer: link.take(now) for peer, link in self._links.items()},
        )
        self._began_s, self._steps, self._blocked_s = now, done.steps, done.waiting_s
        self._compute_s = self._exchange_s = 0.0
        return rates


class _Busy:
    """Seconds in which anything is under way."""

    __slots__ = ("_count", "_seconds", "_since_s")

    def __init__(self) -> None:
        self._count, self._seconds, self._since_s = 0, 0.0, 0.0

    def begin(self, now: float) -> None:
        if not self._count:
            self._since_s = now
        self._count += 1

    def end(self, now: float) -> None:
        self._count -= 1
        if not self._count:
            self._seconds += now - self._since_s

    def take(self, now: float) -> float:
        """The seconds since they were taken last."""
        seconds, self._seconds = self._seconds, 0.0
        if self._count:
            seconds += now - self._since_s
            self._since_s = now
        return seconds


class _Link:
    """What has happened on the way to one peer."""

    __slots__ = ("busy", "delay_s", "messages", "nbytes", "sent_s")

    def __init__(self) -> None:
        self.sent_s: deque[float] = deque()
        self.busy = _Busy()
        self.nbytes = self.messages = 0
        self.delay_s = 0.0

    def take(self, now: float) -> LinkRates:
        """What is known of it since this was asked last."""
        delay_s = self.delay_s / self.messages if self.messages else 0.0
        rates = LinkRates(self.nbytes, self.busy.take(now), delay_s)
        self.nbytes = self.messages = 0
        self.delay_s = 0.0
        return rates
