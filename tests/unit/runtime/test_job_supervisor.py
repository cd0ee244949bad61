"""An agent's hold on a job process that does not come to be."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from zipfile import BadZipFile

import pytest

from dataflow.clock import SystemClock
from dataflow.runtime.job_supervisor import JobSupervisor
from dataflow.runtime.process import CANNOT_START
from dataflow.runtime.spawning import Spawned, Spawner
from dataflow.transport.generated import control_pb2 as pb


@pytest.mark.parametrize("error", [OSError("no process more"), BadZipFile("no archive"), KeyError("graph")])
def test_master_is_told_whatever_keeps_a_process_from_being_started(error: Exception) -> None:
    class Failing(Spawner):
        async def spawn(self, deploy: pb.Deploy, arguments: Sequence[str], descriptors: Sequence[int]) -> Spawned:
            raise error

    said: list[pb.AgentMessage] = []

    async def say(message: pb.AgentMessage) -> None:
        said.append(message)

    async def scene() -> None:
        await JobSupervisor("job", pb.Deploy(start=3), say, SystemClock(), Failing()).run()

    asyncio.run(scene())
    (message,) = said
    assert (message.exited.job, message.exited.start, message.exited.status) == ("job", 3, CANNOT_START)
    assert str(error) in message.exited.reason
