"""The processors that threads run on, and how long."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

_LIBC = ctypes.PyDLL(None)


class Bystander:
    """Keeps the calling thread off the processor that another thread of the process computes on.

    The kernel of a virtual machine may take a sleeping processor for a busy one. Then it wakes a thread on the
    processor of the thread that wakes it, and there the two take turns although another processor is free.
    """

    def __init__(self) -> None:
        self._allowed = os.sched_getaffinity(0)
        self._avoided = -1

    def avoid(self, processor: int) -> None:
        """Run anywhere but on `processor`, unless the process may use no other, or may not choose."""
        if processor != self._avoided:
            self._avoided = processor
            with suppress(OSError):
                os.sched_setaffinity(0, self._allowed - {processor} or self._allowed)


def current_processor() -> int:
    """Number of the processor that the calling thread runs on; keeps the interpreter."""
    return int(_LIBC.sched_getcpu())


class ThreadClocks:
    """Processor time of some threads of this process.

    Args:
        threads: they have been started and have not ended.
    """

    def __init__(self, threads: Iterable[threading.Thread]) -> None:
        self._clocks = [time.pthread_getcpuclockid(thread.ident) for thread in threads if thread.ident is not None]

    def total_s(self) -> float:
        """Processor seconds that they have taken, until now; those that have ended count no more."""
        total_s = 0.0
        for clock in self._clocks:
            with suppress(OSError):
                total_s += time.clock_gettime(clock)
        return total_s


def main_thread_us(process: int) -> int:
    """Microseconds that the main thread of a process has run so far; 0 where the kernel does not tell."""
    try:
        with open(f"/proc/{process}/schedstat", "rb") as file:
            return int(file.read().split()[0]) // 1000
    except (OSError, ValueError, IndexError):
        return 0
