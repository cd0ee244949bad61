"""What the nodes of a job have told of themselves lately, in the master. What of it is kept: see `JobNews`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from dataflow.observe.condition import RECENT
from dataflow.transport.generated import control_pb2 as pb

_APART_S: Final = 0.9


class ToldStatistics:
    """The newest statistics of each node, and a few before them that were told about a second apart.

    Attributes:
        told_s: when a node told its newest, seconds on the master's clock.
    """

    def __init__(self) -> None:
        self.told_s: dict[int, float] = {}
        self._recent: dict[int, deque[pb.NodeStatistics]] = {}
        self._live: dict[int, tuple[int, pb.NodeStatistics]] = {}
        self._kept_s: dict[int, float] = {}

    def __iter__(self) -> Iterator[tuple[int, tuple[pb.NodeStatistics, ...]]]:
        """Nodes with what they told, oldest first."""
        return ((node, tuple(recent)) for node, recent in self._recent.items())

    def __bool__(self) -> bool:
        return bool(self._recent)

    def newest(self, node: int) -> pb.NodeStatistics | None:
        """What a node told last."""
        recent = self._recent.get(node)
        return recent[-1] if recent else None

    def take(self, statistics: pb.NodeStatistics, now: float, *, final: bool) -> None:
        """Note what a node tells; of its earlier incarnation nothing is left then.

        Args:
            statistics: of the node.
            now: seconds on the master's clock.
            final: whether it is the last that this node tells, of which those who watch hear by an event.
        """
        node, recent = statistics.node, self._recent.setdefault(statistics.node, deque(maxlen=RECENT))
        self.told_s[node] = now
        if recent and recent[-1].incarnation != statistics.incarnation:
            recent.clear()
        if recent and now - self._kept_s[node] < _APART_S:
            recent[-1] = statistics
        else:
            recent.append(statistics)
            self._kept_s[node] = now
        count, _ = self._live.pop(node, (0, statistics))
        if not final:
            self._live[node] = (count + 1, statistics)

    def news(self, seen: dict[int, int]) -> list[pb.NodeStatistics]:
        """What running nodes have told since the counts in `seen`, which are brought up to date."""
        fresh = [(node, count, told) for node, (count, told) in self._live.items() if seen.get(node) != count]
        seen.update({node: count for node, count, _ in fresh})
        return [told for _, _, told in fresh]

    def forget(self) -> None:
        """Nodes begin anew, and count from 0."""
        self._live.clear()
        self._recent.clear()
