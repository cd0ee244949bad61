"""Nodes that leave by request, and that join a job which runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataflow.engine.deadlines import Deadlines
from dataflow.errors import MasterError
from dataflow.runtime.dispatcher import Dispatcher
from dataflow.transport.encryption import KeyPair
from dataflow.transport.generated import control_pb2 as pb
from tests.unit.runtime.dispatching import World, exited, heard, held, on, play, start, told, two_running


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
        world.say(newcomer, job, 1, prepared=pb.Prepared(address="127.0.0.1:2"))
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
        world.say(heir, job, 1, prepared=pb.Prepared(address="127.0.0.1:1"))
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
