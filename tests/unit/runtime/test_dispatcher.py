"""What the master does as agents and job processes speak, end and fall silent."""

from __future__ import annotations

import asyncio
import re
import threading
import zlib
from pathlib import Path

import pytest

from dataflow.engine.checkpoints import encode
from dataflow.engine.events import Snapshot
from dataflow.errors import ConfigError, MasterError
from dataflow.runtime.agent_session import AgentSession
from dataflow.runtime.checkpoint_store import newest_whole
from dataflow.runtime.folders import LocalFolder
from dataflow.runtime.over_jobs import PAST_S
from dataflow.transport.generated import control_pb2 as pb
from tests.unit.runtime.dispatching import EMPTY, World, heard, held, play, start


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
        for number in range(4):
            assert world.state(job)[0] == "DEPLOYING"
            exited.start = number
            world.dispatcher.heard(right, pb.AgentMessage(exited=exited))
            world.dispatcher.heard(right, pb.AgentMessage(exited=exited))  # told twice, it counts once
            if number < 3:
                assert world.change(job, 1)[2].startswith(reason)
                world.wait(job, 10.0)
        state, why = world.state(job)
        assert state == "FAILED"
        assert why.startswith(f"node b (started again 3 times): {reason}")
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
        start(world, (left, right), job)
        world.say(right, job, failed=pb.Failed(text="it is too late", anew=True))
        world.dispatcher.heard(right, pb.AgentMessage(exited=pb.ProcessExited(job=job, status=-9)))
        assert world.state(job)[0] == "RUNNING"
        assert world.change(job, 1) == ("waiting", 0, "it is too late")
        world.wait(job, 5.0)
        assert world.change(job, 1)[:2] == ("joining", 1)

    play(tmp_path, scene)


def test_status_of_a_job_has_its_newest_warnings_and_its_events_all(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.attach("a", "x")
        job = world.submit("one")
        run = world.dispatcher.run(job)
        assert run is not None
        for number in range(25):
            world.clock.now_s = float(number)
            run.news.warn(f"checkpoint {number} is left out")
        world.restart()
        kept = [(each.wall_s, each.text) for each in world.store.job(job).status.warnings]
        assert kept == [(1000.0 + number, f"checkpoint {number} is left out") for number in range(5, 25)]
        events = [each.warning.text for each in world.store.events(job, 0) if each.HasField("warning")]
        assert len(events) == 25

    play(tmp_path, scene)


@pytest.mark.parametrize("restarted", [False, True])
def test_first_checkpoint_is_whole_without_a_node_that_catches_up(tmp_path: Path, restarted: bool) -> None:
    async def scene(world: World) -> None:
        left, right = world.attach("a", "life a"), world.attach("b", "life b")
        job = world.submit("one", nodes=2)
        start(world, (left, right), job)
        world.dispatcher.heard(right, pb.AgentMessage(exited=pb.ProcessExited(job=job, status=-9)))
        world.wait(job, 5.0)
        world.say(right, job, 1, prepared=pb.Prepared(address="127.0.0.1:3"))
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


def test_measurements_of_a_node_that_is_started_again_are_none_until_it_tells_anew(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        sessions = [world.attach(name) for name in ("node-0", "node-1")]
        job = world.submit("op", nodes=2)
        for number, session in enumerate(sessions):
            world.say(session, job, prepared=pb.Prepared(address=f"127.0.0.1:{number + 1}"))
        for session in sessions:
            world.say(session, job, ready=pb.Ready())
            world.say(session, job, statistics=pb.NodeStatistics(steps=7))
        assert [sorted(each.told) for each in world.dispatcher.measured()] == [[0, 1]]
        run = world.dispatcher.run(job)
        assert run is not None
        exited = pb.ProcessExited(job=job, status=-9, start=run.start_number(1))
        world.dispatcher.heard(sessions[1], pb.AgentMessage(exited=exited))
        assert [sorted(each.told) for each in world.dispatcher.measured()] == [[0]]
        world.wait(job, 30.0)
        assert run.status.changes[1].incarnation == 1
        assert [sorted(each.told) for each in world.dispatcher.measured()] == [[0]]
        world.say(sessions[1], job, start=1, statistics=pb.NodeStatistics(steps=2, incarnation=1))
        assert [each.told[1][-1].steps for each in world.dispatcher.measured()] == [2]

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
                run.news.statistics(pb.NodeStatistics(node=node, incarnation=of, steps=steps), final=False)
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
