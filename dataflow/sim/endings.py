"""When nodes of a simulated cluster have ended: once all that they have sent has arrived, as on a real one.

Invariant: the coordinator hears of a node's end once, and not before all streams of the node to others that are there
have ended there, too: one that failed sooner would take what is under way with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

from dataflow.plan.physical import StreamId
from dataflow.sim.clock import VirtualClock


class Endings:
    """The ends of nodes and of their streams.

    Args:
        clock: the clock.
        latency_s: seconds until the coordinator hears of a node.
        tell: has the coordinator hear that a node has ended.

    Attributes:
        ended: nodes whose engines have.
    """

    def __init__(self, clock: VirtualClock, latency_s: float, tell: Callable[[int], None]) -> None:
        self._clock, self._latency_s, self._tell = clock, latency_s, tell
        self.ended: set[int] = set()
        self._under_way: defaultdict[int, set[StreamId]] = defaultdict(set)
        self._there: dict[int, Collection[int]] = {}
        self._waiting: dict[int, float] = {}
        """By node that has ended, and whose streams have not, when the coordinator can hear of it."""

    def sent(self, stream: StreamId) -> None:
        """Note that the end of a stream is under way, unless it is for one that is not there."""
        if stream.target in self._there.get(stream.source, (stream.target,)):
            self._under_way[stream.source].add(stream)

    def arrived(self, stream: StreamId) -> None:
        """Note that it has arrived."""
        self._under_way[stream.source].discard(stream)
        self._tell_if_through(stream.source)

    def end(self, node: int) -> None:
        """Note that a node's engine has ended."""
        self.ended.add(node)
        self._waiting[node] = self._clock.now() + self._latency_s
        self._tell_if_through(node)

    def meet(self, node: int, there: Collection[int]) -> None:
        """Have a node wait for the ends of streams only to those that are there."""
        self._there[node] = there
        self._under_way[node] = {stream for stream in self._under_way[node] if stream.target in there}
        self._tell_if_through(node)

    def forget(self, node: int) -> None:
        """Forget a node that has died and is started again."""
        self.ended.discard(node)
        self._waiting.pop(node, None)
        self._under_way.pop(node, None)
        self._there.pop(node, None)

    def _tell_if_through(self, node: int) -> None:
        if node in self._waiting and not self._under_way[node]:
            self._clock.at(max(self._clock.now(), self._waiting.pop(node)), self._tell, node)
