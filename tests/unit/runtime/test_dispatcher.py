from __future__ import annotations

import asyncio
import json
import re
import secrets
import threading
import zlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from dataflow.engine import coordination as co
from dataflow.engine.checkpoints import encode
from dataflow.engine.coordinator import Deadlines
from dataflow.engine.events import Snapshot
from dataflow.errors import ConfigError, MasterError
from dataflow.graph.logical import LogicalGraph
from dataflow.message import Tick
from dataflow.operators_api import Emissions, EndOfData, Operator
from dataflow.plan.job import JobSpec, StopRules
from dataflow.runtime import dispatcher as dispatchers
from dataflow.runtime.agent_session import AgentSession
from dataflow.runtime.bundle import Bundle
from dataflow.runtime.checkpoint_store import newest_whole
from dataflow.runtime.dispatcher import PAST_S, Dispatcher
from dataflow.runtime.folders import LocalFolder
from dataflow.runtime.store import Store
from dataflow.transport.encryption import KeyPair
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
        self.store.set_alive_s(self.clock.wall())
        self.dispatcher = Dispatcher(self.store, self.clock, Deadlines(), lost_after_s=5.0)

    def attach(self, name: str, life: str = "", held: Sequence[pb.Held] = (), connection: int = 0) -> AgentSession:
        life = life or secrets.token_hex(4)
        hello = pb.Hello(name=name, host="127.0.0.1", cores=2, tasks=1, life=life, held=held, connection=connection)
        return self.dispatcher.attach(hello)

    def restart(self) -> None:
        """Kill the master, and have another one take over."""
        self.dispatcher = Dispatcher(self.store, self.clock, Deadlines(), lost_after_s=5.0)
        self.dispatcher.recover()

    def submit(
        self,
        operation: str,
        nodes: int = 1,
        stop: StopRules | None = None,
        min_nodes: int = 1,
        max_nodes: int | None = None,
    ) -> str:
        graph = LogicalGraph(name="idle").with_role("worker").with_operator("source", Idle(), role="worker")
        stop = stop or StopRules()
        spec = JobSpec(name="job", graph=graph, nodes=nodes, stop=stop, min_nodes=min_nodes, max_nodes=max_nodes)
        return self.dispatcher.submit(operation, spec.model_dump_json().encode(), EMPTY)

    def say(self, session: AgentSession, job: str, **message: object) -> None:
        said = pb.FromProcess(job=job, message=pb.ProcessMessage(**message))  # type: ignore[arg-type]
        self.dispatcher.heard(session, pb.AgentMessage(from_process=said))

    def wait(self, job: str, seconds: float) -> None:
        """Let time pass."""
        self.clock.now_s += seconds
        run = self.dispatcher.run(job)
        assert run is not None
        run.feed(co.Tick())

    def state(self, job: str) -> tuple[str, str]:
        status = self.store.job(job).status
        return status.state, status.reason

    def change(self, job: str, node: int) -> tuple[str, int, str]:
        """What has become of a node of a job: its life, how often it was started again, and why."""
        change = self.store.job(job).status.changes[node]
        return change.life, change.incarnation, change.reason


def play(folder: Path, scene: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        world = World(folder)
        await scene(world)
        world.store.close()

    asyncio.run(whole())


async def heard(session: AgentSession) -> tuple[str | None, str]:
    message = await session.next()
    return (None, "") if message is None else (message.job, str(message.WhichOneof("body")))


def test_drained_node_leaves_its_job_and_gets_no_more_before_its_agent_is_started_anew(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        sessions = [world.attach(f"node-{number}", life=f"life {number}") for number in range(2)]
        job = world.submit("op", nodes=2)
        for step in ({"prepared": pb.Prepared(address="127.0.0.1:1")}, {"ready": pb.Ready()}):
            for session in sessions:
                world.say(session, job, **step)
        assert [(await heard(sessions[1]))[1] for _ in range(3)] == ["deploy", "connect", "start"]
        world.dispatcher.drain("node-1", "drain")
        world.dispatcher.drain("node-1", "again")
        assert await heard(sessions[1]) == (job, "leave")
        with pytest.raises(
            MasterError, match=r"node node-0 cannot leave job \w+ \(job\): it would be left without any"
        ):
            world.dispatcher.drain("node-0", "drain")
        with pytest.raises(MasterError, match=r"no such node \(got node-2\); one of: node-0, node-1"):
            world.dispatcher.drain("node-2", "drain")

        world.restart()
        held = [pb.Held(job=job, operation_id=f"{job}/{number}/0", node=number) for number in range(2)]
        sessions = [world.attach(f"node-{number}", f"life {number}", [held[number]]) for number in range(2)]
        assert [(await heard(sessions[1]))[1] for _ in range(3)] == ["connect", "start", "leave"]
        world.say(sessions[1], job, ended=pb.Ended(epoch=1))
        assert await heard(sessions[1]) == (job, "kill")
        assert world.change(job, 1) == ("left", 0, "it was drained")
        world.dispatcher.heard(sessions[1], pb.AgentMessage(exited=pb.ProcessExited(job=job, status=0)))
        assert [(node.job, node.drained) for node in world.dispatcher.nodes()] == [(job, False), ("", True)]

        waiting = world.submit("next")
        assert world.state(waiting) == ("PENDING", "needs 1 node, 1 attached, 1 busy")
        world.dispatcher.detach(sessions[1], "its connection broke")
        again = world.attach("node-1", "life 1", connection=2)
        assert world.state(waiting)[0] == "PENDING"
        world.dispatcher.detach(again, "it was ended")
        world.attach("node-1", "another life", connection=3)
        assert world.state(waiting)[0] == "DEPLOYING"
        world.dispatcher.drain("node-1", "again")  # by somebody who has not heard that this was done
        assert [(node.job, node.drained) for node in world.dispatcher.nodes()] == [(job, False), (waiting, False)]

    play(tmp_path, scene)


def test_node_can_be_drained_while_its_agent_is_away_and_gets_no_job_when_that_is_back(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        left, right = world.attach("a", "x"), world.attach("b", "y")
        free = world.attach("c", "z")
        job = world.submit("op", nodes=2)
        start(world, [left, right], job)
        world.dispatcher.drain("b", "drain")
        world.restart()
        world.dispatcher.drain("b", "drain")  # asked again by somebody whom the first master could not answer
        world.dispatcher.drain("c", "drain")
        left = world.attach("a", "x", [held(job)])
        right = world.attach("b", "y", [held(job, 1)])
        assert [each for each in await told(right) if each[1] == "leave"] == [(job, "leave")]
        world.say(right, job, ended=pb.Ended(epoch=1))
        world.dispatcher.heard(right, exited(job, 5))
        free = world.attach("c", "z")
        assert {node.name: (node.job, node.drained) for node in world.dispatcher.nodes()} == {
            "a": (job, False),
            "b": ("", True),
            "c": ("", True),
        }
        waiting = world.submit("next")
        assert world.state(waiting)[0] == "PENDING"
        world.dispatcher.detach(free, "its connection broke")
        world.attach("c", "another life")
        assert world.state(waiting)[0] == "DEPLOYING"

    play(tmp_path, scene)


def test_node_whose_machine_is_dead_is_waited_for_no_longer_once_it_is_drained(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        job, right = two_running(world)
        world.dispatcher.detach(right, "its connection broke")
        assert world.change(job, 1)[0] == "away"
        world.dispatcher.drain("b", "drain")
        assert world.change(job, 1) == ("left", 0, "it was drained")
        right = world.attach("b", "y", [held(job, 1)], connection=2)
        assert await told(right) == [(job, "kill")]

    play(tmp_path, scene)


def start(world: World, sessions: Sequence[AgentSession], job: str) -> None:
    for step in ({"prepared": pb.Prepared(address="127.0.0.1:1")}, {"ready": pb.Ready()}):
        for session in sessions:
            world.say(session, job, **step)


def on(world: World) -> dict[str, str]:
    return {node.name: node.job for node in world.dispatcher.nodes()}


def test_node_that_attaches_while_a_job_runs_joins_it_if_that_has_room(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        first, plain = world.attach("node-0", "life 0"), world.attach("plain")
        job = world.submit("op", max_nodes=2)
        other = world.submit("other")
        newcomer = world.attach("newcomer", "life 1")
        assert on(world) == {"node-0": job, "plain": other, "newcomer": ""}  # it is not known yet whether all goes well
        start(world, [first], job)
        start(world, [plain], other)
        assert on(world)["newcomer"] == job
        assert await heard(newcomer) == (job, "deploy")
        assert world.change(job, 1) == ("joining", 1, "newcomer has come")
        late = world.attach("late", "life 2")
        assert on(world)["late"] == ""

        world.restart()
        first = world.attach("node-0", "life 0", [pb.Held(job=job, operation_id=f"{job}/0/0", node=0)])
        newcomer = world.attach("newcomer", "life 1", [pb.Held(job=job, operation_id=f"{job}/1/0", node=1)])
        world.say(newcomer, job, prepared=pb.Prepared(address="127.0.0.1:2"))
        assert world.change(job, 1) == ("alive", 1, "")
        assert list(world.store.job(job).status.node_names) == ["node-0", "newcomer"]

        world.dispatcher.drain("newcomer", "drain")
        late = world.attach("late", "life 2", connection=2)
        world.say(newcomer, job, ended=pb.Ended(epoch=2))
        assert on(world)["late"] == ""  # the process of the one that leaves is still there
        exited = pb.ProcessExited(job=job, status=0)
        world.dispatcher.heard(newcomer, pb.AgentMessage(exited=exited))
        assert on(world) == {"node-0": job, "newcomer": "", "late": job}
        assert world.change(job, 1)[2] == "late has come in the place of newcomer"
        changes = [event.change for event in world.store.events(job, 0) if event.HasField("change")]
        named = [(change.life, change.name) for change in changes if change.node == 1]
        assert named[-2:] == [("left", "newcomer"), ("joining", "late")]
        assert world.dispatcher.nodes()[-1].name == "late"

        gone = pb.ProcessExited(job=job, status=1, start=1)
        world.dispatcher.heard(late, pb.AgentMessage(exited=gone))
        assert world.change(job, 1)[:2] == ("gone", 2)
        assert on(world)["late"] == ""  # what failed there once would fail again
        assert world.state(job)[0] == "RUNNING"

        world.dispatcher.detach(newcomer, "its connection broke")
        world.restart()
        world.attach("node-0", "life 0", [pb.Held(job=job, operation_id=f"{job}/0/0", node=0)], connection=2)
        world.attach("late", "life 2", connection=3)
        assert on(world)["late"] == ""  # which the next master knows, too
        assert world.change(job, 1)[:2] == ("gone", 2)
        assert world.state(job)[0] == "RUNNING"

    play(tmp_path, scene)


def test_newcomer_whose_connection_breaks_while_it_prepares_has_another_try_once_it_is_back(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        first = world.attach("first")
        job = world.submit("op", max_nodes=2)
        start(world, [first], job)
        newcomer = world.attach("newcomer", "its life")
        assert world.change(job, 1)[:2] == ("joining", 1)
        world.dispatcher.detach(newcomer, "its connection broke")
        assert world.change(job, 1)[:2] == ("away", 1)
        newcomer = world.attach("newcomer", "its life", [held(job, 1)], connection=1)
        assert [await heard(newcomer) for _ in range(2)] == [(job, "kill"), (job, "deploy")]
        world.dispatcher.heard(newcomer, pb.AgentMessage(exited=pb.ProcessExited(job=job, status=-9)))
        prepared = pb.ProcessMessage(prepared=pb.Prepared(address="127.0.0.1:2"))
        said = pb.FromProcess(job=job, start=1, message=prepared)
        world.dispatcher.heard(newcomer, pb.AgentMessage(from_process=said))
        assert world.change(job, 1)[:2] == ("alive", 2)

    play(tmp_path, scene)


def test_node_whose_place_was_taken_while_it_was_away_is_free_once_its_process_is_gone(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        first, away = world.attach("first"), world.attach("away", "its life")
        job = world.submit("op", nodes=2, max_nodes=2)
        start(world, [away, first], job)
        number = 0  # places are given in the order of names
        world.dispatcher.detach(away, "its connection broke")
        world.wait(job, 11.0)
        heir = world.attach("heir")
        assert on(world) == {"first": job, "heir": job}
        prepared = pb.ProcessMessage(prepared=pb.Prepared(address="127.0.0.1:1"))
        said = pb.FromProcess(job=job, start=1, message=prepared)
        world.dispatcher.heard(heir, pb.AgentMessage(from_process=said))
        assert world.change(job, number)[:2] == ("alive", 1)

        away = world.attach("away", "its life", [held(job, number)], connection=2)
        assert (await heard(away), on(world)["away"]) == ((job, "kill"), job)
        lines = pb.LogLines(job=job, lines=[pb.LogLine(text="last words")])
        world.dispatcher.heard(away, pb.AgentMessage(log_lines=lines))
        assert world.store.log_lines(job, 0) == []  # they are none of the heir's
        for _ in range(2):
            world.dispatcher.heard(away, pb.AgentMessage(heartbeat=pb.Heartbeat(progress={job: 7})))
            world.clock.now_s += 3.0
        assert world.change(job, number)[:2] == ("alive", 1)
        world.dispatcher.heard(away, pb.AgentMessage(exited=pb.ProcessExited(job=job, status=-9)))
        assert on(world) == {"first": job, "heir": job, "away": ""}
        assert world.change(job, number)[:2] == ("alive", 1)
        world.submit("next")
        assert on(world)["away"]

    play(tmp_path, scene)


def test_nodes_that_a_waiting_job_could_use_join_no_other(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        first = world.attach("node-0")
        job = world.submit("op", max_nodes=3)
        start(world, [first], job)
        larger = world.submit("larger", nodes=2)
        world.attach("node-1")
        assert on(world)["node-1"] == ""
        world.attach("node-2")
        assert on(world) == {"node-0": job, "node-1": larger, "node-2": larger}

    play(tmp_path, scene)


def test_node_on_another_machine_joins_no_job_that_does_not_encrypt_because_its_nodes_are_on_one(
    tmp_path: Path,
) -> None:
    async def scene(world: World) -> None:
        far = KeyPair(b"certificate", b"key")
        store, clock = world.store, world.clock
        world.dispatcher = Dispatcher(
            store, clock, Deadlines(), 5.0, lambda hosts: None if set(hosts) == {"127.0.0.1"} else far
        )
        first = world.attach("node-0")
        job = world.submit("op", max_nodes=3)
        start(world, [first], job)
        world.dispatcher.attach(pb.Hello(name="far", host="10.0.0.2", cores=1, tasks=1, life="far"))
        world.attach("near")
        assert on(world) == {"node-0": job, "far": "", "near": job}

    play(tmp_path, scene)


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


def test_artifact_that_the_disk_does_not_take_is_warned_of_and_the_job_goes_on(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        session = world.attach("a", "x")
        job = world.submit("one")
        part = tmp_path / "artifacts" / f"{job}.0.{zlib.crc32(b'model'):08x}.part"
        part.mkdir(parents=True)
        world.say(session, job, artifact=pb.ArtifactChunk(name="model", data=b"1"))
        part.rmdir()
        world.say(session, job, artifact=pb.ArtifactChunk(name="model", data=b"2", last=True))
        world.say(session, job, artifact=pb.ArtifactChunk(name="other", data=b"3", last=True))
        assert world.state(job)[0] == "DEPLOYING"
        assert [(name, path.read_bytes()) for name, path in world.store.artifacts(job)] == [("other", b"3")]
        ((_, line),) = world.store.log_lines(job, 0)
        assert re.match(r"warning: the master cannot keep an artifact.*got model.*goes on without it", line.text)
        world.say(session, job, prepared=pb.Prepared(address="127.0.0.1:1"))
        world.restart()
        session = world.attach("a", "x", [held(job)])
        world.say(session, job, ready=pb.Ready())
        world.say(session, job, ended=pb.Ended())
        assert world.state(job) == ("FINISHED", "artifacts that could not be kept: model")

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("exited", "reason"),
    [
        (pb.ProcessExited(status=3), "its job process ended with exit status 3"),
        (pb.ProcessExited(status=-11), "its job process ended by SIGSEGV"),
        (pb.ProcessExited(status=-9), "its job process ended by SIGKILL, perhaps by the kernel because memory ran out"),
        (pb.ProcessExited(status=124, reason="operator blur hangs"), "operator blur hangs"),
    ],
)
def test_process_that_ends_again_and_again_fails_its_job_and_says_how_and_whose_lines_tell_more(
    tmp_path: Path, exited: pb.ProcessExited, reason: str
) -> None:
    async def scene(world: World) -> None:
        left, right = world.attach("a"), world.attach("b")
        job = world.submit("one", nodes=2, min_nodes=2)
        for session in (left, right):
            lines = pb.LogLines(job=job, lines=[pb.LogLine(text=f"{session.name} {number}") for number in range(60)])
            world.dispatcher.heard(session, pb.AgentMessage(log_lines=lines))
        exited.job = job
        for start in range(4):
            assert world.state(job)[0] == "DEPLOYING"
            exited.start = start
            world.dispatcher.heard(right, pb.AgentMessage(exited=exited))
            world.dispatcher.heard(right, pb.AgentMessage(exited=exited))  # told twice, it counts once
            if start < 3:
                assert world.change(job, 1)[2].startswith(reason)
                world.wait(job, 10.0)
        state, why = world.state(job)
        assert state == "FAILED"
        assert why.startswith(f"node b (started again 3 times within 600 s): {reason}")
        assert world.store.job(job).status.failed_node == 1
        assert world.store.last_log_lines(job, 1, 50) == [f"b {number}" for number in range(10, 60)]

    play(tmp_path, scene)


def test_link_that_breaks_first_does_not_hide_the_node_that_failed(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        left, right = world.attach("a"), world.attach("b")
        job = world.submit("one", nodes=2)
        for session, address in ((left, "127.0.0.1:1"), (right, "127.0.0.1:2")):
            world.say(session, job, prepared=pb.Prepared(address=address))
        world.say(left, job, link_broken=pb.LinkBroken(peer=1, reason="the link to node b is lost"))
        world.say(right, job, failed=pb.Failed(text="no memory"))
        assert world.state(job) == ("FAILED", "node b: no memory")
        assert world.store.job(job).status.failed_node == 1

    play(tmp_path, scene)


def test_process_that_has_to_begin_anew_is_started_again_and_its_job_goes_on(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        left, right = world.attach("a"), world.attach("b")
        job = world.submit("one", nodes=2)
        for session, address in ((left, "127.0.0.1:1"), (right, "127.0.0.1:2")):
            world.say(session, job, prepared=pb.Prepared(address=address))
        for session in (left, right):
            world.say(session, job, ready=pb.Ready())
        world.say(right, job, failed=pb.Failed(text="it is too late", anew=True))
        world.dispatcher.heard(right, pb.AgentMessage(exited=pb.ProcessExited(job=job, status=-9)))
        assert world.state(job)[0] == "RUNNING"
        assert world.change(job, 1) == ("waiting", 0, "it is too late")
        world.wait(job, 5.0)
        assert world.change(job, 1)[:2] == ("joining", 1)

    play(tmp_path, scene)


@pytest.mark.parametrize("restarted", [False, True])
def test_first_checkpoint_is_whole_without_a_node_that_catches_up(tmp_path: Path, restarted: bool) -> None:
    async def scene(world: World) -> None:
        left, right = world.attach("a", "life a"), world.attach("b", "life b")
        job = world.submit("one", nodes=2)
        for session, address in ((left, "127.0.0.1:1"), (right, "127.0.0.1:2")):
            world.say(session, job, prepared=pb.Prepared(address=address))
        for session in (left, right):
            world.say(session, job, ready=pb.Ready())
        world.dispatcher.heard(right, pb.AgentMessage(exited=pb.ProcessExited(job=job, status=-9)))
        world.wait(job, 5.0)
        said = pb.ProcessMessage(prepared=pb.Prepared(address="127.0.0.1:3"))
        world.dispatcher.heard(right, pb.AgentMessage(from_process=pb.FromProcess(job=job, start=1, message=said)))
        assert world.change(job, 1)[:2] == ("alive", 1)
        run = world.dispatcher.run(job)
        assert run is not None
        if restarted:
            world.restart()
            run = world.dispatcher.run(job)
            assert run is not None
        data = encode(Snapshot(0, "a", ("worker",), 10, 10, {}, {}))
        run.checkpoint(0, pb.CheckpointChunk(number=10, data=data, last=True))
        run.close()
        for thread in threading.enumerate():
            if thread.name == "checkpoints":
                await asyncio.to_thread(thread.join, 30)
        assert newest_whole(LocalFolder(world.store.checkpoints / job))[0].number == 10

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


def test_last_statistics_of_an_incarnation_that_died_become_an_event_once_the_next_tells_some(tmp_path: Path) -> None:
    def told(world: World, job: str) -> list[tuple[int, int, int]]:
        events = [each.statistics for each in world.store.events(job, 0) if each.HasField("statistics")]
        return [(each.node, each.incarnation, each.steps) for each in events]

    async def scene(world: World) -> None:
        for name in ("a", "b"):
            world.attach(name)
        job = world.submit("op", nodes=2)
        for again in (False, True):
            if again:
                world.restart()
            run = world.dispatcher.run(job)
            assert run is not None
            incarnation = 2 * again
            for node, of, steps in ((1, 0, 9), (0, incarnation, 4), (0, incarnation, 5), (0, incarnation + 1, 3)):
                run.statistics(pb.NodeStatistics(node=node, incarnation=of, steps=steps), final=False)
        assert told(world, job) == [(0, 0, 5), (0, 1, 3), (0, 2, 5)]

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
        assert world.change(job, 0) == ("away", 0, "it was lost: no heartbeat for 5.5 s")
        sweeping.cancel()

    play(tmp_path, scene)


def held(job: str, node: int = 0, start: int = 0, exited: int = 0) -> pb.Held:
    return pb.Held(job=job, operation_id=f"{job}/{node}/{start}", node=node, exited=exited)


def exited(job: str, number: int, status: int = 0) -> pb.AgentMessage:
    return pb.AgentMessage(number=number, exited=pb.ProcessExited(job=job, status=status))


async def told(session: AgentSession) -> list[tuple[str, str]]:
    """All that an agent is told now, but for acknowledgements."""
    session.end()
    found = []
    while (message := await session.next()) is not None:
        found.append((message.job, str(message.WhichOneof("body"))))
    return [each for each in found if each[1] != "kept"]


DEPLOYED, CONNECTED, STARTED = "deploy", "connect", "start"


@pytest.mark.parametrize("reached", [DEPLOYED, CONNECTED, STARTED])
def test_next_master_goes_on_where_the_one_before_was_killed(tmp_path: Path, reached: str) -> None:
    async def scene(world: World) -> None:
        left, right = world.attach("a", "x"), world.attach("b", "y")
        job = world.submit("op", nodes=2)
        for node, session in enumerate((left, right)):
            if reached in (CONNECTED, STARTED):
                world.say(session, job, prepared=pb.Prepared(address=f"127.0.0.1:{node}"))
        for session in (left, right) if reached == STARTED else ():
            world.say(session, job, ready=pb.Ready())
        before = world.state(job)
        world.clock.now_s = 100.0
        world.restart()
        assert world.state(job) == before
        left = world.attach("a", "x", [held(job)])
        right = world.attach("b", "y", [held(job, 1)])
        assert world.state(job) == before
        expected = {
            DEPLOYED: [],
            CONNECTED: [(job, CONNECTED)],
            STARTED: [(job, CONNECTED), (job, STARTED)],
        }[reached]
        assert await told(left) == await told(right) == expected
        assert {node.name: node.job for node in world.dispatcher.nodes()} == {"a": job, "b": job}

    play(tmp_path, scene)


def test_elapsed_time_and_stop_rules_go_on_through_a_restart(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        session = world.attach("a", "x")
        stop = StopRules(report="v.r", target=0.9, hold=2)
        job = world.submit("op", stop=stop)
        world.say(session, job, prepared=pb.Prepared(address="127.0.0.1:1"))
        world.clock.now_s = 10.0
        world.say(session, job, ready=pb.Ready())
        world.say(session, job, report=pb.OperatorReport(port="v.r", fields_json=b'{"accuracy": 0.9}'))
        world.clock.now_s = 30.0
        world.restart()
        session = world.attach("a", "x", [held(job)])
        world.say(session, job, report=pb.OperatorReport(port="v.r", fields_json=b'{"accuracy": 0.95}'))
        assert await told(session) == [(job, CONNECTED), (job, STARTED), (job, "stop")]
        world.say(session, job, ended=pb.Ended())
        assert world.store.job(job).status.stopped_by == "target"
        assert world.store.events(job, 0)[-1].elapsed_s == 20.0
        (away,) = world.store.job(job).status.master_away
        assert (away.from_s, away.to_s) == (1000.0, 1030.0)

    play(tmp_path, scene)


def test_what_an_agent_says_twice_has_its_effect_once_also_at_another_master(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        session = world.attach("a", "x")
        job = world.submit("op")
        line = pb.LogLines(job=job, lines=[pb.LogLine(text="once")])
        for _ in range(2):
            world.dispatcher.heard(session, pb.AgentMessage(number=1, log_lines=line))
        world.restart()
        session = world.attach("a", "x", [held(job)])
        assert session.kept == 1
        world.dispatcher.heard(session, pb.AgentMessage(number=1, log_lines=line))
        assert [text.text for _, text in world.store.log_lines(job, 0)] == ["once"]
        world.restart()
        assert world.attach("a", "another life").kept == 0

    play(tmp_path, scene)


def test_agent_ends_what_it_holds_of_jobs_that_are_over_or_unknown_and_is_busy_until_then(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        session = world.attach("a", "x")
        job = world.submit("op")
        world.dispatcher.cancel(job)
        world.clock.now_s = 20.0
        world.restart()
        world.dispatcher.attach(pb.Hello(name="b", life="y"))
        session = world.attach("a", "x", [held("unknown")])
        waiting = world.submit("next", nodes=2)
        assert world.state(waiting) == ("PENDING", "needs 2 nodes, 2 attached, 1 busy")
        world.dispatcher.heard(session, pb.AgentMessage(number=9, exited=pb.ProcessExited(job="unknown")))
        assert world.state(waiting)[0] == "DEPLOYING"
        assert await told(session) == [("unknown", "kill"), (waiting, DEPLOYED)]

    play(tmp_path, scene)


@pytest.mark.parametrize("restarted", [True, False])
def test_node_is_free_though_its_agent_has_not_heard_that_the_end_of_its_process_is_known(
    tmp_path: Path, restarted: bool
) -> None:
    async def scene(world: World) -> None:
        session = world.attach("a", "x")
        job = world.submit("op")
        start(world, [session], job)
        world.say(session, job, ended=pb.Ended())
        world.dispatcher.heard(session, exited(job, 5))
        if restarted:
            world.restart()
        session = world.attach("a", "x", [held(job, exited=5)], connection=1)
        assert on(world) == {"a": ""}
        assert await told(session) == []
        next_job = world.submit("next")
        assert world.state(next_job)[0] == "DEPLOYING"

    play(tmp_path, scene)


def test_node_is_busy_until_the_end_of_its_process_that_was_not_heard_is_said_again(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        session = world.attach("a", "x")
        job = world.submit("op")
        start(world, [session], job)
        world.say(session, job, ended=pb.Ended())
        session = world.attach("a", "x", [held(job, exited=5)], connection=1)
        assert on(world) == {"a": job}
        world.dispatcher.heard(session, exited(job, 5))
        assert on(world) == {"a": ""}
        assert world.dispatcher.run(job) is None

    play(tmp_path, scene)


def test_job_is_over_though_the_agent_of_a_node_that_has_left_it_was_not_told_that_its_end_is_known(
    tmp_path: Path,
) -> None:
    async def scene(world: World) -> None:
        job, right = two_running(world)
        world.dispatcher.drain("b", "drain")
        world.say(right, job, ended=pb.Ended(epoch=1))
        world.dispatcher.heard(right, exited(job, 5))
        world.restart()
        left = world.attach("a", "x", [held(job)])
        world.attach("b", "y", [held(job, 1, exited=5)])
        world.say(left, job, ended=pb.Ended(epoch=1))
        world.dispatcher.heard(left, exited(job, 5))
        assert world.state(job)[0] == "FINISHED"
        assert world.dispatcher.run(job) is None

    play(tmp_path, scene)


def test_job_that_time_ends_is_over_though_nobody_says_anything_any_more(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.dispatcher = Dispatcher(world.store, world.clock, Deadlines(return_s=0.01), lost_after_s=5.0)
        session = world.attach("a")
        job = world.submit("op")
        world.dispatcher.detach(session, "its connection broke")
        assert world.state(job)[0] == "DEPLOYING"
        world.clock.now_s = 1.0
        while world.state(job)[0] == "DEPLOYING":
            await asyncio.sleep(0.01)
        assert world.state(job)[0] == "FAILED"
        assert world.dispatcher.run(job) is None

    play(tmp_path, scene)


def test_node_that_was_to_be_started_again_when_the_master_died_is_started_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatchers, "GRACE_S", 0.05)

    async def scene(world: World) -> None:
        session = world.attach("a", "x")
        job = world.submit("op")
        world.dispatcher.heard(session, exited(job, 5, status=-9))
        assert world.change(job, 0)[0] == "waiting"
        world.restart()
        session = world.attach("a", "x")
        world.clock.now_s = 60.0
        while world.change(job, 0)[0] == "waiting":
            await asyncio.sleep(0.01)
        assert await told(session) == [(job, DEPLOYED)]

    play(tmp_path, scene)


def test_deployment_that_no_agent_heard_of_is_sent_by_the_next_master(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.attach("a", "x")
        job = world.submit("op")
        world.restart()
        assert await told(world.attach("a", "x")) == [(job, DEPLOYED)]

    play(tmp_path, scene)


def test_node_whose_agent_was_restarted_starts_again_and_one_that_stays_away_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatchers, "GRACE_S", 0.05)

    async def scene(world: World) -> None:
        sessions = [world.attach("a", "x"), world.attach("b", "y"), world.attach("c", "z")]
        job = world.submit("one", nodes=3)
        for session in sessions:
            world.say(session, job, prepared=pb.Prepared(address="127.0.0.1:1"))
        for session in sessions:
            world.say(session, job, ready=pb.Ready())
        world.restart()
        again = world.attach("a", "another life")
        assert await told(again) == [(job, DEPLOYED)]
        assert world.change(job, 0) == ("joining", 1, "")
        world.attach("b", "y", [held(job, 1)])
        while not world.change(job, 2)[0]:
            await asyncio.sleep(0.01)
        reason = "it was lost: its agent did not come back within 0.05 s of the master's restart"
        assert world.change(job, 2) == ("away", 0, reason)
        assert world.state(job)[0] == "RUNNING"

    play(tmp_path, scene)


def two_running(world: World) -> tuple[str, AgentSession]:
    """A job that runs on nodes a and b, and the agent of the latter."""
    sessions = [world.attach("a", "x"), world.attach("b", "y")]
    job = world.submit("one", nodes=2)
    for session in sessions:
        world.say(session, job, prepared=pb.Prepared(address="127.0.0.1:1"))
    for session in sessions:
        world.say(session, job, ready=pb.Ready())
    return job, sessions[1]


@pytest.mark.parametrize("again", [True, False])
def test_node_that_was_being_killed_when_its_agent_and_the_master_died_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    monkeypatch.setattr(dispatchers, "GRACE_S", 0.05)

    async def scene(world: World) -> None:
        job, _ = two_running(world)
        run = world.dispatcher.run(job)
        assert run is not None
        run.feed(co.NodeStalled(1, "it did nothing"))
        world.restart()
        world.attach("a", "x", [held(job)])
        assert world.change(job, 1)[0] == "dying"
        if again:
            world.attach("b", "another life")
            assert world.change(job, 1) == ("joining", 1, "")
        else:
            while world.change(job, 1)[0] == "dying":
                await asyncio.sleep(0.01)
            assert world.change(job, 1) == ("away", 0, "it did nothing")

    play(tmp_path, scene)


def test_of_several_deployments_of_a_job_that_an_agent_holds_the_newest_counts(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        job, right = two_running(world)
        world.dispatcher.heard(right, pb.AgentMessage(exited=pb.ProcessExited(job=job, status=-9)))
        world.wait(job, 10.0)
        assert world.change(job, 1) == ("joining", 1, "")
        world.restart()
        right = world.attach("b", "y", [held(job, 1), held(job, 1, start=1)])
        assert await told(right) == []
        world.dispatcher.heard(
            right,
            pb.AgentMessage(
                from_process=pb.FromProcess(
                    job=job, start=1, message=pb.ProcessMessage(prepared=pb.Prepared(address="127.0.0.1:2"))
                )
            ),
        )
        assert world.change(job, 1) == ("alive", 1, "")

    play(tmp_path, scene)


def test_agent_that_notices_first_that_its_connection_broke_keeps_its_job_and_hears_all_again(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        first = world.attach("a", "x")
        job = world.submit("op")
        world.say(first, job, prepared=pb.Prepared(address="127.0.0.1:1"))
        second = world.attach("a", "x", [held(job)], connection=2)
        world.dispatcher.detach(first, "its connection broke")
        with pytest.raises(MasterError, match="attached already"):
            world.attach("a", "x", [held(job)], connection=1)
        world.say(first, job, failed=pb.Failed(text="too late"))
        assert world.state(job)[0] == "DEPLOYING"
        assert await told(second) == [(job, CONNECTED)]

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("fields", "durable"), [({"adjustment": 2, "stage": "ready"}, True), ({"accuracy": 0.9}, False)]
)
def test_report_that_others_wait_for_outlives_a_power_failure_and_no_other_costs_so_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, object], durable: bool
) -> None:
    async def scene(world: World) -> None:
        session = world.attach("a")
        job = world.submit("op")
        start(world, [session], job)
        asked: list[bool] = []
        transaction = world.store.transaction

        def noted(*, durable: bool) -> AbstractContextManager[None]:
            asked.append(durable)
            return transaction(durable=durable)

        monkeypatch.setattr(world.store, "transaction", noted)
        report = pb.OperatorReport(port="a.b", fields_json=json.dumps(fields).encode())
        said = pb.FromProcess(job=job, message=pb.ProcessMessage(report=report))
        world.dispatcher.heard(session, pb.AgentMessage(number=1, from_process=said))
        assert asked[0] is durable  # those inside of it are part of it

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
