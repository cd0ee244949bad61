"""An agent's hold on a job process that does not come to be, or says what no agent understands."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile

import pytest

from dataflow.clock import SystemClock
from dataflow.runtime import job_supervisor
from dataflow.runtime.job_supervisor import JobSupervisor
from dataflow.runtime.process import CANNOT_START
from dataflow.runtime.spawning import Spawned, Spawner
from dataflow.transport.generated import control_pb2 as pb

NONSENSE = "import os, signal; os.write({control}, bytes([0, 0, 0, 1, 255])); signal.pause()"
"""A job process that says something of one byte, which is no message, and stays."""


HANGS = """
import faulthandler, os, signal, time
os.dup2({printed}, 2)
faulthandler.register(signal.SIGUSR1, all_threads=True)
def open_for_ever():
    print("opens", file=os.fdopen({printed}, "w"), flush=True)
    time.sleep(1000)
open_for_ever()
"""
"""A job process that never gets ready."""


@pytest.mark.parametrize(("started", "late_s", "tells"), [(False, 0.0, True), (False, 60.0, False), (True, 0.0, False)])
def test_process_that_is_ended_long_before_it_is_ready_says_what_it_was_at(
    monkeypatch: pytest.MonkeyPatch, started: bool, late_s: float, tells: bool
) -> None:
    monkeypatch.setattr(job_supervisor, "LATE_S", late_s)

    class Hanging(Spawner):
        async def spawn(self, deploy: pb.Deploy, arguments: Sequence[str], descriptors: Sequence[int]) -> Spawned:
            program = [sys.executable, "-c", HANGS.format(printed=descriptors[2])]
            os.set_inheritable(descriptors[2], True)
            return Spawned(os.posix_spawn(sys.executable, program, {}, setsid=True))

    lines: list[str] = []
    opens = asyncio.Event()

    async def say(message: pb.AgentMessage) -> None:
        lines.extend(line.text for line in message.log_lines.lines)
        if "opens" in lines:
            opens.set()

    async def scene() -> None:
        spawner = Hanging()
        supervisor = JobSupervisor("job", pb.Deploy(), say, SystemClock(), spawner)
        if started:
            supervisor.tell(pb.ProcessCommand(start=pb.Start()))
        async with asyncio.timeout(60):
            ended = asyncio.create_task(supervisor.run())
            await opens.wait()
            supervisor.kill(0.0)
            await ended
        spawner.close()

    asyncio.run(scene())
    assert any("in open_for_ever" in line for line in lines) == tells


@pytest.mark.parametrize("error", [OSError("no process more"), BadZipFile("no archive"), KeyError("graph")])
def test_master_is_told_whatever_keeps_a_process_from_being_started(error: Exception) -> None:
    folders = []

    class Failing(Spawner):
        async def spawn(self, deploy: pb.Deploy, arguments: Sequence[str], descriptors: Sequence[int]) -> Spawned:
            folders.append(Path(arguments[arguments.index("--folder") + 1]))
            raise error

    said: list[pb.AgentMessage] = []

    async def say(message: pb.AgentMessage) -> None:
        said.append(message)

    async def scene() -> None:
        spawner = Failing()
        await JobSupervisor("job", pb.Deploy(start=3), say, SystemClock(), spawner).run()
        # So that it goes even if the agent is killed.
        assert [folder.parent for folder in folders] == [spawner.scratch.path]
        spawner.close()

    asyncio.run(scene())
    assert not folders[0].parent.exists()
    (message,) = said
    assert (message.exited.job, message.exited.start, message.exited.status) == ("job", 3, CANNOT_START)
    assert str(error) in message.exited.reason


def said_of(make: type[Spawner]) -> list[pb.AgentMessage]:
    """What the master is told of a job process, number 3 of its node, until it is gone."""
    said: list[pb.AgentMessage] = []

    async def say(message: pb.AgentMessage) -> None:
        said.append(message)

    async def scene() -> None:
        spawner = make()
        async with asyncio.timeout(60):
            await JobSupervisor("job", pb.Deploy(start=3), say, SystemClock(), spawner).run()
        spawner.close()

    asyncio.run(scene())
    return said


def test_process_that_the_agent_cannot_attend_to_is_ended_and_the_master_told_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Hanging(Spawner):
        async def spawn(self, deploy: pb.Deploy, arguments: Sequence[str], descriptors: Sequence[int]) -> Spawned:
            return Spawned(os.posix_spawn(sys.executable, [sys.executable, "-c", "input()"], {}, setsid=True))

    async def open_connection(**_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    (message,) = said_of(Hanging)
    assert (message.exited.start, message.exited.status) == (3, -signal.SIGKILL)
    assert "its agent cannot attend to it any more: [Errno 24] Too many open files" in message.exited.reason


def test_process_whose_messages_the_agent_cannot_read_is_ended_and_the_master_told_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Nonsense(Spawner):
        async def spawn(self, deploy: pb.Deploy, arguments: Sequence[str], descriptors: Sequence[int]) -> Spawned:
            program = [sys.executable, "-c", NONSENSE.format(control=descriptors[0])]
            os.set_inheritable(descriptors[0], True)
            return Spawned(os.posix_spawn(sys.executable, program, {}, setsid=True))

    (message,) = said_of(Nonsense)
    assert (message.exited.job, message.exited.start, message.exited.status) == ("job", 3, -9)
    assert "cannot attend to it any more" in message.exited.reason
    assert "DecodeError" in capsys.readouterr().err
