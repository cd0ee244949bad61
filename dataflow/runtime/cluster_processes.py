"""Starting the processes of a local cluster: forks of a zygote, or programs of their own where that cannot be."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from io import FileIO
from typing import Any, Final, Protocol

from dataflow.clock import Clock
from dataflow.runtime.forking import ROOM
from dataflow.runtime.spawning import environment

_ANSWER_NBYTES: Final = 4096
_POLL_S: Final = 0.005


class ClusterProcess(Protocol):
    """A process of a cluster; the methods are those of `subprocess.Popen`.

    Attributes:
        pid: its id.
        returncode: its exit status, or minus the number of the signal that ended it; None until it is asked for.
    """

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Its status, if it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, for so many seconds at most.

        Raises:
            TimeoutExpired: it has not.
        """

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it."""


class Nursery:
    """Processes of one cluster that are forked from one that has imported what they need.

    It is started with the first of them, and they die with it; it dies with the thread that started it.

    Args:
        modules: to be imported ahead, besides those of master and agents; no user code.
        clock: the clock.
    """

    def __init__(self, modules: Sequence[str], clock: Clock) -> None:
        self._modules, self._clock = modules, clock
        self._zygote: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def start(self, module: str, arguments: Sequence[str], log: FileIO) -> ClusterProcess:
        """Start a module as a program.

        Args:
            module: its name.
            arguments: of its command line.
            log: what it prints to.

        Raises:
            OSError: the system has no process, or no memory, more.
        """
        if self._zygote is None:
            self._begin()
        answer = self.ask({"module": module, "arguments": list(arguments)}, log.fileno())
        if "process" not in answer:
            raise OSError(answer.get("error", "the process that a cluster's processes are forked from has died"))
        return _Forked(answer["process"], self, self._clock)

    def ask(self, request: dict[str, Any], *descriptors: int) -> dict[str, Any]:
        """The zygote's answer; empty if it has died. See `zygote.Zygote`."""
        with self._lock:
            try:
                socket.send_fds(self._asking, [json.dumps(request).encode()], descriptors)
                said = self._asking.recv(_ANSWER_NBYTES)
            except OSError:
                said = b""
        answer: dict[str, Any] = json.loads(said or b"{}")
        return answer

    def close(self) -> None:
        """End what is left of them."""
        if self._zygote is not None:
            self._asking.close()
            self._zygote.kill()
            self._zygote.wait()

    def _begin(self) -> None:
        self._asking, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._zygote = subprocess.Popen(
                [
                    *(sys.executable, "-m", "dataflow.runtime.zygote"),
                    *("--cluster", str(os.getpid())),
                    *("--asked-fd", str(theirs.fileno())),
                    *("--room", ROOM),
                    *self._modules,
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=environment(),
                start_new_session=True,
            )


class _Forked:
    """A child of the zygote, which waits for it once that has ended; see `ClusterProcess`."""

    def __init__(self, pid: int, nursery: Nursery, clock: Clock) -> None:
        self.pid, self._nursery, self._clock = pid, nursery, clock
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            # They die with the zygote.
            self.returncode = self._nursery.ask({"ended": self.pid}).get("status", -signal.SIGKILL)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end_s = None if timeout is None else self._clock.now() + timeout
        while (status := self.poll()) is None:
            if end_s is not None and self._clock.now() >= end_s:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self._clock.sleep(_POLL_S)
        return status

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)
