from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.engine import coordination as co
from dataflow.engine.coordinator import JobCoordinator
from dataflow.engine.job_life import ENDED, TRANSITIONS, JobState, transition_diagram
from dataflow.engine.membership import Life, Members
from dataflow.engine.scheduling import Placements, Waiting, place_jobs
from dataflow.plan.job import StopRules
from dataflow.reports import NodeStatistics, OperatorReport

NAMES = ("left", "right")
ADDRESSES = {0: "127.0.0.1:1", 1: "127.0.0.1:2"}


FIRST = Members(1, {0: 0, 1: 0}, ADDRESSES)


def deploying(rules: StopRules | None = None, **options: Any) -> JobCoordinator:
    job = JobCoordinator(2, rules or StopRules(), **options)
    assert job.handle(co.Placed(NAMES), 10.0) == [
        co.ChangeState(JobState.DEPLOYING),
        co.Deploy(0),
        co.Deploy(1),
        co.SetTimer(610.0),
    ]
    return job


def running(rules: StopRules | None = None, **options: Any) -> JobCoordinator:
    job = deploying(rules, **options)
    assert job.handle(co.NodePrepared(1, ADDRESSES[1]), 11.0) == []
    assert job.handle(co.NodePrepared(0, ADDRESSES[0]), 11.0) == [co.Connect(0, FIRST), co.Connect(1, FIRST)]
    assert job.handle(co.NodeReady(0), 12.0) == []
    commands = job.handle(co.NodeReady(1), 12.0)
    assert commands[:3] == [co.ChangeState(JobState.RUNNING), co.Start(0), co.Start(1)]
    return job


def ended(node: int) -> co.NodeEnded:
    return co.NodeEnded(node, NodeStatistics(node))


def report(value: Any, node: int = 0, port: str = "validate.results") -> co.NodeReport:
    return co.NodeReport(node, OperatorReport(port, {"accuracy": value}))


def test_start_waits_until_the_last_node_is_ready() -> None:
    assert running().state is JobState.RUNNING


def test_node_ready_twice_does_not_count_for_another() -> None:
    job = deploying()
    for node in (0, 1):
        job.handle(co.NodePrepared(node, ADDRESSES[node]), 11.0)
    job.handle(co.NodeReady(0), 12.0)
    assert job.handle(co.NodeReady(0), 12.0) == []
    assert job.state is JobState.DEPLOYING


def test_sources_that_run_out_finish_the_job_by_epochs() -> None:
    job = running()
    assert job.handle(ended(0), 20.0) == []
    finish = co.Finish(JobState.FINISHED, "", "epochs")
    assert job.handle(ended(1), 21.0) == [co.CloseNodes((0, 1)), finish]


def test_time_rule_stops_the_nodes_and_the_job_finishes_when_they_have_drained() -> None:
    job = running(StopRules(time_s=5.0))
    assert job.handle(co.Tick(), 16.9) == [co.SetTimer(17.0)]
    assert job.handle(co.Tick(), 17.0) == [co.StopNodes((0, 1), "time"), co.SetTimer(77.0)]
    assert job.state is JobState.RUNNING
    job.handle(ended(0), 18.0)
    assert job.handle(ended(1), 18.0)[-1] == co.Finish(JobState.FINISHED, "", "time")


def test_nodes_that_do_not_drain_are_killed_and_the_job_is_finished_all_the_same() -> None:
    job = running(StopRules(time_s=5.0))
    job.handle(co.Tick(), 17.0)
    job.handle(ended(0), 18.0)
    assert job.handle(co.Tick(), 77.0) == [
        co.KillNodes((0, 1)),
        co.Finish(JobState.FINISHED, "killed nodes that did not drain: right", "time"),
    ]


@pytest.mark.parametrize(
    ("rules", "values", "stopped_by"),
    [
        (StopRules(report="validate.results", target=0.9), [0.8, 0.9], "target"),
        (StopRules(report="validate.results", target=0.9, hold=2), [0.95, 0.8, 0.9, 0.9], "target"),
        (StopRules(report="validate.results", target=0.9, hold=2), [0.95, 0.8, 0.95], ""),
        (StopRules(report="validate.results", patience=2), [0.5, 0.6, 0.6, 0.5], "patience"),
        (StopRules(report="validate.results", patience=2), [0.5, 0.4, 0.6, 0.5], ""),
        (StopRules(report="validate.results", target=0.9), [float("nan"), 0.1], ""),
        (StopRules(report="other.results", target=0.9), [1.0], ""),
        (StopRules(), [1.0], ""),
    ],
)
def test_stop_rules_over_the_reports_of_one_node(rules: StopRules, values: list[float], stopped_by: str) -> None:
    job = running(rules)
    commands = [command for value in values for command in job.handle(report(value), 20.0)]
    stops = [command.reason for command in commands if isinstance(command, co.StopNodes)]
    assert stops == ([stopped_by] if stopped_by else [])


def test_patience_watches_its_own_metric_and_the_target_the_other() -> None:
    rules = StopRules(report="validate.results", target=0.9, patience=2, patience_metric="held_out")
    told = [(0.5, 0.7), (0.6, 0.7), (0.7, 0.6)]

    job = running(rules)
    reports = [OperatorReport("validate.results", {"accuracy": a, "held_out": b}) for a, b in told]
    commands = [job.handle(co.NodeReport(0, each), 20.0) for each in reports]
    assert commands[:2] == [[], []]
    assert commands[2][0] == co.StopNodes((0, 1), "patience")

    job = running(rules)
    reached = OperatorReport("validate.results", {"accuracy": 0.9, "held_out": 0.1})
    assert job.handle(co.NodeReport(0, reached), 20.0)[0] == co.StopNodes((0, 1), "target")

    job = running(StopRules(report="validate.results", target=0.9, patience_metric="held_out"))
    assert job.handle(report(0.5), 20.0) == []

    job = running(rules)
    finish = job.handle(report(0.5), 20.0)[-1]
    what = "the stop rule watches 'held_out', which validate.results does not report; it has: accuracy"
    assert finish == co.Finish(JobState.FAILED, what, "")


def test_reports_of_nodes_that_take_turns_are_one_series() -> None:
    job = running(StopRules(report="validate.results", patience=2))
    assert job.handle(report(0.5, node=0), 20.0) == []
    assert job.handle(report(0.5, node=1), 20.0) == []
    assert job.handle(report(0.4, node=0), 20.0)[0] == co.StopNodes((0, 1), "patience")
    job = running(StopRules(report="validate.results", target=0.9, hold=2))
    for accuracy, node in ((0.9, 0), (0.8, 1), (0.95, 0)):
        assert job.handle(report(accuracy, node=node), 20.0) == []
    assert job.handle(report(0.9, node=1), 20.0)[0] == co.StopNodes((0, 1), "target")


def test_patience_watches_a_metric_of_its_own() -> None:
    job = running(StopRules(report="validate.results", patience=2, patience_metric="held_out"))
    stops = []
    for accuracy, held_out in ((0.5, 0.5), (0.6, 0.5), (0.7, 0.6), (0.8, 0.6), (0.9, 0.5)):
        told = OperatorReport("validate.results", {"accuracy": accuracy, "held_out": held_out})
        stops.append(bool(job.handle(co.NodeReport(0, told), 20.0)))
    assert stops == [False, False, False, False, True]
    assert job.stopped_by == "patience"


@pytest.mark.parametrize(("patience", "state"), [(2, JobState.FAILED), (None, JobState.RUNNING)])
def test_patience_metric_that_is_not_reported_matters_only_with_patience(patience: int | None, state: JobState) -> None:
    job = running(StopRules(report="validate.results", patience=patience, patience_metric="held_out"))
    job.handle(report(0.5), 20.0)
    assert job.state is state


def test_stop_rule_on_a_field_that_is_not_reported_fails_the_job() -> None:
    job = running(StopRules(report="validate.results", metric="f1", target=0.9))
    finish = job.handle(report(0.5), 20.0)[-1]
    what = "the stop rule watches 'f1', which validate.results does not report; it has: accuracy"
    assert finish == co.Finish(JobState.FAILED, what, "")


def test_failed_node_kills_the_others_and_is_named_with_the_users_line() -> None:
    job = running()
    commands = job.handle(co.NodeFailed(1, "operator blur raised ValueError: no", "my_job.py:12"), 20.0)
    cause = "node right: operator blur raised ValueError: no at my_job.py:12"
    assert commands == [co.KillNodes((0, 1)), co.Finish(JobState.FAILED, cause, "", 1)]


def test_failure_of_a_node_that_has_ended_changes_nothing() -> None:
    job = running()
    job.handle(ended(1), 20.0)
    assert job.handle(co.NodeExited(1, "its job process ended by SIGSEGV"), 20.0) == []
    assert job.state is JobState.RUNNING


def test_failed_link_while_deploying_is_the_cause_only_if_no_node_fails_by_itself_within_a_moment() -> None:
    link = co.LinkBroken(0, 1, "cannot connect to node right")

    def connecting() -> JobCoordinator:
        job = deploying()
        for node in (0, 1):
            job.handle(co.NodePrepared(node, ADDRESSES[node]), 11.0)
        assert job.handle(link, 20.0) == [co.SetTimer(21.0)]
        assert job.handle(link, 20.5) == []
        return job

    job = connecting()
    job.handle(co.NodeExited(1, "its job process ended by SIGKILL"), 20.9)
    job.handle(co.Tick(), 21.0)
    assert job.state is JobState.DEPLOYING
    job = connecting()
    finish = job.handle(co.Tick(), 21.0)[-1]
    assert finish == co.Finish(JobState.FAILED, "node left: cannot connect to node right", "", 0)


def test_node_that_was_paused_while_the_job_is_deployed_is_answered() -> None:
    job = deploying()
    assert job.handle(co.NodePaused(0, 1), 10.5) == []
    job.handle(co.NodePrepared(1, ADDRESSES[1]), 11.0)
    assert job.handle(co.NodePrepared(0, ADDRESSES[0]), 11.0) == [co.Connect(0, FIRST, 1), co.Connect(1, FIRST)]
    assert job.handle(co.NodePaused(1, 1), 11.5) == [co.Connect(1, FIRST, 1)]


def test_node_lost_while_deploying_is_waited_for_and_its_job_begins_without_it() -> None:
    job = deploying()
    job.handle(co.NodePrepared(1, ADDRESSES[1]), 11.0)
    assert job.handle(co.NodeLost(0, "no heartbeat for 2.0 s"), 20.0)[-1] == co.SetTimer(30.0)
    assert co.Connect(1, Members(1, {1: 0}, {1: ADDRESSES[1]})) in job.handle(co.Tick(), 30.0)
    assert job.handle(co.NodeReady(1), 31.0)[:2] == [co.ChangeState(JobState.RUNNING), co.Start(1)]
    assert co.Deploy(0, 1) in job.handle(co.NodeBack(0), 40.0)  # for the others that is another one now
    job = deploying(min_nodes=2)
    job.handle(co.NodeLost(0, "no heartbeat for 2.0 s"), 20.0)
    finish = job.handle(co.Tick(), 30.0)[-1]
    assert finish == co.Finish(JobState.FAILED, "node left: it was lost: no heartbeat for 2.0 s", "", 0)


def test_node_that_dies_before_the_others_know_it_is_started_again_as_if_it_had_not() -> None:
    job = deploying(irreplaceable=(0, 1), needed=(0, 1))
    job.handle(co.NodePrepared(1, ADDRESSES[1]), 11.0)
    died = job.handle(co.NodeExited(1, "by SIGKILL"), 12.0)
    assert died[0] == co.ChangeNode(1, Life.WAITING, 0, 0, "by SIGKILL")
    assert job.handle(co.Tick(), 13.0) == [co.ChangeNode(1, Life.JOINING, 0, 0), co.Deploy(1), co.SetTimer(613.0)]
    job.handle(co.NodePrepared(0, ADDRESSES[0]), 14.0)
    told = [co.ChangeNode(1, Life.ALIVE, 0, 1), co.Connect(0, FIRST), co.Connect(1, FIRST)]
    assert job.handle(co.NodePrepared(1, ADDRESSES[1]), 15.0) == told
    job.handle(co.NodeReady(0), 16.0)
    assert job.handle(co.NodeReady(1), 16.0)[:3] == [co.ChangeState(JobState.RUNNING), co.Start(0), co.Start(1)]


def test_process_that_cannot_be_started_fails_a_job_that_is_deployed_and_is_tried_again_in_one_that_runs() -> None:
    refused = co.NodeExited(1, "it cannot be started: no room", refused=True)
    finish = deploying().handle(refused, 20.0)[-1]
    assert finish == co.Finish(JobState.FAILED, "node right: it cannot be started: no room", "", 1)
    job = running()
    job.handle(refused, 20.0)
    assert job.nodes[1].life is Life.WAITING


def test_node_that_dies_while_all_connect_is_waited_for_by_nobody_and_joins_later() -> None:
    job = deploying()
    for node in (0, 1):
        job.handle(co.NodePrepared(node, ADDRESSES[node]), 11.0)
    job.handle(co.NodeReady(0), 12.0)
    died = job.handle(co.NodeExited(1, "by SIGKILL"), 12.0)
    assert co.Connect(0, Members(2, {0: 0}, {0: ADDRESSES[0]})) in died
    assert co.ChangeState(JobState.RUNNING) in died
    assert [command.node for command in died if isinstance(command, co.Start)] == [0]
    assert co.Deploy(1, 1) in job.handle(co.Tick(), 13.0)
    job.handle(co.NodePrepared(1, "127.0.0.1:3"), 15.0)
    assert job.handle(co.NodeReady(1), 15.0) == [co.Start(1)]


def test_nodes_that_die_again_and_again_while_the_job_is_deployed_fail_it() -> None:
    job, now, commands = deploying(), 20.0, list[co.Command]()
    while job.state is JobState.DEPLOYING and now < 100.0:
        for node in job.nodes.those(Life.JOINING):
            commands = job.handle(co.NodeExited(node, "with exit status 1"), now)
        now += 10.0
        commands = job.handle(co.Tick(), now) or commands
    reason = "node right (started again 3 times): with exit status 1"
    assert commands[-1] == co.Finish(JobState.FAILED, reason, "", 1)


def test_preflight_that_takes_too_long_names_the_nodes_that_are_late() -> None:
    job = deploying()
    for node in (0, 1):
        job.handle(co.NodePrepared(node, ADDRESSES[node]), 11.0)
    job.handle(co.NodeReady(0), 12.0)
    finish = job.handle(co.Tick(), 610.0)[-1]
    why = "nodes not ready after 600 s: right; `ako logs` has what their processes said"
    assert finish == co.Finish(JobState.FAILED, why, "", 1)


def test_preflight_that_takes_too_long_names_nobody_who_waits_for_those_that_are_late() -> None:
    job = deploying()
    job.handle(co.NodePrepared(1, ADDRESSES[1]), 11.0)
    finish = job.handle(co.Tick(), 610.0)[-1]
    assert isinstance(finish, co.Finish)
    assert (finish.reason.split(";")[0], finish.node) == ("nodes not ready after 600 s: left", 0)


@pytest.mark.parametrize(("runs_s", "given_up"), [(0.1, True), (29.0, True), (31.0, False)])
def test_node_that_dies_as_soon_as_it_runs_is_given_up_however_long_it_takes_to_get_ready(runs_s, given_up) -> None:
    job, now = running(), 50.0
    for _ in range(5):
        job.handle(co.NodeExited(1, "by SIGKILL"), now)
        job.handle(co.Tick(), now + 5.0)
        job.handle(co.NodePrepared(1, ADDRESSES[1]), now + 300.0)
        job.handle(co.NodeReady(1), now + 300.0)
        now += 300.0 + runs_s
    assert (job.nodes[1].life is Life.GONE) == given_up


def test_node_that_is_never_ready_again_is_given_up_while_the_job_runs() -> None:
    job, now = running(), 20.0
    job.handle(co.NodeExited(1, "by SIGKILL"), now)
    while job.nodes[1].life is not Life.GONE:
        now += 1.0
        assert now < 2500.0
        for command in job.handle(co.Tick(), now):
            if isinstance(command, co.KillNodes):
                job.handle(co.NodeExited(1, "by SIGKILL"), now)
    assert job.state is JobState.RUNNING
    assert now > 3 * 600.0


def test_node_that_never_gets_ready_fails_a_job_that_is_deployed_however_long_each_start_takes() -> None:
    job, now = deploying(), 10.0
    job.handle(co.NodePrepared(0, ADDRESSES[0]), 11.0)
    while job.state is JobState.DEPLOYING:
        now += 250.0
        assert now < 2000.0
        job.handle(co.NodeExited(1, "by SIGKILL"), now)
        job.handle(co.Tick(), now + 5.0)
    assert job.nodes[1].life is Life.GONE


def test_irreplaceable_node_that_was_lost_before_the_others_began_stays_away() -> None:
    job = JobCoordinator(3, StopRules(), irreplaceable=(0, 1, 2))
    job.handle(co.Placed(("a", "b", "c")), 0.0)
    job.handle(co.NodeLost(2), 1.0)
    for node in (0, 1):
        job.handle(co.NodePrepared(node, ADDRESSES[node]), 2.0)
    job.handle(co.Tick(), 12.0)
    for node in (0, 1):
        job.handle(co.NodeReady(node), 13.0)
    assert job.state is JobState.RUNNING
    commands = job.handle(co.NodeBack(2), 14.0)
    assert not [command for command in commands if isinstance(command, co.Deploy)]
    assert job.nodes[2].life is Life.GONE
    assert job.state is JobState.RUNNING


def test_cancelling_a_running_job_stops_its_nodes_first() -> None:
    job = running()
    assert job.handle(co.CancelAsked(), 20.0) == [
        co.ChangeState(JobState.CANCELLING, "cancelled"),
        co.StopNodes((0, 1), "cancel"),
        co.SetTimer(22.0),
    ]
    assert job.handle(co.CancelAsked(), 20.5) == []
    job.handle(ended(0), 21.0)
    finish = co.Finish(JobState.CANCELLED, "cancelled", "cancel")
    assert job.handle(co.NodeFailed(1, "stopped in the middle"), 21.0) == [co.CloseNodes((0, 1)), finish]


def test_cancelling_kills_after_the_grace() -> None:
    job = running()
    job.handle(co.CancelAsked(), 20.0)
    killed = co.Finish(JobState.CANCELLED, "cancelled; the nodes had to be killed", "cancel")
    assert job.handle(co.Tick(), 22.0) == [co.KillNodes((0, 1)), killed]


def test_cancelling_a_waiting_job_ends_it_at_once() -> None:
    job = JobCoordinator(8, StopRules())
    assert job.handle(co.Unplaced("needs 8 nodes, 2 attached"), 1.0) == [
        co.ChangeState(JobState.PENDING, "needs 8 nodes, 2 attached")
    ]
    assert job.handle(co.CancelAsked(), 2.0) == [co.Finish(JobState.CANCELLED, "cancelled", "cancel")]


def test_diagram_has_every_transition_of_the_table() -> None:
    lines = transition_diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert "    DEPLOYING --> RUNNING: all nodes ready" in lines
    assert len(lines) == 2 + len(TRANSITIONS) + len(ENDED)


def test_every_state_can_be_reached_and_left_or_is_an_end() -> None:
    reached = {JobState.SUBMITTED, *TRANSITIONS.values()}
    left = {source for source, _ in TRANSITIONS}
    assert reached == set(JobState)
    assert left == set(JobState) - ENDED


nodes = st.integers(0, 1)
events = st.one_of(
    st.just(co.Placed(NAMES)),
    st.just(co.Unplaced("no")),
    nodes.map(lambda node: co.NodePrepared(node, ADDRESSES[node])),
    nodes.map(co.NodeReady),
    st.builds(report, st.sampled_from([0.1, 0.95, float("nan"), None, True]), nodes),
    nodes.map(ended),
    nodes.map(lambda node: co.NodeFailed(node, "failed")),
    nodes.map(lambda node: co.LinkBroken(node, 1 - node, "link")),
    nodes.map(co.NodeLost),
    nodes.map(co.NodeBack),
    nodes.map(lambda node: co.NodeExited(node, "by SIGKILL")),
    st.just(co.CancelAsked()),
    st.just(co.Tick()),
    st.just(co.CheckpointFound(7)),
    st.just(co.CheckpointFound(None, "there is none")),
)
RULES = StopRules(report="validate.results", target=0.9, hold=2, patience=3, time_s=10.0)


@given(st.lists(st.tuples(events, st.floats(0.0, 50.0)), max_size=40), st.booleans())
def test_random_events_never_leave_the_table_and_finish_comes_once_and_last(
    happenings: list[tuple[co.Event, float]], goes_on: bool
) -> None:
    job = JobCoordinator(2, RULES, goes_on=goes_on)
    now, commands = 0.0, []
    edges = {(source, target) for (source, _), target in TRANSITIONS.items()}
    for event, delay_s in happenings:
        now += delay_s
        before, done = job.state, job.handle(event, now)
        commands += done
        # Cancelling a job of which no process is there passes through two states.
        states = [before, *(each.state for each in done if isinstance(each, co.ChangeState | co.Finish))]
        assert states[-1] is job.state
        assert set(pairwise(states)) <= edges
    finishes = [c for c in commands if isinstance(c, co.Finish)]
    assert len(finishes) == (job.state in ENDED)
    if finishes:
        assert isinstance(commands[-1], co.Finish)
        assert finishes[0].state is job.state
        stopped_by = finishes[0].stopped_by
        assert (stopped_by == "cancel") == (job.state is JobState.CANCELLED)
        assert (stopped_by == "") == (job.state is JobState.FAILED)


@given(st.lists(st.tuples(events, st.floats(0.0, 50.0)), max_size=20), st.booleans())
def test_whatever_happened_a_job_ends_when_it_is_cancelled_and_time_passes(
    happenings: list[tuple[co.Event, float]], goes_on: bool
) -> None:
    job = JobCoordinator(2, RULES, goes_on=goes_on)
    now = 0.0
    for event, delay_s in happenings:
        now += delay_s
        job.handle(event, now)
    job.handle(co.CancelAsked(), now)
    for _ in range(2):
        now += 1000.0
        job.handle(co.Tick(), now)
    assert job.state in ENDED


@pytest.mark.parametrize(
    ("waiting", "free", "attached", "placed", "reasons"),
    [
        ([Waiting("a", 2)], ["x", "y", "z"], 3, {"a": ("x", "y")}, {}),
        ([Waiting("a", 8)], ["x", "y"], 2, {}, {"a": "needs 8 nodes, 2 attached"}),
        ([Waiting("a", 8)], ["x"], 2, {}, {"a": "needs 8 nodes, 2 attached, 1 busy"}),
        ([Waiting("a", 1)], [], 0, {}, {"a": "needs 1 node, 0 attached"}),
        (
            [Waiting("a", 2), Waiting("b", 1)],
            ["x"],
            2,
            {},
            {"a": "needs 2 nodes, 2 attached, 1 busy", "b": "needs 1 node, 2 attached, 1 busy; behind job a"},
        ),
        ([Waiting("a", 9), Waiting("b", 1)], ["x"], 2, {"b": ("x",)}, {"a": "needs 9 nodes, 2 attached, 1 busy"}),
        ([Waiting("a", 1), Waiting("b", 1)], ["x", "y"], 2, {"a": ("x",), "b": ("y",)}, {}),
    ],
)
def test_place_jobs(
    waiting: list[Waiting],
    free: list[str],
    attached: int,
    placed: dict[str, tuple[str, ...]],
    reasons: dict[str, str],
) -> None:
    assert place_jobs(waiting, free, attached) == Placements(placed, reasons)
