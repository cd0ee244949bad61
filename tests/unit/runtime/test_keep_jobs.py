"""Which jobs a master removes that is to keep so many."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataflow.engine.deadlines import Deadlines
from dataflow.errors import MasterError
from dataflow.plan.job import JobSpec, Resume
from dataflow.runtime.agent_session import AgentSession
from dataflow.runtime.dispatcher import Dispatcher
from dataflow.transport.generated import control_pb2 as pb
from tests.unit.runtime.dispatching import EMPTY, World, play, start


def keep(world: World, keep_jobs: int | None) -> None:
    """Have a master take over that keeps so many jobs."""
    world.dispatcher = Dispatcher(world.store, world.clock, Deadlines(), lost_after_s=5.0, keep_jobs=keep_jobs)
    world.dispatcher.recover()


def end(world: World, session: AgentSession, job: str) -> None:
    """Have a job that waits for this agent alone run and finish, and its process be gone."""
    start(world, [session], job)
    world.say(session, job, artifact=pb.ArtifactChunk(name="model", data=b"x", last=True))
    world.dispatcher.heard(session, pb.AgentMessage(log_lines=pb.LogLines(job=job, lines=[pb.LogLine(text="line")])))
    world.say(session, job, ended=pb.Ended())
    world.clock.now_s += 1.0
    world.dispatcher.heard(session, pb.AgentMessage(exited=pb.ProcessExited(job=job, status=0)))


def kept(world: World) -> list[str]:
    return [status.job for status in world.store.statuses()]


def resuming(world: World, job: str, operation: str) -> str:
    """Submit a job that goes on from another."""
    spec = JobSpec.model_validate_json(world.store.job(world.submit(operation, nodes=9)).spec_json)
    again = spec.model_copy(update={"resume": Resume(job=job, number=1)})
    return world.dispatcher.submit(f"{operation} again", again.model_dump_json().encode(), EMPTY)


def test_of_the_jobs_that_are_over_the_newest_are_kept_and_of_others_nothing(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        keep(world, 2)
        session = world.attach("a")
        jobs = [world.submit(f"operation {number}") for number in range(4)]
        for job in jobs[:3]:
            (tmp_path / "checkpoints" / job / "1").mkdir(parents=True)
            end(world, session, job)
        assert kept(world) == jobs[1:]
        assert sorted(path.name for path in (tmp_path / "artifacts").iterdir()) == sorted(jobs[1:3])
        assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == sorted(jobs[1:3])
        for table in ("jobs", "events", "statistics", "logs", "decisions", "placements"):
            assert not world.store._database.read(f"SELECT job FROM {table} WHERE job = ?", jobs[0])
        with pytest.raises(MasterError, match="there is no such job"):
            world.store.find(jobs[0])

    play(tmp_path, scene)


def test_master_that_takes_over_removes_those_that_ended_first_and_unless_told_none(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        session = world.attach("a")
        last, *jobs = [world.submit(f"operation {number}") for number in range(4)]
        world.dispatcher.cancel(last)
        world.dispatcher.heard(session, pb.AgentMessage(exited=pb.ProcessExited(job=last, status=0)))
        for job in jobs:
            end(world, session, job)
        status = world.store.job(last).status
        status.ended_s = world.clock.wall()  # submitted first, and over last
        world.store.set_status(status)
        keep(world, None)
        assert kept(world) == [last, *jobs]
        keep(world, 2)
        assert kept(world) == [last, jobs[-1]]

    play(tmp_path, scene)


def test_job_that_another_goes_on_from_is_kept_until_that_is_over(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        keep(world, 1)
        session = world.attach("a")
        first, *others = [world.submit(f"operation {number}") for number in range(3)]
        end(world, session, first)
        again = resuming(world, first, "resumed")
        for job in others:
            end(world, session, job)
        assert first in kept(world)
        assert others[0] not in kept(world)
        world.dispatcher.cancel(again)
        assert first not in kept(world)
        with pytest.raises(MasterError, match="there is no such job"):
            resuming(world, first, "too late")

    play(tmp_path, scene)
