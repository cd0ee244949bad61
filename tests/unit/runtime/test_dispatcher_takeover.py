"""Masters that are killed, the ones that take over, and agents whose connection broke."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from dataflow.engine import coordination as co
from dataflow.engine.deadlines import Deadlines
from dataflow.errors import MasterError
from dataflow.plan.job import StopRules
from dataflow.runtime import dispatcher as dispatchers
from dataflow.runtime.dispatcher import Dispatcher
from dataflow.transport.generated import control_pb2 as pb
from tests.unit.runtime.dispatching import World, exited, held, on, play, start, told, two_running

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


def test_wall_clock_that_was_set_ends_no_job_by_time_once_the_master_is_started_again(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        session = world.attach("a", "x")
        job = world.submit("op", stop=StopRules(time_s=600.0))
        start(world, [session], job)
        world.clock.now_s, world.clock.set_by_s = 10.0, 7200.0
        world.restart()
        world.attach("a", "x", [held(job)])
        run = world.dispatcher.run(job)
        assert run is not None
        run.feed(co.Tick())
        assert not run.stopping

    play(tmp_path, scene)


def test_job_ran_for_as_long_as_the_clock_says_that_nobody_sets(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        session = world.attach("a", "x")
        job = world.submit("op")
        start(world, [session], job)
        world.clock.now_s, world.clock.set_by_s = 10.0, -7200.0
        world.say(session, job, ended=pb.Ended())
        (status,) = world.store.statuses()
        assert (status.state, status.ran_s) == ("FINISHED", 10.0)

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
        start(world, sessions, job)
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
        world.say(right, job, 1, prepared=pb.Prepared(address="127.0.0.1:2"))
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
