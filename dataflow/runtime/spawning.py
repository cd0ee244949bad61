"""Starting job processes: an agent has them forked from a process that has imported what they need (`fork_server`).

Where that is of no use, or does not work, they are new programs, and say themselves what is wrong.

Invariant: every process that has been started is waited for by its `Spawned`; all others that the kernel gives to the
agent, which are what processes leave behind, and forks that nobody has heard of, by the `Spawner`.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dataflow.runtime.auth import TOKEN_VARIABLE
from dataflow.runtime.forking import ROOM
from dataflow.runtime.process import adopt_orphans
from dataflow.runtime.scratch import Scratch
from dataflow.runtime.starting import ONE_THREAD, PREFERRED, module_command
from dataflow.transport.generated import control_pb2 as pb

PATIENCE_S: Final = 20.0
"""A fork server that says nothing for so long is ended, in seconds: so long it may take to start, and for one import.

It leaves a job most of the time that it has to get ready, to import the same as a new program.
"""

_TRIES: Final = 2

_ANSWER_NBYTES: Final = 4096


class Spawned:
    """A job process, a child of this one.

    Attributes:
        pid: its id; sure to be its own while `returncode` is None.
        returncode: its exit status, or minus the number of the signal that ended it; None before `wait`.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        """Wait until it has ended; its exit status."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def poll(self) -> None:
        """Wait for it if it has ended."""
        if self.returncode is None and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            self.wait()

    def send_signal(self, number: signal.Signals) -> None:
        """Signal it, unless it has been waited for."""
        if self.returncode is None:
            os.kill(self.pid, number)


@dataclass(frozen=True)
class Serving:
    """A fork server that runs, a child of this process.

    Args:
        pid: its id.
        asking: where it is asked for forks.
    """

    pid: int
    asking: socket.socket


class Spawner:
    """Starts the job processes of one agent, and waits for what its process is given of others that have ended.

    Make it on the event loop; `close` it in the end. Other children of this process are to be waited for elsewhere,
    or may lose their exit status.

    Args:
        serving: a fork server that there is already; else one is started when it is needed.

    Attributes:
        scratch: the folder for what job processes need.
    """

    def __init__(self, serving: Serving | None = None) -> None:
        self.scratch = Scratch("agent")
        self._server: Spawned | None = None
        self._asking: socket.socket | None = None
        if serving is not None:
            self._use(serving)
        self._turn = asyncio.Lock()
        self._spawned: list[Spawned] = []
        self._unfit: set[str] = set()

    async def spawn(self, deploy: pb.Deploy, arguments: Sequence[str], descriptors: Sequence[int]) -> Spawned:
        """Start a job process; the first time that takes as long as its imports do.

        Args:
            deploy: names what it will import.
            arguments: of its command line.
            descriptors: its connection to the agent, its page of memory, and what it prints to.

        Raises:
            OSError: the system has no process, or no memory, more.
        """
        own = _packages_in(deploy.bundle)
        modules = [name for name in _modules_of(deploy.plan_json) if name.partition(".")[0] not in own]
        request = json.dumps({"arguments": list(arguments), "modules": modules, "own": own}).encode()
        async with self._turn:
            self.reap()
            answer: Mapping[str, Any] = {}
            for _ in range(_TRIES):
                if answer or not self._unfit.isdisjoint(modules):
                    break
                answer = await self._ask(request, descriptors)
            if "unfit" in answer:
                self._unfit.add(answer["unfit"])
                self._end_server()
        if "error" in answer:
            raise OSError(answer["error"])
        process = Spawned(answer["process"]) if "process" in answer else _begin(arguments, descriptors)
        self._spawned.append(process)
        return process

    def reap(self) -> None:
        """Wait for what has ended and nobody else waits for, up to the first that somebody does."""
        if self._server is not None:
            self._server.poll()
        self._spawned = [each for each in self._spawned if each.returncode is None]
        awaited = {each.pid for each in (*self._spawned, self._server) if each is not None}
        with contextlib.suppress(ChildProcessError):  # there is none
            while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if found.si_pid in awaited:
                    return
                os.waitpid(found.si_pid, 0)

    def close(self) -> None:
        """End the fork server and remove the folder, once no job process is left."""
        self._end_server()
        self.reap()
        self.scratch.close()

    def _end_server(self) -> None:
        if self._asking is not None:
            self._asking.close()
        if self._server is not None:
            self._server.send_signal(signal.SIGKILL)
            self._server.wait()
        self._asking = self._server = None

    async def _ask(self, request: bytes, descriptors: Sequence[int]) -> Mapping[str, Any]:
        """The answer to a request; empty if the server has died, which is started if there is none.

        A module at whose import the server says nothing more is unfit for it.
        """
        asking = self._asking or self._start()
        answer: Mapping[str, Any] = {}
        wanted, want = os.pipe()
        importing = ""
        try:
            socket.send_fds(asking, [request], [*descriptors, wanted])
            while "imports" in (said := await _hear(asking)):
                importing = said["imports"]
            answer = said
            if "process" in answer:
                os.write(want, b"1")
        except TimeoutError:
            return {"unfit": importing} if importing else {"late": True}
        except OSError:
            return {"unfit": importing} if importing else {}
        finally:
            for descriptor in (wanted, want):  # upon which a fork whose answer has not come ends
                os.close(descriptor)
            if not answer:
                self._end_server()
        return answer

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            program = subprocess.Popen(
                [
                    *module_command("dataflow.runtime.fork_server"),
                    *("--agent", str(os.getpid())),
                    *("--asked-fd", str(theirs.fileno())),
                    *("--room", ROOM),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=environment(),
            )
        program.returncode = 0  # it is the `Spawned` that waits for it
        return self._use(Serving(program.pid, ours))

    def _use(self, serving: Serving) -> socket.socket:
        adopt_orphans()
        serving.asking.setblocking(False)
        self._server, self._asking = Spawned(serving.pid), serving.asking
        return serving.asking


async def _hear(server: socket.socket) -> Mapping[str, Any]:
    """What a fork server says next.

    Raises:
        TimeoutError: it says nothing.
        ConnectionError: it has ended.
    """
    async with asyncio.timeout(PATIENCE_S):
        said = await asyncio.get_running_loop().sock_recv(server, _ANSWER_NBYTES)
    if not said:
        raise ConnectionResetError
    found: Mapping[str, Any] = json.loads(said)
    return found


def _begin(arguments: Sequence[str], descriptors: Sequence[int]) -> Spawned:
    """Start a job process as a new program.

    Raises:
        OSError: the system has no process, or no memory, more.
    """
    control, board, printed = descriptors
    program = subprocess.Popen(
        [
            *module_command("dataflow.runtime.job_process"),
            *arguments,
            *("--control-fd", str(control), "--board-fd", str(board)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=printed,
        stderr=printed,
        pass_fds=(control, board),
        env=environment(),
        start_new_session=True,
    )
    program.returncode = 0  # it is the `Spawned` that waits for it
    return Spawned(program.pid)


def _modules_of(plan_json: bytes) -> list[str]:
    """Modules of the operators and state elements that a plan names."""
    graph = json.loads(plan_json)["graph"]
    names = [*(each["kind"] for each in graph["operators"]), *(each["factory"] for each in graph["elements"])]
    return sorted({name.partition(":")[0] for name in names})


def _packages_in(bundle: bytes) -> list[str]:
    """Names of the packages and modules at the top of a bundle, which is not unpacked.

    None of what cannot be read: what is wrong with it is for the job process to find out and to say.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
            return sorted({name.partition("/")[0].removesuffix(".py") for name in archive.namelist()})
    except Exception:  # zipfile raises many kinds
        return []


def environment() -> dict[str, str]:
    """This process's environment with what job processes need; without the cluster's token, which they do not."""
    inherited = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    return {"GRPC_VERBOSITY": "ERROR", **PREFERRED, **inherited, **ONE_THREAD, "PYTHONUNBUFFERED": "1"}
