"""Processes that do not outlive the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.PyDLL(None)
_ROOT = Path(__file__).resolve().parents[2]

CANNOT_START = 126
"""Exit status that is told of a job process which could not be started."""

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
"""Environment of a job process: its task pools are its only threads that compute.

The kernels start none, but NumPy's products of matrices do, which operators may use, and so does PyTorch.
"""

FEW_WAKES = {
    "GRPC_EXPERIMENTS": "tcp_frame_size_tuning,tcp_rcv_lowat,-event_engine_client,-event_engine_listener",
}
"""Environment of a job process: gRPC wakes few threads for a message (docs/decisions/0021-few-packets.md).

It asks the kernel to be woken once most of a message is there, and not for nearly every packet of a slow link: 17 times
for a message of 79 kB at 100 Mbit/s. And who waits for a message reads it, where gRPC's event engine has a thread of
its own read it and hand it over.
"""

KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(32 << 20)}
"""Environment of a job process: glibc keeps up to 32 MiB of an arena for blocks of up to 32 MiB to come.

Otherwise it gives packets back to the kernel as soon as two or three are free together, and the pages of the next ones
are zeroed again: a third of what a stream of large messages costs (docs/decisions/0021-few-packets.md).
"""

PREFERRED = FEW_WAKES | KEEP_MEMORY
"""Environment of a job process, as far as the user's own says nothing else."""


def module_command(module: str) -> tuple[str, ...]:
    """The command that starts a module of ours: what lies in the current folder shadows nothing that it imports.

    But where that folder has this very package it stays the first to be searched, so that processes of a checkout run
    its sources, and not those of another one that is installed.
    """
    try:
        in_checkout = Path().resolve() == _ROOT
    except OSError:  # the folder is gone
        in_checkout = False
    return (sys.executable, *(() if in_checkout else ("-P",)), "-m", module)


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


def process_s() -> float:
    """Processor seconds that this process has taken, until now."""
    return time.process_time()


def main_thread_us(process: int) -> int:
    """Microseconds that the main thread of a process has run so far; 0 where the kernel does not tell."""
    try:
        with open(f"/proc/{process}/schedstat", "rb") as file:
            return int(file.read().split()[0]) // 1000
    except (OSError, ValueError, IndexError):
        return 0


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    Args:
        parent: process id of the parent; if it has ended before this call, this process exits at once.
    """
    _set(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def adopt_orphans() -> None:
    """Have the kernel make this process the parent of those below it whose own parent ends."""
    _set(_PR_SET_CHILD_SUBREAPER, 1)


def _set(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped a process (SIGSTOP, a debugger), or it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] in "TtZX"


def signal_group(group: int, number: signal.Signals) -> None:
    """Send a signal to a process group; one that has ended is no error."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def how_it_ended(status: int) -> str:
    """How a process has ended, for people; `status`: its exit status, or the negative number of the signal."""
    if status >= 0:
        return f"with exit status {status}"
    if -status == signal.SIGKILL:
        hint = "perhaps by the kernel because memory ran out (see dmesg): then use fewer nodes or tasks on a machine"
        return f"by SIGKILL, {hint}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"
