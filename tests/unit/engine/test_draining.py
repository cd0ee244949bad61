"""A node that is asked to leave a job, which goes on."""

from __future__ import annotations

from typing import Any

import pytest

from dataflow.engine import coordination as co
from dataflow.engine.coordinator import JobCoordinator
from dataflow.engine.draining import DRAINED, objection
from dataflow.engine.job_life import JobState
from dataflow.engine.membership import Life, Members
from dataflow.plan.job import StopRules
from dataflow.reports import NodeStatistics

NAMES = ("a", "b", "c")
WORKERS = {"worker": (0, 1, 2)}


def address(node: int) -> str:
    return f"127.0.0.1:{node}"


def deploying(rules: StopRules | None = None, **options: Any) -> JobCoordinator:
    job = JobCoordinator(3, rules or StopRules(), **options)
    job.handle(co.Placed(NAMES), 0.0)
    return job


def running(rules: StopRules | None = None, **options: Any) -> JobCoordinator:
    job = deploying(rules, **options)
    for node in range(3):
        job.handle(co.NodePrepared(node, address(node)), 0.0)
    for node in range(3):
        job.handle(co.NodeReady(node), 0.0)
    assert job.state is JobState.RUNNING
    return job


def ended(node: int, epoch: int | None = None) -> co.NodeEnded:
    return co.NodeEnded(node, NodeStatistics(node), epoch)


def start_again(job: JobCoordinator, node: int, now: float) -> None:
    job.handle(co.Tick(), now)
    job.handle(co.NodePrepared(node, address(node)), now)
    job.handle(co.NodeReady(node), now)
    assert job.nodes[node].life is Life.ALIVE


def test_node_that_was_asked_is_a_member_until_it_has_ended_and_then_no_more() -> None:
    job = running()
    assert job.handle(co.DrainAsked(1), 1.0) == [co.Leave(1)]
    assert job.nodes.members().epoch == 1
    members = Members(2, {0: 0, 2: 0}, {0: address(0), 2: address(2)})
    assert job.handle(ended(1), 2.0) == [
        co.CloseNodes((1,)),
        co.ChangeNode(1, Life.LEFT, 0, 2, DRAINED),
        co.Connect(0, members),
        co.Connect(2, members),
    ]
    assert job.handle(co.NodeExited(1, "with exit status 0"), 3.0) == []
    assert job.handle(co.NodeBack(1), 4.0) == []
    job.handle(ended(0), 5.0)
    assert job.handle(ended(2), 5.0)[-1] == co.Finish(JobState.FINISHED, "", "epochs")


def test_node_that_is_asked_twice_is_told_once() -> None:
    job = running()
    assert job.handle(co.DrainAsked(1), 1.0) == [co.Leave(1)]
    assert job.handle(co.DrainAsked(1), 1.0) == []
    job.handle(ended(1), 2.0)
    assert job.handle(co.DrainAsked(1), 3.0) == []


def test_node_that_is_asked_before_the_job_runs_leaves_as_soon_as_it_does() -> None:
    job = deploying()
    assert job.handle(co.DrainAsked(2), 0.0) == []
    for node in range(3):
        job.handle(co.NodePrepared(node, address(node)), 0.0)
    commands = [command for node in range(3) for command in job.handle(co.NodeReady(node), 0.0)]
    assert commands == [co.ChangeState(JobState.RUNNING), co.Start(0), co.Start(1), co.Start(2), co.Leave(2)]
    assert job.handle(ended(2), 1.0)[0] == co.CloseNodes((2,))


def test_node_that_dies_while_it_leaves_is_not_started_again() -> None:
    job = running()
    job.handle(co.DrainAsked(1), 1.0)
    commands = job.handle(co.NodeExited(1, "its job process ended by SIGKILL"), 2.0)
    assert commands[0] == co.ChangeNode(1, Life.LEFT, 0, 2, "its job process ended by SIGKILL")
    assert job.handle(co.Tick(), 100.0) == []


@pytest.mark.parametrize("how", [co.NodeLost(1), co.NodeExited(1, "it crashed"), co.NodeStalled(1, "it stands still")])
def test_node_that_is_dead_leaves_at_once_and_is_not_started_again(how: co.Event) -> None:
    job = running()
    job.handle(how, 1.0)
    job.handle(co.DrainAsked(1), 1.0)
    job.handle(co.NodeExited(1, "it is gone"), 1.5)
    assert job.nodes[1].life is Life.LEFT
    assert not any(isinstance(command, co.Deploy) for command in job.handle(co.Tick(), 100.0))
    assert job.state is JobState.RUNNING


def test_node_that_prepares_to_come_back_is_killed_and_stays_away() -> None:
    job = running()
    job.handle(co.NodeExited(1, "it crashed"), 1.0)
    assert co.Deploy(1, 1) in job.handle(co.Tick(), 10.0)
    assert job.handle(co.DrainAsked(1), 10.0)[0] == co.KillNodes((1,))
    job.handle(co.NodeExited(1, "by SIGKILL"), 11.0)
    assert job.nodes[1].life is Life.LEFT


def test_node_that_has_ended_is_let_go_and_the_others_need_not_wait_for_it() -> None:
    job = running()
    job.handle(ended(1), 1.0)
    commands = job.handle(co.DrainAsked(1), 2.0)
    assert commands[0] == co.CloseNodes((1,))
    assert [command.node for command in commands if isinstance(command, co.Connect)] == [0, 2]
    assert job.nodes.members().incarnations == {0: 0, 2: 0}


def test_node_is_not_let_go_when_all_who_had_its_gradients_have_died_meanwhile() -> None:
    job = running()
    job.handle(co.DrainAsked(1), 1.0)
    for node in (0, 2):
        job.handle(co.NodeExited(node, "it crashed"), 2.0)
    start_again(job, 0, 10.0)
    finish = job.handle(ended(1), 11.0)[-1]
    assert isinstance(finish, co.Finish)
    assert finish.state is JobState.FAILED
    assert finish.reason == (
        "node b was drained, and meanwhile all others have died; ako resume goes on from its newest checkpoint"
    )


def test_node_that_leaves_a_job_that_is_ending_has_ended_if_all_others_have_died_meanwhile() -> None:
    job = running(StopRules(time_s=5.0))
    job.handle(co.DrainAsked(1), 1.0)
    assert job.handle(co.Tick(), 5.0)[0] == co.StopNodes((0, 1, 2), "time")
    for node in (0, 2):
        job.handle(co.NodeExited(node, "it crashed"), 5.1)
    assert job.handle(ended(1), 5.2)[-1] == co.Finish(JobState.FINISHED, "", "time")


def test_node_that_leaves_a_job_that_is_ending_has_ended_if_too_few_would() -> None:
    job = running(min_nodes=2)
    assert job.handle(co.DrainAsked(0), 1.0) == [co.Leave(0)]
    job.handle(ended(1, 1), 2.0)
    job.handle(co.NodeExited(2, "it crashed"), 2.1)
    assert job.handle(ended(0, 1), 2.2)[-1] == co.Finish(JobState.FINISHED, "", "epochs")


def test_those_that_end_behind_one_that_leaves_are_told_that_it_has_ended() -> None:
    """It says no end of what it does for all as the first node."""
    job = running(StopRules(time_s=5.0), min_nodes=3)
    job.handle(co.DrainAsked(0), 1.0)
    job.handle(co.Tick(), 5.0)
    told = Members(2, {1: 0, 2: 0}, {1: address(1), 2: address(2)}, frozenset({0}))
    assert job.handle(ended(0, 1), 5.1)[1:] == [co.Connect(1, told), co.Connect(2, told)]
    job = running()
    job.handle(co.DrainAsked(0), 1.0)
    job.handle(co.CancelAsked(), 5.0)
    assert job.handle(ended(0, 1), 5.1)[1:] == [co.Connect(1, told), co.Connect(2, told)]


def test_node_leaves_a_job_that_is_ending_if_enough_stay() -> None:
    job = running(StopRules(time_s=5.0), min_nodes=2)
    job.handle(co.DrainAsked(1), 1.0)
    job.handle(co.Tick(), 5.0)
    assert job.handle(ended(1, 1), 5.1)[1] == co.ChangeNode(1, Life.LEFT, 0, 2, DRAINED)
    job.handle(ended(0, 1), 5.2)
    assert job.handle(ended(2, 1), 5.3)[-1] == co.Finish(JobState.FINISHED, "", "time")


def test_node_is_let_go_while_one_who_was_there_all_the_time_still_is() -> None:
    job = running()
    job.handle(co.DrainAsked(1), 1.0)
    job.handle(co.NodeExited(2, "it crashed"), 2.0)
    assert job.handle(ended(1), 3.0)[0] == co.CloseNodes((1,))
    assert job.state is JobState.RUNNING


def test_drained_nodes_count_as_missing_when_others_die() -> None:
    job = running(min_nodes=2)
    job.handle(co.DrainAsked(1), 1.0)
    job.handle(ended(1), 2.0)
    assert job.state is JobState.RUNNING
    for now in (10.0, 20.0, 30.0):
        job.handle(co.NodeExited(2, "it crashed"), now)
        start_again(job, 2, now + 5.0)
    finish = job.handle(co.NodeExited(2, "it crashed"), 40.0)[-1]
    assert isinstance(finish, co.Finish)
    assert finish.reason.startswith("node c (started again 3 times): it crashed")


def test_cause_of_too_few_nodes_is_the_one_that_died_last_and_none_that_was_drained() -> None:
    job = running(min_nodes=2)
    job.handle(co.DrainAsked(0), 1.0)
    job.handle(ended(0), 1.0)
    job.handle(co.NodeLost(1, "no heartbeat for 2.0 s"), 2.0)
    finish = job.handle(co.Tick(), 12.0)[-1]
    assert finish == co.Finish(JobState.FAILED, "node b: it was lost: no heartbeat for 2.0 s", "", 1)


def test_cause_of_too_few_nodes_is_no_node_that_has_long_been_given_up() -> None:
    job = running(min_nodes=2)
    for now in (10.0, 20.0, 30.0):
        job.handle(co.NodeExited(0, "it crashed"), now)
        start_again(job, 0, now + 5.0)
    job.handle(co.NodeExited(0, "it crashed"), 40.0)
    assert (job.nodes[0].life, job.state) == (Life.GONE, JobState.RUNNING)
    job.handle(co.NodeLost(2), 50.0)
    finish = job.handle(co.Tick(), 60.0)[-1]
    assert finish == co.Finish(JobState.FAILED, "node c: it was lost: its agent was lost", "", 2)


def test_node_that_was_asked_before_the_job_ran_leaves_to_those_who_were_there_when_it_began() -> None:
    job = JobCoordinator(2, StopRules())
    job.handle(co.Placed(("a", "b")), 0.0)
    for node in range(2):
        job.handle(co.NodePrepared(node, address(node)), 0.0)
    job.handle(co.DrainAsked(0), 1.0)
    job.handle(co.NodeExited(1, "it crashed while connecting"), 2.0)
    start_again(job, 1, 5.0)
    job.handle(co.NodeReady(0), 5.0)
    assert job.nodes.members().epoch == 3
    assert job.state is JobState.RUNNING
    commands = job.handle(ended(0, 3), 6.0)
    assert commands[:2] == [co.CloseNodes((0,)), co.ChangeNode(0, Life.LEFT, 0, 4, DRAINED)]
    assert job.state is JobState.RUNNING


def test_record_of_the_events_brings_another_coordinator_to_the_same_decisions() -> None:
    events = [co.DrainAsked(1), co.NodeExited(2, "it crashed"), co.Tick(), ended(1, 2)]
    first, second = running(), running()
    for now, event in enumerate(events, 1):
        assert first.handle(event, 5.0 * now) == second.handle(event, 5.0 * now)
    assert first.nodes.members() == second.nodes.members()


def test_objections_say_what_is_missing_and_what_to_do() -> None:
    def why(job: JobCoordinator, node: int, roles: dict[str, tuple[int, ...]] = WORKERS) -> str:
        return objection(job.nodes, node, NAMES, roles)

    wait = "wait until the job is over, or cancel it"
    assert why(running(), 1) == ""
    assert why(running(min_nodes=3), 1) == (
        "min_nodes=3, and without it 2 would be there; attach another node that can take its place, or " + wait
    )
    servers = {"server": (0,), "worker": (1, 2)}
    assert why(running(needed=(0,)), 0, servers) == (
        "it holds a part of the model as server, which no other node has; " + wait
    )
    assert why(running(needed=(0,)), 1, servers) == ""
    assert why(running(needed=range(3), irreplaceable=range(3)), 1).startswith("a node of its tree cannot leave it")
    job = running(needed=(0,))
    job.handle(co.NodeExited(2, "it crashed"), 1.0)
    assert why(job, 1, servers) == "it would be left without any worker; c is not there; " + wait
    job.handle(co.Tick(), 10.0)
    assert job.nodes[2].life is Life.JOINING
    assert why(job, 1, servers)
    job = running(min_nodes=2)
    job.handle(co.DrainAsked(0), 1.0)
    assert why(job, 0) == ""
    assert why(job, 1).startswith("min_nodes=2, and without it 1 would be there")
    assert objection(deploying(min_nodes=2).nodes, 1, NAMES, WORKERS) == ""
