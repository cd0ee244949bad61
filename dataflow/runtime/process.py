"""Processes of ours on Linux: whose they are, when they end, and how they ended."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_OOM_SCORE_ADJ = Path("/proc/self/oom_score_adj")

CANNOT_START = 126
"""Exit status that is told of a job process which could not be started."""


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    Args:
        parent: process id of the parent; if it has ended before this call, this process exits at once.
    """
    _set(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def first_when_memory_runs_out() -> None:
    """Have the kernel end this process before others: as if it had half of the machine's memory besides its own.

    The processes that it starts are like it. Where a process may not say so, nothing changes.
    """
    with suppress(OSError):
        inherited = max(0, int(_OOM_SCORE_ADJ.read_text()))  # all that runs in a container may have nearly the most
        _OOM_SCORE_ADJ.write_text(str(min(1000, inherited + 500)))


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
