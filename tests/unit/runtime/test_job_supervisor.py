"""An agent's hold on a job process that does not come to be, or says what no agent understands."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile

import pytest

from dataflow.clock import SystemClock
from dataflow.runtime.job_supervisor import JobSupervisor
from dataflow.runtime.process import CANNOT_START
from dataflow.runtime.spawning import Spawned, Spawner
from dataflow.transport.generated import control_pb2 as pb

NONSENSE = "import os, signal; os.write({control}, bytes([0, 0, 0, 1, 255])); signal.pause()"
"""A job process that says something of one byte, which is no message, and stays."""


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


def test_process_whose_messages_the_agent_cannot_read_is_ended_and_the_master_told_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Nonsense(Spawner):
        async def spawn(self, deploy: pb.Deploy, arguments: Sequence[str], descriptors: Sequence[int]) -> Spawned:
            program = [sys.executable, "-c", NONSENSE.format(control=descriptors[0])]
            os.set_inheritable(descriptors[0], True)
            return Spawned(os.posix_spawn(sys.executable, program, {}, setsid=True))

    said: list[pb.AgentMessage] = []

    async def say(message: pb.AgentMessage) -> None:
        said.append(message)

    async def scene() -> None:
        spawner = Nonsense()
        async with asyncio.timeout(60):
            await JobSupervisor("job", pb.Deploy(start=3), say, SystemClock(), spawner).run()
        spawner.close()

    asyncio.run(scene())
    (message,) = said
    assert (message.exited.job, message.exited.start, message.exited.status) == ("job", 3, -9)
    assert "cannot attend to it any more" in message.exited.reason
    assert "DecodeError" in capsys.readouterr().err
