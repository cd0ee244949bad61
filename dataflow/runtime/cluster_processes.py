"""Starting the processes of a local cluster: forks of a zygote, or programs of their own where that cannot be."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any, Final, Protocol

from dataflow.clock import Clock
from dataflow.runtime.auth import AUTHORITY_VARIABLE
from dataflow.runtime.forking import ROOM
from dataflow.runtime.process import how_it_ended, module_command
from dataflow.runtime.spawning import environment

IMPORT_S: Final = 60.0
"""For so long a zygote may import what it is told to, in seconds."""

ANSWER_S: Final = 10.0
"""For so long it may say nothing after that."""

_SAID_LENGTH: Final = 2000
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
    """Processes of one cluster that are forked from one that has imported what they need, the zygote.

    It is started with the first of them, and they die with it; it dies with the thread that started it.

    Args:
        modules: to be imported ahead, besides those of master and agents; none of a job's bundle.
        log: file that the zygote prints to.
        clock: the clock.
    """

    def __init__(self, modules: Sequence[str], log: Path, clock: Clock) -> None:
        self._modules, self._log, self._clock = modules, log, clock
        self._zygote: subprocess.Popen[bytes] | None = None
        self._asking: socket.socket | None = None
        self._asked = 0
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
        if self._asking is None:
            self._begin()
        answer = self._ask({"module": module, "arguments": list(arguments)}, log.fileno())
        if "process" not in answer:
            raise OSError(answer.get("error") or self._why_it_died())
        return _Forked(answer["process"], self, self._clock)

    def status(self, process: int) -> int | None:
        """How one of them has ended; None while it has not."""
        status: int | None = self._ask({"ended": process}).get("status", -signal.SIGKILL)  # they die with the zygote
        return status

    def close(self) -> None:
        """End what is left of them."""
        if self._asking is not None:
            self._asking.close()
        if self._zygote is not None:
            self._zygote.kill()
            self._zygote.wait()

    def _ask(self, request: dict[str, Any], *descriptors: int) -> dict[str, Any]:
        """The zygote's answer; empty if it has died, or says nothing for so long that it is ended. See `Zygote`."""
        assert self._asking is not None
        with self._lock:
            self._asked += 1
            try:
                socket.send_fds(self._asking, [json.dumps({**request, "number": self._asked}).encode()], descriptors)
                while said := self._asking.recv(_ANSWER_NBYTES):
                    answer: dict[str, Any] = json.loads(said)
                    if answer["number"] == self._asked:  # others are for whoever was interrupted before they came
                        self._asking.settimeout(ANSWER_S)
                        return answer
            except OSError:  # it has died, or has said nothing for too long
                pass
            if self._zygote is not None:
                self._zygote.kill()
            return {}

    def _begin(self) -> None:
        self._asking, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asking.settimeout(IMPORT_S)
        inherited = environment()
        inherited.pop(AUTHORITY_VARIABLE, None)  # the cluster has one of its own
        with theirs, self._log.open("ab") as log:
            self._zygote = subprocess.Popen(
                [
                    *module_command("dataflow.runtime.zygote"),
                    *("--cluster", str(os.getpid())),
                    *("--asked-fd", str(theirs.fileno())),
                    *("--room", ROOM),
                    *self._modules,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                env=inherited,
                start_new_session=True,
            )

    def _why_it_died(self) -> str:
        status = "" if self._zygote is None else how_it_ended(self._zygote.wait())
        said = self._log.read_text(errors="replace")[-_SAID_LENGTH:]
        return f"the process that it was to be forked from has ended {status}: {said}"


class _Forked:
    """A child of the zygote, which waits for it once that has ended; see `ClusterProcess`."""

    def __init__(self, pid: int, nursery: Nursery, clock: Clock) -> None:
        self.pid, self._nursery, self._clock = pid, nursery, clock
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._nursery.status(self.pid)
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
