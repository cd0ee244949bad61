"""Changes of a running job, as its coordinator decides: all nodes make one, or none does."""

from __future__ import annotations

import coordinating
import pytest

from dataflow.engine import coordination as co
from dataflow.engine.coordinator import JobCoordinator
from dataflow.engine.membership import Life
from dataflow.plan.job import StopRules
from dataflow.reports import NodeStatistics, OperatorReport


def running(nodes: int = 3, adjusted: tuple[int, ...] = (0, 1, 2)) -> JobCoordinator:
    """A job that runs, and can be changed."""
    return coordinating.running(nodes, adjusted=adjusted)


def says(node: int, number: int, stage: str, *, touched: bool = False, why: str = "") -> co.NodeReport:
    fields = {"adjustment": number, "stage": stage, "touched": touched, "why": why}
    return co.NodeReport(node, OperatorReport("absorb.adjusted", fields))


ASKED = [co.TellAdjustment(2, "asked"), co.AdjustNodes((0, 1, 2), 2, "prepare", "star")]


def test_change_is_made_once_all_nodes_are_ready_and_told_with_the_longest_pauses() -> None:
    job = running()
    assert job.handle(co.AdjustAsked("a", "star"), 11.0) == ASKED
    assert [job.handle(says(node, 2, "ready"), 11.0) for node in (2, 0)] == [[], []]
    assert job.handle(says(1, 2, "ready"), 11.0) == [co.AdjustNodes((0, 1, 2), 2, "make")]
    assert job.handle(says(0, 2, "begun", touched=True), 12.0) == [co.TellAdjustment(2, "begun")]
    assert job.handle(says(1, 2, "begun", touched=True), 12.0) == []
    assert job.handle(says(2, 2, "begun"), 12.5) == []
    assert job.handle(says(2, 2, "settled"), 12.625) == []
    assert job.handle(says(0, 2, "settled"), 12.25) == []
    assert job.handle(says(1, 2, "settled"), 13.0) == [co.TellAdjustment(2, "settled", "", (0, 1), 1.0, 0.125)]
    assert job.why_not_adjusted() == ""


def test_change_that_a_node_refuses_is_dropped_and_the_next_has_another_number() -> None:
    job = running()
    job.handle(co.AdjustAsked("a", "star"), 11.0)
    job.handle(says(0, 2, "ready"), 11.0)
    dropped = [co.AdjustNodes((0, 1, 2), 2, "drop"), co.TellAdjustment(2, "dropped", "n1: it is through")]
    assert job.handle(says(1, 2, "refused", why="it is through"), 11.0) == dropped
    assert job.handle(says(2, 2, "ready"), 11.0) == []
    assert job.handle(co.AdjustAsked("b", "star"), 12.0) == [
        co.TellAdjustment(3, "asked"),
        co.AdjustNodes((0, 1, 2), 3, "prepare", "star"),
    ]


def test_change_is_dropped_if_a_node_ends_before_it_has_answered() -> None:
    job = running()
    job.handle(co.AdjustAsked("a", "star"), 11.0)
    commands = job.handle(co.NodeEnded(1, NodeStatistics(1)), 12.0)
    assert commands[:2] == [co.AdjustNodes((0, 1, 2), 2, "drop"), co.TellAdjustment(2, "dropped", "n1 is through")]


def test_change_that_is_being_prepared_is_dropped_when_the_job_is_cancelled() -> None:
    job = running()
    job.handle(co.AdjustAsked("a", "star"), 11.0)
    job.handle(says(0, 2, "ready"), 11.0)
    commands = job.handle(co.CancelAsked(), 11.5)
    assert commands[:2] == [co.AdjustNodes((0, 1, 2), 2, "drop"), co.TellAdjustment(2, "dropped", "cancelled")]
    assert co.StopNodes((0, 1, 2), "cancel") in commands


def test_change_that_is_being_prepared_is_dropped_before_nodes_hear_of_a_death() -> None:
    job = running()
    job.handle(co.AdjustAsked("a", "star"), 11.0)
    commands = job.handle(co.NodeExited(2, "by SIGKILL"), 11.5)
    told = [type(each) for each in commands if isinstance(each, co.AdjustNodes | co.Connect)]
    assert told == [co.AdjustNodes, co.Connect, co.Connect]


def test_change_that_is_asked_for_again_by_the_same_operation_is_the_same_one() -> None:
    job = running()
    job.handle(co.AdjustAsked("a", "star"), 11.0)
    assert job.adjusting.is_known("a")
    assert job.handle(co.AdjustAsked("a", "star"), 11.0) == []
    assert job.adjusting.newest == 2


def test_change_is_not_made_while_another_is_under_way() -> None:
    job = running()
    job.handle(co.AdjustAsked("a", "star"), 11.0)
    assert job.why_not_adjusted() == "a change is under way already"
    assert job.handle(co.AdjustAsked("b", "chain"), 11.0) == []


@pytest.mark.parametrize("event", [co.NodeExited(1, "by SIGKILL"), co.NodeEnded(1, NodeStatistics(1))])
def test_change_is_not_made_of_a_job_one_of_whose_nodes_is_not_there(event: co.Event) -> None:
    job = running()
    job.handle(event, 11.0)
    assert "n1" in job.why_not_adjusted()


def test_change_is_not_made_of_a_tree_that_a_node_has_left_which_is_not_said_to_leave() -> None:
    job = running()
    job.handle(co.DrainAsked(1), 11.0)
    assert job.why_not_adjusted() == "n1 leaves"
    job.handle(co.NodeEnded(1, NodeStatistics(1)), 12.0)
    assert job.nodes[1].life is Life.LEFT
    assert job.why_not_adjusted() == "it is without n1, and of a tree that lacks a node nothing is changed any more"


def test_change_is_not_made_of_a_job_that_has_nothing_to_change_or_does_not_run() -> None:
    assert running(adjusted=()).why_not_adjusted() == "nothing of this job can be changed while it runs"
    assert JobCoordinator(3, StopRules(), adjusted=(0, 1, 2)).why_not_adjusted() == "the job is SUBMITTED"


def test_planned_change_is_followed_as_nodes_begin_it() -> None:
    job = running(2, (0, 1))
    assert job.handle(says(0, 1, "begun", touched=True), 11.0) == [co.TellAdjustment(1, "begun")]
    assert job.why_not_adjusted() == "a change is under way already"
    job.handle(says(0, 1, "settled"), 11.5)
    job.handle(says(1, 1, "begun"), 12.0)
    assert job.handle(says(1, 1, "settled"), 12.0) == [co.TellAdjustment(1, "settled", "", (0,), 0.5, 0.0)]


def test_change_is_not_made_while_a_node_leaves() -> None:
    job = running()
    job.handle(co.DrainAsked(2), 11.0)
    assert job.why_not_adjusted() == "n2 leaves"


def test_node_leaves_only_once_another_has_left_and_no_change_is_under_way() -> None:
    job = running()
    assert job.why_not_drained(1) == ""
    job.handle(co.DrainAsked(2), 11.0)
    assert job.why_not_drained(1).startswith("n2 leaves")
    assert job.why_not_drained(2) == ""
    job.handle(co.NodeEnded(2, NodeStatistics(2)), 12.0)
    assert job.why_not_drained(1) == ""
    job = running()
    job.handle(co.AdjustAsked("a", "star"), 11.0)
    assert job.why_not_drained(1).startswith("a change of the running job is under way")
    job = running(adjusted=())
    job.handle(co.DrainAsked(2), 11.0)
    assert job.why_not_drained(1) == ""


def test_node_that_dies_is_not_waited_for() -> None:
    job = running()
    job.handle(co.AdjustAsked("a", "star"), 11.0)
    for node in range(3):
        job.handle(says(node, 2, "ready"), 11.0)
    for node in range(2):
        job.handle(says(node, 2, "begun"), 12.0)
        job.handle(says(node, 2, "settled"), 12.0)
    commands = job.handle(co.NodeExited(2, "by SIGKILL"), 13.0)
    assert co.TellAdjustment(2, "settled") in commands
