"""Nodes that come to a job while it runs."""

from __future__ import annotations

from typing import Any

import pytest

from dataflow.engine import coordination as co
from dataflow.engine.arriving import open_places
from dataflow.engine.coordinator import JobCoordinator
from dataflow.engine.draining import objection
from dataflow.engine.job_life import JobState
from dataflow.engine.membership import Life, Members
from dataflow.plan.job import StopRules
from dataflow.reports import NodeStatistics

NAMES = ("a", "b", "(free 2)", "(free 3)")


def address(node: int) -> str:
    return f"127.0.0.1:{node}"


def running(rules: StopRules | None = None, **options: Any) -> JobCoordinator:
    job = JobCoordinator(4, rules or StopRules(), vacant=(2, 3), **options)
    commands = job.handle(co.Placed(NAMES), 0.0)
    assert [command for command in commands if isinstance(command, co.Deploy)] == [co.Deploy(0), co.Deploy(1)]
    members = Members(1, {0: 0, 1: 0}, {0: address(0), 1: address(1)})
    assert job.handle(co.NodePrepared(0, address(0)), 0.0) == []
    assert job.handle(co.NodePrepared(1, address(1)), 0.0) == [co.Connect(0, members), co.Connect(1, members)]
    assert open_places(job.nodes, 0.0) == ()
    job.handle(co.NodeReady(0), 0.0)
    commands = job.handle(co.NodeReady(1), 0.0)
    assert commands[:3] == [co.ChangeState(JobState.RUNNING), co.Start(0), co.Start(1)]
    return job


def joined(job: JobCoordinator, node: int, name: str, now: float) -> None:
    assert any(isinstance(command, co.Deploy) for command in job.handle(co.NodeArrived(node, name), now))
    job.handle(co.NodePrepared(node, address(node)), now)
    job.handle(co.NodeReady(node), now)
    assert job.nodes[node].life is Life.ALIVE


def ended(node: int) -> co.NodeEnded:
    return co.NodeEnded(node, NodeStatistics(node))


def test_node_that_comes_joins_like_one_that_comes_back_and_the_others_hear_of_it_once_it_listens() -> None:
    job = running()
    assert open_places(job.nodes, 1.0) == (2, 3)
    assert job.handle(co.NodeArrived(2, "c"), 1.0)[:2] == [
        co.ChangeNode(2, Life.JOINING, 1, 1, "c has come"),
        co.Deploy(2, 1),
    ]
    assert open_places(job.nodes, 1.0) == (3,)
    members = Members(2, {0: 0, 1: 0, 2: 1}, {node: address(node) for node in range(3)})
    assert job.handle(co.NodePrepared(2, address(2)), 2.0) == [
        co.ChangeNode(2, Life.ALIVE, 1, 2),
        *(co.Connect(node, members) for node in range(3)),
    ]
    assert job.handle(co.NodeReady(2), 3.0) == [co.Start(2)]
    for node in (0, 1):
        job.handle(ended(node), 4.0)
    assert job.handle(ended(2), 4.0) == [co.CloseNodes((0, 1, 2)), co.Finish(JobState.FINISHED, "", "epochs")]


@pytest.mark.parametrize(
    "end",
    [
        [co.NodeFailed(2, "no data here", "source")],
        [co.NodeExited(2, "its job process ended by SIGKILL")],
        [co.NodeStalled(2, "it stands still")],
    ],
)
def test_newcomer_that_cannot_prepare_is_given_up_and_the_job_goes_on(end: list[co.Event]) -> None:
    job = running()
    job.handle(co.NodeArrived(2, "c"), 1.0)
    for event in [*end, co.NodeExited(2, "it is gone")]:
        job.handle(event, 2.0)
    assert job.nodes[2].life is Life.GONE
    assert job.state is JobState.RUNNING
    assert job.handle(co.Tick(), 1000.0) == []
    assert open_places(job.nodes, 2.0) == (3, 2)


def test_newcomer_that_is_lost_while_it_prepares_prepares_again_once_it_is_back() -> None:
    job = running()
    job.handle(co.NodeArrived(2, "c"), 1.0)
    assert job.handle(co.NodeLost(2), 2.0)[0] == co.ChangeNode(2, Life.AWAY, 1, 1, "it was lost: its agent was lost")
    job.handle(co.NodeExited(2, "by SIGKILL"), 2.0)
    assert open_places(job.nodes, 2.0) == (3,)
    assert open_places(job.nodes, 12.0) == (3, 2)
    assert co.Deploy(2, 2) in job.handle(co.NodeBack(2), 13.0)
    job.handle(co.NodePrepared(2, address(2)), 14.0)
    assert job.nodes.members().incarnations == {0: 0, 1: 0, 2: 2}


def test_newcomer_that_has_failed_and_is_lost_then_is_given_up() -> None:
    job = running()
    job.handle(co.NodeArrived(2, "c"), 1.0)
    job.handle(co.NodeFailed(2, "no data here", "source"), 2.0)
    assert job.nodes[2].life is Life.DYING
    job.handle(co.NodeLost(2), 2.0)
    assert job.nodes[2].life is Life.GONE
    assert job.handle(co.NodeBack(2), 3.0) == []


def test_newcomer_that_is_not_ready_in_time_is_given_up() -> None:
    job = running()
    job.handle(co.NodeArrived(2, "c"), 1.0)
    assert job.handle(co.Tick(), 602.0)[0] == co.KillNodes((2,))
    job.handle(co.NodeExited(2, "by SIGKILL"), 603.0)
    assert job.nodes[2].life is Life.GONE
    assert job.state is JobState.RUNNING


def test_newcomer_that_dies_once_it_is_a_member_is_started_again_like_any_other() -> None:
    job = running()
    joined(job, 2, "c", 1.0)
    job.handle(co.NodeExited(2, "it crashed"), 2.0)
    assert co.Deploy(2, 2) in job.handle(co.Tick(), 10.0)


def test_place_of_a_node_that_left_or_was_given_up_or_stays_away_is_open() -> None:
    job = running()
    joined(job, 2, "c", 0.5)
    joined(job, 3, "d", 0.5)
    assert open_places(job.nodes, 1.0) == ()
    job.handle(co.DrainAsked(1), 1.0)
    job.handle(ended(1), 1.0)
    assert open_places(job.nodes, 1.0) == (1,)
    job.handle(co.NodeLost(2), 2.0)
    assert open_places(job.nodes, 2.0) == (1,)
    assert open_places(job.nodes, 12.0) == (1, 2)
    assert job.handle(co.NodeArrived(1, "e"), 12.0)[:2] == [
        co.ChangeNode(1, Life.JOINING, 1, 5, "e has come in the place of b"),
        co.Deploy(1, 1),
    ]
    assert job.handle(co.NodeArrived(2, "f"), 12.0)[1] == co.Deploy(2, 2)
    assert job.handle(co.NodeBack(2), 13.0) == []
    job.handle(co.NodePrepared(1, address(1)), 14.0)
    assert job.nodes[1].leaves_since is None
    assert job.handle(co.DrainAsked(1), 15.0) == []
    assert job.handle(co.NodeReady(1), 15.0) == [co.Start(1), co.Leave(1)]


@pytest.mark.parametrize("how", [co.CancelAsked(), co.Tick(), ended(0)])
def test_nobody_joins_a_job_that_is_ending(how: co.Event) -> None:
    job = running(StopRules(time_s=5.0))
    job.handle(how, 20.0)
    assert not any(isinstance(command, co.Deploy) for command in job.handle(co.NodeArrived(2, "c"), 20.0))


def test_vacant_places_do_not_count_as_nodes_that_are_missing() -> None:
    job = running(min_nodes=2)
    joined(job, 2, "c", 1.0)
    job.handle(co.DrainAsked(0), 2.0)
    job.handle(ended(0), 2.0)
    assert job.state is JobState.RUNNING
    names = ["a", "b", "c", "(free 3)"]
    assert objection(job.nodes, 1, names, {"worker": range(4)}).startswith("min_nodes=2, and without it 1 would be")
    job.handle(co.NodeLost(2), 3.0)
    job.handle(co.Tick(), 13.0)
    assert job.state is JobState.FAILED


def test_needed_places_are_never_open() -> None:
    job = JobCoordinator(3, StopRules(), vacant=(1,), needed=(2,))
    job.handle(co.Placed(("a", "(free 1)", "s")), 0.0)
    for event in (co.NodePrepared(0, address(0)), co.NodePrepared(2, address(2)), co.NodeReady(0), co.NodeReady(2)):
        job.handle(event, 0.0)
    job.handle(co.NodeLost(2), 1.0)
    assert open_places(job.nodes, 10.0) == (1,)
    names = ["a", "(free 1)", "s"]
    wait = "wait until the job is over, or cancel it"
    objected = objection(job.nodes, 0, names, {"worker": (0, 1), "server": (2,)})
    assert objected == f"it would be left without any worker; {wait}"


def test_places_of_nodes_that_are_never_started_again_are_not_open() -> None:
    job = running(irreplaceable=(1,))
    joined(job, 2, "c", 1.0)
    job.handle(co.NodeExited(1, "by SIGKILL"), 2.0)
    assert job.nodes[1].life is Life.GONE
    assert open_places(job.nodes, 2.0) == (3,)
    assert job.handle(co.NodeArrived(1, "d"), 3.0) == []


def test_node_that_has_come_to_a_tree_leaves_it_alone_as_the_first_ones_do() -> None:
    job = running(adjusted=(0, 1))
    joined(job, 2, "c", 1.0)
    job.handle(co.DrainAsked(1), 2.0)
    assert job.why_not_drained(2).startswith("b leaves")
    job.handle(ended(1), 3.0)
    assert job.why_not_drained(2) == ""
    job.handle(co.DrainAsked(2), 4.0)
    assert job.why_not_drained(0).startswith("c leaves")
