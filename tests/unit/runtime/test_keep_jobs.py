"""Which jobs a master removes that is to keep so many."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from dataflow.engine.checkpoints import encode
from dataflow.engine.deadlines import Deadlines
from dataflow.engine.events import Snapshot
from dataflow.errors import MasterError
from dataflow.plan.job import JobSpec, Resume
from dataflow.runtime.agent_session import AgentSession
from dataflow.runtime.checkpoint_store import CheckpointStore
from dataflow.runtime.dispatcher import Dispatcher
from dataflow.runtime.resuming import newest_whole
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
        last = world.submit("needs more", nodes=2)
        session = world.attach("a")
        jobs = [world.submit(f"operation {number}") for number in range(3)]
        for job in jobs:
            end(world, session, job)
            world.clock.set_by_s -= 3600.0  # by somebody else
        world.dispatcher.cancel(last)  # submitted first, and over last
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


@pytest.mark.parametrize("again", [False, True], ids=["runs", "looks for a checkpoint"])
def test_job_is_kept_until_all_is_written_that_came_of_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    go_on, write = threading.Event(), CheckpointStore.write

    def late(store: CheckpointStore, *chunk: Any, **named: Any) -> None:
        go_on.wait(30)
        write(store, *chunk, **named)

    monkeypatch.setattr(CheckpointStore, "write", late)

    async def scene(world: World) -> None:
        keep(world, 1)
        session = world.attach("a")
        first, second = (world.submit(f"operation {number}") for number in range(2))
        start(world, [session], first)
        data = encode(Snapshot(0, "a", ("worker",), 10, 10, {}, {}))
        world.say(session, first, checkpoint=pb.CheckpointChunk(number=10, data=data, last=True))
        run = world.dispatcher.run(first)
        assert run is not None
        if again:
            run._look_for_checkpoint()
            await asyncio.sleep(0)
        world.dispatcher.cancel(first)
        world.dispatcher.heard(session, pb.AgentMessage(exited=pb.ProcessExited(job=first, status=0)))
        end(world, session, second)
        assert kept(world) == [first, second]
        go_on.set()
        async with asyncio.timeout(30):
            while not run.written:
                await asyncio.sleep(0.001)
        world.dispatcher.heard(session, pb.AgentMessage(heartbeat=pb.Heartbeat()))
        assert kept(world) == [second]
        assert not (world.store.checkpoints / first).exists()
        assert not world.store.events(first, 0)

    play(tmp_path, scene)


def test_job_that_is_removed_while_its_checkpoints_are_looked_through_is_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        session = world.attach("a")
        job = world.submit("operation")
        end(world, session, job)
        spec = JobSpec.model_validate_json(world.store.job(job).spec_json)
        again = spec.model_copy(update={"resume": Resume(job=job)})
        go_on = threading.Event()

        def late(*where: Any) -> Any:
            go_on.wait(30)
            return newest_whole(*where)

        monkeypatch.setattr("dataflow.runtime.resuming.newest_whole", late)
        choosing = asyncio.create_task(world.dispatcher.chosen(again.model_dump_json().encode(), EMPTY))
        await asyncio.sleep(0)
        world.store.remove(job)
        go_on.set()
        with pytest.raises(MasterError, match="there is no such job"):
            await choosing

    play(tmp_path, scene)


def test_job_that_ended_on_a_full_disk_and_what_it_went_on_from_are_kept_until_that_is_on_disk(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        keep(world, 1)
        session = world.attach("a")
        first, second, third = (world.submit(f"operation {number}") for number in range(3))
        end(world, session, first)
        again = resuming(world, first, "resumed")
        file = world.store._database._file
        (count,) = file.execute("PRAGMA main.page_count").fetchone()
        file.execute(f"PRAGMA main.max_page_count = {count}")
        while world.store.on_disk():
            world.store.add_log_lines("another job", [pb.LogLine(text="x" * 3000)])
        start(world, [session], second)
        world.dispatcher.cancel(second)
        world.dispatcher.heard(session, pb.AgentMessage(exited=pb.ProcessExited(job=second, status=0)))
        world.dispatcher.cancel(again)
        world.dispatcher.cancel(third)
        assert {first, second, again, third} <= set(kept(world))
        file.execute("PRAGMA main.max_page_count = 1000000")
        while not world.store.on_disk():
            world.store.set_alive_s(world.clock.wall())
        world.dispatcher.heard(session, pb.AgentMessage(heartbeat=pb.Heartbeat()))
        assert {first, second, again, third} & set(kept(world)) == {third}

    play(tmp_path, scene)
