"""Starting the processes of a local cluster: forks of a zygote, or programs of their own where that cannot be."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from io import FileIO
from typing import Any, Final, Protocol, Self

from dataflow.clock import Clock, SystemClock
from dataflow.runtime.auth import AUTHORITY_VARIABLE
from dataflow.runtime.forking import ROOM
from dataflow.runtime.process import how_it_ended
from dataflow.runtime.spawning import environment
from dataflow.runtime.starting import module_command

IMPORT_S: Final = 60.0
"""For so long a zygote may import what it is told to before it forks, in seconds."""

ANSWER_S: Final = 10.0
"""For so long it may think about how a fork has ended."""

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
    """Processes of clusters on this machine that are forked from one that has imported what they need, the zygote.

    It is started with the first of them, or before, and again with the next one where it has died, with the environment
    and in the folder that this process has then. It dies with the thread that started it, and they with it. Several
    clusters may share one.

    Args:
        clock: the clock.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._zygote: _Zygote | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def said(self) -> str:
        """What the zygote has printed."""
        return "" if self._zygote is None else self._zygote.said

    def begin(self, ahead: Sequence[str] = ()) -> None:
        """Start the zygote if there is none, which imports what all need and these modules meanwhile.

        Raises:
            OSError: the system has no process, or no memory, more.
        """
        self._begun(ahead)

    def start(self, module: str, arguments: Sequence[str], log: FileIO, ahead: Sequence[str] = ()) -> ClusterProcess:
        """Start a module as a program.

        Args:
            module: its name.
            arguments: of its command line.
            log: what it prints to.
            ahead: modules to be imported ahead, besides those of master and agents; none of a job's bundle.

        Raises:
            OSError: the system has no process, or no memory, more.
        """
        zygote = self._begun()
        request = {"module": module, "arguments": list(arguments), "ahead": list(ahead)}
        answer = zygote.ask(request, IMPORT_S, log.fileno())
        if "process" not in answer:
            raise OSError(answer.get("error") or zygote.why_it_died())
        return _Forked(answer["process"], zygote, self._clock)

    def close(self) -> None:
        """End what is left of them."""
        with self._lock:
            if self._zygote is not None:
                self._zygote.end()
                self._zygote = None

    def _begun(self, ahead: Sequence[str] = ()) -> _Zygote:
        """The zygote, which is started if there is none that lives."""
        with self._lock:
            if self._zygote is not None and self._zygote.has_died():
                self._zygote.end()
                self._zygote = None
            if self._zygote is None:
                self._zygote = _Zygote(ahead)
            return self._zygote


class _Zygote:
    """The process that others are forked from; see `zygote.Zygote` for what it is asked.

    Args:
        ahead: modules that it imports at once.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, ahead: Sequence[str]) -> None:
        self._asked = 0
        self._lock = threading.Lock()
        inherited = environment()
        inherited.pop(AUTHORITY_VARIABLE, None)  # the cluster has one of its own
        with ExitStack() as stack:
            self._prints = stack.enter_context(os.fdopen(os.memfd_create("printed by a zygote"), "rb"))
            self._asking, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(self._asking)
            with theirs:
                self._process = subprocess.Popen(
                    [
                        *module_command("dataflow.runtime.zygote"),
                        *("--cluster", str(os.getpid())),
                        *("--asked-fd", str(theirs.fileno())),
                        *("--room", ROOM),
                        *ahead,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=self._prints,
                    stderr=subprocess.STDOUT,
                    pass_fds=(theirs.fileno(),),
                    env=inherited,
                    start_new_session=True,
                )
            stack.pop_all()

    @property
    def said(self) -> str:
        """What it has printed."""
        length = os.fstat(self._prints.fileno()).st_size
        return os.pread(self._prints.fileno(), length, 0).decode(errors="replace")

    def has_died(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def why_it_died(self) -> str:
        """What ended it, and what it said last."""
        ended = how_it_ended(self._process.wait())
        return f"the process that it was to be forked from has ended {ended}: {self.said[-_SAID_LENGTH:]}"

    def end(self) -> None:
        """End it, and all that were forked from it."""
        self._asking.close()
        self._process.kill()
        self._process.wait()
        self._prints.close()

    def status(self, process: int) -> int | None:
        """How a fork has ended; None while it has not. Forks die with the zygote."""
        status: int | None = self.ask({"ended": process}, ANSWER_S).get("status", -signal.SIGKILL)
        return status

    def ask(self, request: dict[str, Any], patience_s: float, *descriptors: int) -> dict[str, Any]:
        """Its answer; empty if it has died, or says nothing for so long that it is ended."""
        with self._lock:
            self._asked += 1
            try:
                self._asking.settimeout(patience_s)
                socket.send_fds(self._asking, [json.dumps({**request, "number": self._asked}).encode()], descriptors)
                while said := self._asking.recv(_ANSWER_NBYTES):
                    answer: dict[str, Any] = json.loads(said)
                    if answer["number"] == self._asked:
                        return answer
                    if "process" in answer:  # whoever asked for it was interrupted before this came
                        os.kill(answer["process"], signal.SIGKILL)
            except OSError:  # it has died, or has said nothing for too long
                pass
            self._process.kill()
            return {}


class _Forked:
    """A child of the zygote, which waits for it once that has ended; see `ClusterProcess`."""

    def __init__(self, pid: int, zygote: _Zygote, clock: Clock) -> None:
        self.pid, self._zygote, self._clock = pid, zygote, clock
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._zygote.status(self.pid)
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
