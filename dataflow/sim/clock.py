"""Virtual time, and what is going to happen in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[[Any], None]


class VirtualClock:
    """A clock that jumps from event to event, in the order of (time, priority, order of being told).

    Nothing else decides what comes first, so a run repeats itself exactly. What is to happen at the very moment at
    which it is told of needs no place in the heap: it comes behind all that was told of before, and ahead of what has a
    priority.
    """

    __slots__ = ("_count", "_heap", "_now", "_soon", "_stopped")

    def __init__(self) -> None:
        """Begin at second 0."""
        self._now, self._count, self._stopped = 0.0, 0, False
        self._heap: list[tuple[float, int, int, Action, Any]] = []
        self._soon: deque[tuple[Action, Any]] = deque()

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
        if self._soon:
            return self._now
        return self._heap[0][0] if self._heap else float("inf")

    def at(self, time_s: float, action: Action, argument: Any = None, priority: int = 0) -> None:
        """Have `action(argument)` called at a time that is not past; the lowest `priority`, at least 0, goes first."""
        self._count = count = self._count + 1
        if time_s == self._now and not priority:
            self._soon.append((action, argument))
        else:
            heappush(self._heap, (time_s, priority, count, action, argument))

    def run(self) -> None:
        """Let time go on until nothing is left to happen, or `stop` is called, which may have been before."""
        heap, soon = self._heap, self._soon
        while (heap or soon) and not self._stopped:
            if soon and not (heap and heap[0][0] == self._now and not heap[0][1]):
                action, argument = soon.popleft()
            else:
                self._now, _, _, action, argument = heappop(heap)
            action(argument)
        self._stopped = False

    def stop(self) -> None:
        """Let no further event happen in this `run`, or in the next one if none is on; also from a signal handler."""
        self._stopped = True
