"""Virtual time, and what is going to happen in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
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
        self._heap: list[_Entry] = []
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
        return self._heap[0].time_s if self._heap else float("inf")

    def at(self, time_s: float, action: Action, argument: Any = None, priority: int = 0) -> None:
        """Have `action(argument)` called at a time that is not past; the lowest `priority`, at least 0, goes first."""
        self._count = count = self._count + 1
        if time_s == self._now and not priority:
            self._soon.append((action, argument))
        else:
            _push(self._heap, _Entry(time_s, priority, count, action, argument))

    def run(self) -> None:
        """Let time go on until nothing is left to happen, or `stop` is called, which may have been before."""
        heap, soon = self._heap, self._soon
        while (heap or soon) and not self._stopped:
            if soon and not (heap and heap[0].time_s == self._now and not heap[0].priority):
                action, argument = soon.popleft()
                action(argument)
            else:
                entry = _pop(heap)
                self._now = entry.time_s
                entry.action(entry.argument)
        self._stopped = False

    def stop(self) -> None:
        """Let no further event happen in this `run`, or in the next one if none is on; also from a signal handler."""
        self._stopped = True


class _Entry:
    """What happens at a time."""

    __slots__ = ("action", "argument", "count", "priority", "time_s")

    def __init__(self, time_s: float, priority: int, count: int, action: Action, argument: Any) -> None:
        self.time_s, self.priority, self.count = time_s, priority, count
        self.action, self.argument = action, argument

    def precedes(self, other: _Entry) -> bool:
        """Whether it goes first."""
        if self.time_s != other.time_s:
            return self.time_s < other.time_s
        return self.priority < other.priority or (self.priority == other.priority and self.count < other.count)


# A binary heap, as that of `heapq`, which compares what it holds through the interpreter: compiled, this one takes a
# fraction of the time.


def _push(heap: list[_Entry], entry: _Entry) -> None:
    heap.append(entry)
    _rise(heap, entry, len(heap) - 1)


def _pop(heap: list[_Entry]) -> _Entry:
    entry = heap.pop()
    if not heap:
        return entry
    first, place, size = heap[0], 0, len(heap)
    # The gap sinks to the bottom, and what was there rises from it: it seldom rises far.
    while (child := 2 * place + 1) < size:
        if child + 1 < size and heap[child + 1].precedes(heap[child]):
            child += 1
        heap[place] = heap[child]
        place = child
    _rise(heap, entry, place)
    return first


def _rise(heap: list[_Entry], entry: _Entry, place: int) -> None:
    """Put an entry at a place, or above it, where it comes behind what is above it."""
    while place:
        parent = (place - 1) // 2
        if not entry.precedes(heap[parent]):
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = entry
