"""A master whose disk is full: what it tells of, and what is left when it is killed before there is room."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataflow.errors import MasterError
from dataflow.graph.logical import LogicalGraph
from dataflow.operators_api import Adjustment, Emissions
from dataflow.plan.job import JobSpec
from dataflow.runtime.agent_session import AgentSession
from dataflow.runtime.store import Store
from dataflow.transport.generated import control_pb2 as pb
from tests.unit.runtime.dispatching import EMPTY, Idle, World, exited, held, on, play, start, told


class Changing(Idle):
    def on_adjust(self, adjustment: Adjustment) -> Emissions:
        yield from ()


def fill(world: World) -> None:
    """Let the database have no more pages than it has, as a full disk would, and have the master notice."""
    file = world.store._database._file
    (count,) = file.execute("PRAGMA main.page_count").fetchone()
    file.execute(f"PRAGMA main.max_page_count = {count}")
    while world.store.on_disk():
        world.store.add_log_lines("another job", [pb.LogLine(text="x" * 3000)])


def make_room(world: World) -> None:
    world.store._database._file.execute("PRAGMA main.max_page_count = 1000000")
    while not world.store.on_disk():
        world.store.set_alive_s(world.clock.wall())


def kill(world: World, folder: Path) -> None:
    """Kill the master, make room, and have another one take over."""
    world.store.close()
    world.store = Store(folder)
    world.restart()


def tell(world: World, session: AgentSession, number: int, job: str, **message: object) -> None:
    said = pb.FromProcess(job=job, message=pb.ProcessMessage(**message))  # type: ignore[arg-type]
    world.dispatcher.heard(session, pb.AgentMessage(number=number, from_process=said))


async def acknowledged(world: World, session: AgentSession) -> pb.Kept:
    """What an agent is told in answer to a heartbeat, before all else."""
    world.dispatcher.heard(session, pb.AgentMessage(heartbeat=pb.Heartbeat()))
    message = await session.next()
    assert message is not None
    return message.kept


def test_next_master_is_told_again_what_the_one_before_could_not_keep_and_the_job_ends(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        left, right = world.attach("a", "x"), world.attach("b", "y")
        job = world.submit("op", nodes=2)
        start(world, [left, right], job)
        assert (await acknowledged(world, left)).number == 0
        for session in (left, right):
            tell(world, session, 1, job, statistics=pb.NodeStatistics())
        assert await acknowledged(world, left) == pb.Kept(number=1, heard=1)
        fill(world)
        for session in (left, right):
            tell(world, session, 2, job, ended=pb.Ended(epoch=1))
        assert world.state(job)[0] == "FINISHED"
        assert await acknowledged(world, left) == pb.Kept(number=1, heard=2)
        left = world.attach("a", "x", [held(job)], connection=1)  # whose agent now hears what may be forgotten
        assert (left.safe, left.kept) == (0, 2)

        kill(world, tmp_path)
        assert world.state(job)[0] == "RUNNING"
        left, right = world.attach("a", "x", [held(job)]), world.attach("b", "y", [held(job, 1)])
        assert (left.safe, left.kept) == (1, 1)
        for session in (left, right):
            tell(world, session, 2, job, ended=pb.Ended(epoch=1))
            world.dispatcher.heard(session, exited(job, 3))
        assert world.state(job)[0] == "FINISHED"
        assert world.dispatcher.run(job) is None

    play(tmp_path, scene)


def test_membership_is_told_of_once_it_is_on_the_disk_and_what_was_told_before_at_any_time(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        left, right = world.attach("a", "x"), world.attach("b", "y")
        job = world.submit("op", nodes=2)
        start(world, [left, right], job)
        assert [each for _, each in await told(left)] == ["deploy", "connect", "start"]
        fill(world)
        tell(world, left, 1, job, paused=pb.Paused(number=3))
        assert await told(left) == [(job, "connect")]
        world.dispatcher.heard(right, exited(job, 1, status=-9))
        assert world.change(job, 1)[0] == "waiting"
        assert await told(left) == []
        assert (await acknowledged(world, left)).heard == 1
        make_room(world)
        assert await told(left) == [(job, "connect")]
        assert (await acknowledged(world, right)).number == 1

    play(tmp_path, scene)


def test_message_that_waits_for_room_is_sent_once_there_is_some(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        session = world.attach("a", "x")
        fill(world)
        session.send(pb.MasterMessage(job="j", deploy=pb.Deploy()))
        session.send(pb.MasterMessage(job="j", kill=pb.Kill()))
        assert (await acknowledged(world, session)).heard == 0
        make_room(world)
        first, second = await session.next(), await session.next()
        assert first is not None
        assert second is not None
        assert (first.WhichOneof("body"), second.WhichOneof("body")) == ("deploy", "kill")

    play(tmp_path, scene)


def test_jobs_are_not_placed_and_drains_refused_until_there_is_room(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        session, _ = world.attach("a", "x"), world.attach("b", "y")
        job, waiting = world.submit("op"), world.submit("next", nodes=2)
        start(world, [session], job)
        fill(world)
        with pytest.raises(MasterError, match=r"cannot keep the request: its disk takes no more .*is full.*make room"):
            world.dispatcher.drain("b", "drain")
        assert [node.drained for node in world.dispatcher.nodes()] == [False, False]
        assert not world.store.is_drained("b", "y")
        with pytest.raises(MasterError, match=r"cannot keep the job: its disk takes no more \(.*is full\)"):
            world.submit("third")
        world.dispatcher.cancel(job)
        world.dispatcher.heard(session, exited(job, 1))
        assert world.state(job)[0] == "CANCELLED"
        assert world.dispatcher.run(job) is None
        assert (on(world), world.state(waiting)[0]) == ({"a": "", "b": ""}, "PENDING")
        make_room(world)
        await acknowledged(world, session)
        assert (on(world), world.state(waiting)[0]) == ({"a": waiting, "b": waiting}, "DEPLOYING")

    play(tmp_path, scene)


def test_change_of_a_running_job_is_refused_until_there_is_room(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        session = world.attach("a", "x")
        graph = LogicalGraph(name="changing").with_role("worker").with_operator("source", Changing(), role="worker")
        spec = JobSpec(name="job", graph=graph, nodes=1)
        job = world.dispatcher.submit("op", spec.model_dump_json().encode(), EMPTY)
        start(world, [session], job)
        await told(session)
        fill(world)
        with pytest.raises(MasterError, match=r"cannot keep the change: its disk takes no more \(.*is full\)"):
            world.dispatcher.adjust(job, "asked", "what")
        make_room(world)
        assert world.dispatcher.adjust(job, "asked", "what") == 2
        assert await told(session) == [(job, "adjust")]

    play(tmp_path, scene)
