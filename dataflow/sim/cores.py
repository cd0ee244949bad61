"""The cores of a simulated node: as many as its compute tasks, which the tasks of its network pool borrow."""

from __future__ import annotations


class Cores:
    """Says by how much tasks of the compute pool are held up by those of the network pool.

    These come first, as on a cluster, where compute threads have a lower priority. While a core is free they hold up
    nobody; while all compute, each compute task loses its share of what a network task takes.

    Args:
        count: cores, and compute tasks at most.
    """

    __slots__ = ("_computing", "_count", "_lost_s", "_taken_until_s")

    def __init__(self, count: int) -> None:
        self._count, self._computing = count, 0
        self._lost_s = self._taken_until_s = 0.0

    def begin(self, now: float) -> float:
        """A compute task begins; returns the mark by which `owed` knows it."""
        mark = self._lost_s
        self._computing += 1
        if self._computing == self._count:
            self._lost_s += max(0.0, self._taken_until_s - now) / self._count
        return mark

    def take(self, now: float, duration_s: float) -> None:
        """A task of the network pool begins, and takes so many seconds."""
        if self._computing == self._count:
            self._lost_s += duration_s / self._count
        self._taken_until_s = max(self._taken_until_s, now) + duration_s

    def owed(self, mark: float) -> tuple[float, float]:
        """Seconds that a compute task has lost since its mark, and its new mark."""
        return self._lost_s - mark, self._lost_s

    def end(self) -> None:
        """A compute task has ended."""
        self._computing -= 1
