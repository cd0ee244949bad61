"""Virtual time, and what is going to happen in it."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[[Any], None]


class VirtualClock:
    """A clock that jumps from event to event, in the order of (time, priority, order of being told).

    Nothing else decides what comes first, so a run repeats itself exactly.
    """

    __slots__ = ("_count", "_heap", "_now", "_stopped")

    def __init__(self) -> None:
        """Begin at second 0."""
        self._now, self._count, self._stopped = 0.0, 0, False
        self._heap: list[tuple[float, int, int, Action, Any]] = []

    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    @property
    def events(self) -> int:
        """How many events it has been told of."""
        return self._count

    @property
    def next_s(self) -> float:
        """When something happens next; infinite if nothing is left to happen."""
        return self._heap[0][0] if self._heap else float("inf")

    def at(self, time_s: float, action: Action, argument: Any = None, priority: int = 0) -> None:
        """Have `action(argument)` called at a time that is not past; the lowest `priority` goes first."""
        self._count = count = self._count + 1
        heappush(self._heap, (time_s, priority, count, action, argument))

    def run(self) -> None:
        """Let time go on until nothing is left to happen, or `stop` is called, which may have been before."""
        heap = self._heap
        while heap and not self._stopped:
            self._now, _, _, action, argument = heappop(heap)
            action(argument)
        self._stopped = False

    def stop(self) -> None:
        """Let no further event happen in this `run`, or in the next one if none is on; also from a signal handler."""
        self._stopped = True
