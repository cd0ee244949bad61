"""The cores of a simulated node: as many as its compute tasks, and borrowed from these for all that it does besides.

Invariant: besides computing, a node does one thing at a time, in the order in which they came up: the tasks of its
network pool, and the messages that it sends and receives. So `_busy_until_s` says all about them.
"""

from __future__ import annotations

from dataflow.sim.quota import Quota


class Cores:
    """Says by how much tasks of the compute pool are held up by what else the node does.

    That comes first, as on a cluster, where compute threads have a lower priority. While a core is free it holds up
    nobody; while all compute, each compute task loses its share of the time that it takes.

    Args:
        count: cores, and compute tasks at most.
        quota: what the node may use of them; all if None. While it stands still nobody holds up anybody.
    """

    __slots__ = ("_busy_until_s", "_computing", "_count", "_lost_s", "_quota", "_seen_s")

    def __init__(self, count: int, quota: Quota | None = None) -> None:
        self._count, self._computing, self._quota = count, 0, quota
        self._lost_s = self._seen_s = self._busy_until_s = 0.0

    def begin(self, now: float) -> float:
        """A compute task begins; returns the mark by which `owed` knows it."""
        self._look(now)
        self._computing += 1
        return self._lost_s

    def free_s(self, now: float) -> float:
        """When the node can turn to something else than computing that comes up now."""
        return max(self._busy_until_s, now)

    def take(self, now: float, until_s: float) -> None:
        """Something that has come up now will be done at `until_s`, having begun at `free_s`."""
        self._look(now)
        self._busy_until_s = until_s

    def owed(self, now: float, mark: float) -> tuple[float, float]:
        """Seconds until a compute task has made up for what it has lost since its mark, and its new mark.

        What it is sure to lose meanwhile is in them, as far as it is known: 0 means that the task has ended.
        """
        self._look(now)
        lost_s = self._lost_s - mark
        if lost_s <= 0:
            return 0.0, mark
        more_s = 0.0
        if self._computing == self._count:
            left_s = self._worked_s(now, self._busy_until_s) / self._count
            more_s = min(left_s, lost_s / (self._count - 1)) if self._count > 1 else left_s
        return lost_s + more_s, self._lost_s + more_s

    def end(self, now: float) -> None:
        """A compute task has ended."""
        self._look(now)
        self._computing -= 1

    def _look(self, now: float) -> None:
        """Note what compute tasks have lost until now."""
        if self._busy_until_s > self._seen_s and self._computing == self._count:
            self._lost_s += self._worked_s(self._seen_s, min(now, self._busy_until_s)) / self._count
        self._seen_s = now

    def _worked_s(self, begin_s: float, end_s: float) -> float:
        """Seconds between two moments for which the node does not stand still."""
        stood_s = self._quota.stood_s(begin_s, end_s) if self._quota is not None else 0.0
        return max(0.0, end_s - begin_s - stood_s)
