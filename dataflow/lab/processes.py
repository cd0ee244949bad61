"""The processes of a lab: whatever runs in one of its network namespaces, whoever started it."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from dataflow.clock import Clock
from dataflow.errors import LabError
from dataflow.lab.commands import run

_GONE_S: Final = 5.0


def processes(namespace: str) -> tuple[int, ...]:
    """Ids of the processes in a network namespace, but this one."""
    found = (int(word) for word in run(("ip", "netns", "pids", namespace)).split())
    return tuple(sorted(each for each in found if each != os.getpid()))


def words_of(process: int) -> tuple[str, ...]:
    """A process's program and its arguments; nothing if it has ended."""
    with suppress(OSError):
        words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
        return tuple(words.removesuffix("\0").split("\0")) if words else ()
    return ()


def command_of(process: int) -> str:
    """A process's command line; empty if it has ended."""
    return " ".join(words_of(process)).strip()


def send_signal(namespace: str, number: signal.Signals) -> int:
    """Send a signal to all processes in a namespace; how many there were."""
    found = processes(namespace)
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process, number)
    return len(found)


def pause(namespace: str, duration_s: float, clock: Clock) -> bool:
    """Stop the processes in a namespace, and let them go on after so many seconds, or when this is broken off.

    Returns:
        Whether there were any; if not, at once.
    """
    try:
        found = send_signal(namespace, signal.SIGSTOP) > 0
        if found:
            clock.sleep(duration_s)
    finally:
        send_signal(namespace, signal.SIGCONT)
    return found


def kill_all(namespaces: Sequence[str], clock: Clock) -> int:
    """Kill the processes in these namespaces, and return when they are gone; how many there were.

    Gone is a process when the last of its threads is, and with it what the process held: files, locks.

    Raises:
        LabError: some do not go.
    """
    deadline_s, killed = clock.now() + _GONE_S, set[int]()
    while left := {each for namespace in namespaces for each in processes(namespace)}:
        if clock.now() > deadline_s:
            raise LabError(what="processes of the lab do not end", got=sorted(left))
        with ExitStack() as opened:
            handles = [handle for each in left if (handle := _kill(each, opened)) is not None]
            for handle in handles:
                select.select([handle], [], [], max(0.0, deadline_s - clock.now()))
        killed |= left
    return len(killed)


def _kill(process: int, opened: ExitStack) -> int | None:
    """Kill a process; what becomes readable when all of its threads have ended, or None if they have."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(process)
        opened.callback(os.close, handle)
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        return handle
    return None
