from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dataflow.engine.coordinator import Deadlines
from dataflow.errors import ConfigError, MasterError
from dataflow.graph.logical import LogicalGraph
from dataflow.message import Tick
from dataflow.operators_api import Emissions, EndOfData, Operator
from dataflow.plan.job import JobSpec
from dataflow.runtime.agent_session import AgentSession
from dataflow.runtime.bundle import Bundle
from dataflow.runtime.dispatcher import PAST_S, Dispatcher
from dataflow.runtime.store import Store
from dataflow.transport.generated import control_pb2 as pb

EMPTY = Bundle("", b"")


class Idle(Operator):
    source = True

    def process(self, tick: Tick) -> Emissions:
        yield EndOfData()


class ManualClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return 1000.0 + self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


class World:
    def __init__(self, folder: Path) -> None:
        self.clock, self.store = ManualClock(), Store(folder)
        self.dispatcher = Dispatcher(self.store, self.clock, Deadlines(), lost_after_s=5.0)

    def attach(self, name: str) -> AgentSession:
        return self.dispatcher.attach(pb.Hello(name=name, host="127.0.0.1", cores=2, tasks=1))

    def submit(self, operation: str, nodes: int = 1) -> str:
        graph = LogicalGraph(name="idle").with_role("worker").with_operator("source", Idle(), role="worker")
        spec = JobSpec(name="job", graph=graph, nodes=nodes)
        return self.dispatcher.submit(operation, spec.model_dump_json().encode(), EMPTY)

    def say(self, session: AgentSession, job: str, **message: object) -> None:
        said = pb.FromProcess(job=job, message=pb.ProcessMessage(**message))  # type: ignore[arg-type]
        self.dispatcher.heard(session, pb.AgentMessage(from_process=said))

    def state(self, job: str) -> tuple[str, str]:
        status = self.store.job(job).status
        return status.state, status.reason


def play(folder: Path, scene: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        world = World(folder)
        await scene(world)
        world.store.close()

    asyncio.run(whole())


async def heard(session: AgentSession) -> tuple[str | None, str]:
    message = await session.next()
    return (None, "") if message is None else (message.job, str(message.WhichOneof("body")))


def test_job_is_placed_deployed_started_and_its_node_is_free_again_when_the_process_is_gone(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        job = world.submit("op")
        assert world.state(job) == ("PENDING", "needs 1 node, 0 attached")
        session = world.attach("node-0")
        assert world.state(job)[0] == "DEPLOYING"
        assert await heard(session) == (job, "deploy")
        world.say(session, job, prepared=pb.Prepared(address="127.0.0.1:1"))
        assert await heard(session) == (job, "connect")
        world.say(session, job, ready=pb.Ready())
        assert await heard(session) == (job, "start")
        world.clock.now_s = 2.0
        world.say(session, job, report=pb.OperatorReport(port="a.b", fields_json=b'{"x": 1}'))
        world.say(session, job, ended=pb.Ended())
        assert world.state(job) == ("FINISHED", "")
        assert await heard(session) == (job, "kill")
        waiting = world.submit("next")
        assert world.state(waiting) == ("PENDING", "needs 1 node, 1 attached, 1 busy")
        world.dispatcher.heard(session, pb.AgentMessage(exited=pb.ProcessExited(job=job, status=0)))
        assert await heard(session) == (waiting, "deploy")
        events = world.store.events(job, 0)
        assert [event.elapsed_s for event in events if event.WhichOneof("body") == "report"] == [2.0]

    play(tmp_path, scene)


def test_report_that_cannot_be_read_and_artifact_with_a_bad_name_fail_the_job(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        first, second = world.attach("a"), world.attach("b")
        one, two = world.submit("one"), world.submit("two")
        world.say(first, one, report=pb.OperatorReport(port="a.b", fields_json=b"[]"))
        world.say(second, two, artifact=pb.ArtifactChunk(name="../up", data=b"x", last=True))
        assert world.state(one)[0] == world.state(two)[0] == "FAILED"
        assert "node a: a report's fields" in world.state(one)[1]
        assert "node b: an artifact has a bad name" in world.state(two)[1]

    play(tmp_path, scene)


def test_artifact_that_cannot_be_kept_fails_the_job_and_its_rest_is_dropped(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        session = world.attach("a")
        job = world.submit("one")
        part = tmp_path / "artifacts" / f"{job}.0.part"
        part.mkdir(parents=True)
        world.say(session, job, artifact=pb.ArtifactChunk(name="model", data=b"1"))
        part.rmdir()
        world.say(session, job, artifact=pb.ArtifactChunk(name="model", data=b"2", last=True))
        state, reason = world.state(job)
        assert state == "FAILED"
        assert "node a: cannot keep an artifact" in reason
        assert list(world.store.artifacts(job)) == []

    play(tmp_path, scene)


def test_agent_cannot_speak_for_a_job_that_is_not_on_it(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.attach("a")
        stranger = world.attach("b")
        job = world.submit("one")
        world.say(stranger, job, failed=pb.Failed(text="no"))
        lines = pb.LogLines(job=job, lines=[pb.LogLine(text="no")])
        world.dispatcher.heard(stranger, pb.AgentMessage(log_lines=lines))
        assert world.state(job)[0] == "DEPLOYING"
        assert world.store.log_lines(job, 0) == []

    play(tmp_path, scene)


def test_measurements_of_a_job_are_the_newest_few_and_go_some_time_after_it_is_over(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        session = world.attach("node-0")
        job = world.submit("op")
        assert world.dispatcher.measured() == []
        world.say(session, job, prepared=pb.Prepared(address="127.0.0.1:1"))
        world.say(session, job, ready=pb.Ready())
        for steps in range(1, 6):
            world.clock.now_s += 1.0
            world.say(session, job, statistics=pb.NodeStatistics(steps=steps))
        (measured,) = world.dispatcher.measured()
        assert (measured.id, measured.name, measured.node_names) == (job, "job", ("node-0",))
        assert [each.steps for each in measured.told[0]] == [2, 3, 4, 5]
        world.say(session, job, ended=pb.Ended(statistics=pb.NodeStatistics(steps=6)))
        world.dispatcher.heard(session, pb.AgentMessage(exited=pb.ProcessExited(job=job, status=0)))
        assert world.dispatcher.run(job) is None
        world.clock.now_s += PAST_S - 1.0
        assert [each.told[0][-1].steps for each in world.dispatcher.measured()] == [6]
        world.clock.now_s += 1.0
        assert world.dispatcher.measured() == []

    play(tmp_path, scene)


def test_nodes_are_taken_in_the_order_of_their_names(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        for name in ("node-10", "node-2", "node-1"):
            world.attach(name)
        job = world.submit("one", nodes=3)
        assert list(world.store.job(job).status.node_names) == ["node-1", "node-2", "node-10"]

    play(tmp_path, scene)


def test_agent_is_lost_once_nobody_receives_from_it_or_it_was_silent_too_long() -> None:
    session = AgentSession(pb.Hello(name="a", tasks=1), now=0.0)
    assert not session.lost(5.0, after_s=5.0)
    assert session.lost(5.1, after_s=5.0)
    session.seen_s = 7.0
    assert not session.lost(12.0, after_s=5.0)
    assert session.lost(12.1, after_s=5.0)
    session.seen_s = 30.0
    assert not session.lost(30.0, after_s=5.0)
    assert session.lost(30.1, after_s=5.0)


def test_agent_is_seen_when_another_node_says_that_it_has_received_more(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        left, right = world.attach("node-0"), world.attach("node-1")
        job = world.submit("one", nodes=2)
        seen = []
        for now_s, nbytes in ((1.0, 100), (2.0, 100), (3.0, 140)):
            world.clock.now_s = now_s
            world.say(left, job, statistics=pb.NodeStatistics(received_nbytes={1: nbytes}))
            seen.append((left.seen_s, right.seen_s))
        assert seen == [(0.0, 1.0), (0.0, 1.0), (0.0, 2.0)]
        assert right.heard_s == 0.0

    play(tmp_path, scene)


def test_agent_that_falls_silent_is_lost_but_not_if_the_master_itself_stood_still(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        session = world.attach("a")
        job = world.submit("one")
        sweeping = asyncio.create_task(world.dispatcher.sweep())
        await asyncio.sleep(0)
        world.clock.now_s += 60.0  # all of it between two looks at the clock
        await asyncio.sleep(0.6)
        assert world.state(job)[0] == "DEPLOYING"
        session.heard_s = session.seen_s = world.clock.now_s - 5.5
        while world.dispatcher.nodes():
            await asyncio.sleep(0.01)
        assert world.state(job) == ("FAILED", "node a: it was lost: no heartbeat for 5.5 s")
        sweeping.cancel()

    play(tmp_path, scene)


def test_second_agent_of_a_name_is_refused(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        first = world.attach("a")
        with pytest.raises(MasterError, match="attached already"):
            world.attach("a")
        world.dispatcher.detach(first, "gone")
        world.attach("a")

    play(tmp_path, scene)


@pytest.mark.parametrize("spec", [b"", b"{}", b'{"name": "x", "graph": {"name": "g"}, "nodes": 0}', b"\xff"])
def test_specification_that_is_not_valid_is_refused(tmp_path: Path, spec: bytes) -> None:
    async def scene(world: World) -> None:
        with pytest.raises(ConfigError, match="specification is not valid"):
            world.dispatcher.submit("op", spec, EMPTY)
        assert world.store.statuses() == []

    play(tmp_path, scene)
