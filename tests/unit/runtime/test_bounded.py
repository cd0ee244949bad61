"""What a master and an agent hold in memory does not grow with the number of jobs that they have had."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dataflow.runtime import outbox as outboxes
from dataflow.runtime.outbox import Outbox
from dataflow.transport.generated import control_pb2 as pb
from tests.unit.runtime.dispatching import World, exited, heard, play, start


def test_master_holds_nothing_of_jobs_that_are_over_but_what_their_nodes_measured_lately(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        session = world.attach("a")
        for number in range(5):
            job = world.submit(f"operation {number}")
            lines = pb.LogLines(job=job, lines=[pb.LogLine(text="line")])
            world.dispatcher.heard(session, pb.AgentMessage(log_lines=lines))
            start(world, [session], job)
            while await heard(session) != (job, "start"):
                pass
            assert len(session._epochs) == len(world.store._log_nbytes) == 1
            world.say(session, job, ended=pb.Ended())
            world.dispatcher.heard(session, exited(job, 0))
            assert not world.store._log_nbytes
            assert world.dispatcher.run(job) is None

    play(tmp_path, scene)


def test_agent_knows_the_newest_deployments_and_all_that_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "KNOWN", 2)

    async def whole() -> None:
        outbox = Outbox()
        deployments = [pb.Held(job="j", operation_id=f"j/0/{number}") for number in range(9)]
        assert all(map(outbox.hold, deployments))
        assert not any(map(outbox.hold, deployments))
        outbox.attached(0, 0, 0.0)
        for each in deployments:
            await outbox.exited(each.operation_id, pb.AgentMessage(exited=pb.ProcessExited(job="j")))
        outbox.kept(len(deployments), len(deployments))
        assert not outbox.held()
        assert not outbox.hold(deployments[-1])
        assert len(outbox._seen) == 2

    asyncio.run(whole())
