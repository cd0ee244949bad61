"""A process that may use no more than one processor's time keeps to one processor.

Threads that run on two processors at once use up such a share in half the time, and then all of them wait. They gain
nothing by it, and lose: they hand the interpreter to and fro in the middle of each other's work, and find what they
work on in the cache of the other processor.

Which processor that is, the kernel says: where it has the busiest thread run while the process may run anywhere. If the
process does not come by its share there, since others want the processor too, the kernel is left to choose again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dataflow.clock import Clock
from dataflow.runtime.process import process_s

LOOK_S = 0.5
"""Seconds between two looks."""

_BUSY = 0.85  # of its share, what a process uses that is not held up
_THREADS = Path("/proc/self/task")
_USER, _SYSTEM, _PROCESSOR = 11, 12, 36  # fields of a thread's stat behind its name


class OneProcessor:
    """Keeps all threads of this process on one processor while they use up the process's share there.

    Args:
        share: processors whose time the process may use; 1 at most.
        clock: tells how much it could have used.
    """

    def __init__(self, share: float, clock: Clock) -> None:
        self._share, self._clock = share, clock
        self._allowed = os.sched_getaffinity(0)
        self._now_s, self._used_s = clock.now(), process_s()
        self._ticks: dict[int, int] = {}
        self.processor: int | None = None
        """The one on which the threads are kept; None while they may run anywhere."""

    def look(self) -> None:
        """See what the process has used since the last time, and keep its threads where they are, or let them go."""
        now_s, used_s = self._clock.now(), process_s()
        busy = used_s - self._used_s >= _BUSY * self._share * (now_s - self._now_s)
        self._now_s, self._used_s = now_s, used_s
        busiest = self._busiest() if self.processor is None else self.processor
        if busy and self.processor is None:
            self._keep_to(busiest)
        elif not busy and self.processor is not None:
            self.release()

    def release(self) -> None:
        """Let the threads run wherever the process might before."""
        self.processor = None
        _allow(self._allowed)

    def _keep_to(self, processor: int) -> None:
        self.processor = processor
        _allow({processor})

    def _busiest(self) -> int:
        """The processor of the thread that has run most since the last time."""
        ticks, most, where = dict[int, int](), -1, -1
        for thread in _threads():
            with suppress(OSError):
                fields = (_THREADS / str(thread) / "stat").read_text().rpartition(")")[2].split()
                ticks[thread] = int(fields[_USER]) + int(fields[_SYSTEM])
                ran = ticks[thread] - self._ticks.get(thread, 0)
                if ran > most:
                    most, where = ran, int(fields[_PROCESSOR])
        self._ticks = ticks
        return where


async def keep_to_one_processor(share: float, clock: Clock) -> None:
    """Look every `LOOK_S` seconds, until cancelled; see `OneProcessor`."""
    kept = OneProcessor(share, clock)
    try:
        while True:
            await asyncio.sleep(LOOK_S)
            kept.look()
    finally:
        kept.release()


def _threads() -> Iterator[int]:
    yield from (int(name) for name in os.listdir(_THREADS))


def _allow(processors: set[int]) -> None:
    for thread in _threads():
        with suppress(OSError):  # it has ended, or the process may not choose
            os.sched_setaffinity(thread, processors)
