"""Job processes forked from one that has imported what they need: real processes, which end at once."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import sys
import zipfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import ClassVar

import pytest

from dataflow.runtime.spawning import Spawned, Spawner
from dataflow.runtime.starting import module_command
from dataflow.runtime.watchdog import PAGE_NBYTES
from dataflow.transport.generated import control_pb2 as pb

PR_SET_CHILD_SUBREAPER = 36


def deploy(*modules: str, bundle: bytes = b"") -> pb.Deploy:
    graph = {"operators": [{"kind": f"{name}:Operator"} for name in modules], "elements": []}
    return pb.Deploy(plan_json=json.dumps({"graph": graph}).encode(), bundle=bundle)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def signals(pid: int, which: str) -> int:
    (line,) = [each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith(which)]
    return int(line.split()[1], 16)


@dataclass
class Agent:
    """What an agent does with job processes.

    Args:
        folder: for them.
        spawner: starts them.
        printed: what they have printed.
    """

    folder: Path
    spawner: Spawner
    printed: list[bytes] = field(default_factory=list)

    async def fail(self, told: pb.Deploy) -> None:
        """Try to start a process, which cannot be."""
        with open(os.devnull) as nothing, pytest.raises(OSError, match=r"none left|has died"):
            await self.spawner.spawn(told, [], (nothing.fileno(),) * 3)

    async def start(self, told: pb.Deploy) -> tuple[Spawned, socket.socket]:
        """Start a process; returns it and the agent's end of their connection."""
        ours, theirs = socket.socketpair()
        memory = os.memfd_create("board")
        os.ftruncate(memory, PAGE_NBYTES)
        reading, writing = os.pipe()
        arguments = ["--parent", str(os.getpid()), "--folder", str(self.folder)]
        process = await self.spawner.spawn(told, arguments, (theirs.fileno(), memory, writing))
        theirs.close()
        for descriptor in (memory, writing):
            os.close(descriptor)
        self._reading = reading
        assert os.getsid(process.pid) == process.pid
        while "job_process" not in title(process.pid):
            await asyncio.sleep(0.01)
        return process, ours

    def end(self, process: Spawned, ours: socket.socket) -> int:
        """Hang up, upon which a process leaves; its exit status."""
        ours.close()
        while data := os.read(self._reading, 4096):
            self.printed.append(data)
        os.close(self._reading)
        status = process.wait()
        self.spawner.reap()
        return status

    @property
    def server(self) -> int:
        """Id of the fork server."""
        (found,) = [pid for pid in children(os.getpid()) if "dataflow.runtime.fork_server" in title(pid)]
        return found


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[[Callable[[Agent], Awaitable[None]]], None]]:
    async def whole(scene: Callable[[Agent], Awaitable[None]]) -> None:
        agent = Agent(tmp_path, Spawner())
        try:
            await scene(agent)
        finally:
            agent.spawner.close()

    yield lambda scene: asyncio.run(whole(scene))
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def test_forks_are_children_of_the_agent_with_a_name_and_a_session_of_their_own_and_no_descriptor_more(
    play: Callable[[Callable[[Agent], Awaitable[None]]], None], tmp_path: Path
) -> None:
    async def scene(agent: Agent) -> None:
        held = []
        for number in range(3):
            process, ours = await agent.start(deploy("json"))
            assert parent(process.pid) == os.getpid()
            command = " ".join(module_command("dataflow.runtime.job_process"))
            assert title(process.pid).startswith(f"{command} --parent {os.getpid()} --folder {tmp_path} ")
            assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
            assert not signals(process.pid, "SigBlk")
            if number == 2:
                os.kill(agent.server, signal.SIGKILL)  # job processes live without it, and the next ones get another
                process.send_signal(signal.SIGTERM)
                assert agent.end(process, ours) == -signal.SIGTERM
            else:
                assert agent.end(process, ours) == 0
                held.append(len(os.listdir(f"/proc/{agent.server}/fd")))
                assert children(agent.server) == []
        assert held[0] == held[1]
        assert agent.end(*await agent.start(deploy())) == 0
        assert children(os.getpid()) == [agent.server]
        assert b"".join(agent.printed) == b""

    play(scene)


def test_fork_begins_as_a_new_program_where_what_was_imported_would_be_wrong(
    play: Callable[[Callable[[Agent], Awaitable[None]]], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_ahead.py").write_text("print('imported')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w") as bundle:
        bundle.writestr("imported_ahead.py", "")

    def forked(process: Spawned) -> bool:
        return title(process.pid).endswith("  ")  # its command line is as long as the server's

    async def scene(agent: Agent) -> None:
        ways, servers = [], []
        for told in (deploy("imported_ahead"), deploy("imported_ahead", bundle=archive.getvalue()), deploy()):
            process, ours = await agent.start(told)
            ways.append(forked(process))
            servers.append(agent.server)
            assert agent.end(process, ours) == 0
        (tmp_path / "imported_ahead.py").write_text("print('changed')\n")
        os.utime(tmp_path / "imported_ahead.py", ns=(1, 1))
        for _ in range(2):
            process, ours = await agent.start(deploy())
            ways.append(forked(process))
            assert agent.end(process, ours) == 0
        servers.append(agent.server)
        assert ways == [True, False, True, False, True]
        assert servers[0] == servers[1] == servers[2] != servers[3]

    play(scene)


@pytest.mark.parametrize(
    ("source", "starts", "imports"),
    [
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()", 2, 1),
        ("file = open(__file__)", 2, 1),
        ("import os\nos._exit(3)", 2, 1),
    ],
)
def test_job_is_a_new_program_where_a_module_cannot_be_imported_ahead(
    play: Callable[[Callable[[Agent], Awaitable[None]]], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    starts: int,
    imports: int,
) -> None:
    imported = tmp_path / "imported"
    (tmp_path / "unfit.py").write_text(f"with open({str(imported)!r}, 'a') as file:\n    file.write('.')\n{source}\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    async def scene(agent: Agent) -> None:
        for _ in range(starts):
            process, ours = await agent.start(deploy("unfit"))
            assert parent(process.pid) == os.getpid()
            assert not title(process.pid).endswith("  ")
            assert agent.end(process, ours) == 0
            assert children(os.getpid()) == []
        assert len(imported.read_text()) == imports

    play(scene)


def test_module_that_ends_the_program_when_imported_leaves_the_server_as_it_is(
    play: Callable[[Callable[[Agent], Awaitable[None]]], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exits.py").write_text("raise SystemExit(3)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    async def scene(agent: Agent) -> None:
        assert agent.end(*await agent.start(deploy("json"))) == 0
        server = agent.server
        assert agent.end(*await agent.start(deploy("exits"))) == 0
        assert agent.server == server

    play(scene)


def test_server_forks_jobs_of_the_topologies(play: Callable[[Callable[[Agent], Awaitable[None]]], None]) -> None:
    async def scene(agent: Agent) -> None:
        process, ours = await agent.start(deploy("ako_jobs.integers", "operators.compute", "operators.data"))
        assert title(process.pid).endswith("  ")
        assert agent.end(process, ours) == 0

    play(scene)


@pytest.fixture
def breaking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], pb.Deploy]:
    """Makes deployments with a module that breaks something in the server which imports it."""

    def make(source: str) -> pb.Deploy:
        (tmp_path / "breaks.py").write_text(f"import os, time\n{source}\n")
        return deploy("breaks")

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return make


def test_fork_that_no_agent_has_heard_of_is_no_job_process(
    play: Callable[[Callable[[Agent], Awaitable[None]]], None], breaking: Callable[[str], pb.Deploy]
) -> None:
    async def scene(agent: Agent) -> None:
        process, ours = await agent.start(breaking("os.waitpid = lambda *_: os._exit(1)  # forked, and not told"))
        while others := [pid for pid in children(os.getpid()) if pid != process.pid and title(pid)]:
            assert not any(" --parent " in title(pid) for pid in others)
            await asyncio.sleep(0.01)
        assert agent.end(process, ours) == 0
        assert children(os.getpid()) == []

    play(scene)


def test_module_whose_import_takes_too_long_is_left_to_the_jobs_that_need_it_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Spawner):
        """One whose fork servers say that they import a module, and then nothing more."""

        servers: ClassVar[list[socket.socket]] = []

        def _start(self) -> socket.socket:
            self._asking, server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._asking.setblocking(False)
            server.send(json.dumps({"imports": "slow"}).encode())
            self.servers.append(server)
            return self._asking

        def _end_server(self) -> None:
            super()._end_server()
            for server in self.servers:
                server.close()

    monkeypatch.setattr("dataflow.runtime.spawning.PATIENCE_S", 0.01)

    async def scene() -> None:
        agent = Agent(tmp_path, Slow())
        for _ in range(2):
            assert agent.end(*await agent.start(deploy("json", "slow"))) == 0
        assert len(Slow.servers) == 1
        agent.spawner.close()

    asyncio.run(scene())


def test_fork_has_its_session_before_the_agent_knows_of_it(
    play: Callable[[Callable[[Agent], Awaitable[None]]], None], breaking: Callable[[str], pb.Deploy]
) -> None:
    async def scene(agent: Agent) -> None:
        told = breaking("setsid = os.setsid\nos.setsid = lambda: (time.sleep(0.3), setsid())")
        assert agent.end(*await agent.start(told)) == 0

    play(scene)


@pytest.mark.parametrize("call", ["write", "fork"])
def test_fork_that_fails_leaves_one_server_with_no_descriptor_more(
    play: Callable[[Callable[[Agent], Awaitable[None]]], None], breaking: Callable[[str], pb.Deploy], call: str
) -> None:
    async def scene(agent: Agent) -> None:
        assert agent.end(*await agent.start(deploy("json"))) == 0
        told = breaking(f"def fails(*_): raise OSError('none left')\nos.{call} = fails")
        server, held = agent.server, len(os.listdir(f"/proc/{agent.server}/fd"))
        for _ in range(2):
            await agent.fail(told)
            assert agent.server == server
            assert children(server) == []
            for pid in children(os.getpid()):
                if pid != server:
                    os.waitpid(pid, 0)
        for _ in range(100):  # it answers first, and then closes what it was sent
            if len(os.listdir(f"/proc/{server}/fd")) != held:
                await asyncio.sleep(0.02)
        assert len(os.listdir(f"/proc/{server}/fd")) == held

    play(scene)


def test_bundle_that_is_no_archive_is_for_the_job_process_to_refuse(
    play: Callable[[Callable[[Agent], Awaitable[None]]], None],
) -> None:
    async def scene(agent: Agent) -> None:
        assert agent.end(*await agent.start(deploy(bundle=b"rubbish"))) == 0

    play(scene)


def test_server_ends_with_its_agent() -> None:
    script = (
        "import asyncio, os\n"
        "from dataflow.runtime.spawning import Spawner\n"
        "from dataflow.transport.generated import control_pb2 as pb\n"
        "spawner = Spawner()\n"
        "spawner._start()\n"
        "print(spawner._server.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    reading, writing = os.pipe()
    agent = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", script],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, writing, 1), (os.POSIX_SPAWN_CLOSE, reading)],
    )
    os.close(writing)
    os.waitpid(agent, 0)
    with os.fdopen(reading) as said:
        server = int(said.readline())
        assert said.read() == ""  # the server has the pipe, too, so this waits for its end
    assert not Path(f"/proc/{server}/cmdline").exists() or not title(server)
