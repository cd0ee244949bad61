"""Nodes of a running job that die, come back and are given up, as its coordinator decides."""

from __future__ import annotations

from typing import Any

import pytest
from coordinating import KILLED, ended, members, running
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.engine import coordination as co
from dataflow.engine.coordinator import JobCoordinator
from dataflow.engine.job_life import ENDED, JobState
from dataflow.engine.membership import BURIED, Changes, Life, changes
from dataflow.plan.job import StopRules


def test_to_a_node_that_begins_who_has_ended_never_joins_whatever_its_incarnation() -> None:
    first = members(7, {0: 0, 1: 1, 2: 2, 3: 1}, 1)
    assert changes(None, first, 2) == Changes((), {3: 1})
    assert changes(first, members(8, {0: 0, 2: 2, 3: 1}), 2) == Changes((1,), {})


def test_killed_node_is_buried_and_the_others_are_told_the_new_membership() -> None:
    job = running()
    told = members(2, {0: 0, 2: 0})
    assert job.handle(co.NodeExited(1, "its job process ended by SIGKILL"), 20.0) == [
        co.ChangeNode(1, Life.WAITING, 0, 2, KILLED),
        co.Connect(0, told),
        co.Connect(2, told),
        co.SetTimer(20.75),
    ]
    assert job.state is JobState.RUNNING


def test_killed_node_is_started_again_admitted_and_started() -> None:
    job = running()
    job.handle(co.NodeExited(1, "its job process ended by SIGKILL"), 20.0)
    assert job.handle(co.Tick(), 20.7) == [co.SetTimer(20.75)]
    again = [co.ChangeNode(1, Life.JOINING, 1, 2), co.Deploy(1, 1), co.SetTimer(620.75)]
    assert job.handle(co.Tick(), 20.75) == again
    told = members(3, {0: 0, 1: 1, 2: 0})
    assert job.handle(co.NodePrepared(1, "host:11"), 22.0) == [
        co.ChangeNode(1, Life.ALIVE, 1, 3),
        *(co.Connect(node, told) for node in range(3)),
    ]
    assert job.handle(co.NodeReady(1), 22.1) == [co.Start(1)]
    assert job.handle(co.NodeReady(1), 22.2) == []


def test_restarts_are_three_in_ten_minutes_with_growing_pauses_and_the_job_goes_on_without_the_node() -> None:
    job, now, pauses = running(2), 20.0, []
    for _ in range(3):
        timer = job.handle(co.NodeExited(1, "its job process ended by SIGKILL"), now)[-1]
        assert isinstance(timer, co.SetTimer)
        pauses.append(timer.at_s - now)
        now = timer.at_s
        job.handle(co.Tick(), now)
        job.handle(co.NodePrepared(1, "host:1"), now)
        job.handle(co.NodeReady(1), now)
    assert pauses == [0.75, 1.5, 3.0]
    assert job.handle(co.NodeExited(1, "its job process ended by SIGKILL"), now)[0] == co.ChangeNode(
        1, Life.GONE, 3, 8, KILLED
    )
    assert job.state is JobState.RUNNING
    assert job.handle(ended(0), now)[-1] == co.Finish(JobState.FINISHED, "", "epochs")


def test_restarts_of_long_ago_are_forgotten() -> None:
    job = running(2)
    for now in (20.0, 30.0, 40.0, 1000.0):
        assert isinstance(job.handle(co.NodeExited(1, "its job process ended by SIGKILL"), now)[0], co.ChangeNode)
        assert job.nodes[1].life is Life.WAITING
        job.handle(co.Tick(), now + 5.0)
        job.handle(co.NodePrepared(1, "host:1"), now + 5.0)
        job.handle(co.NodeReady(1), now + 5.0)


def test_restarts_of_long_ago_are_forgotten_of_a_node_that_was_lost_after_it_had_run_for_long() -> None:
    job, now = running(2), 0.0
    for now in (20.0, 30.0, 40.0):
        job.handle(co.NodeExited(1, "its job process ended by SIGKILL"), now)
        job.handle(co.Tick(), now + 5.0)
        job.handle(co.NodePrepared(1, "host:1"), now + 5.0)
        job.handle(co.NodeReady(1), now + 5.0)
    job.handle(co.NodeLost(1), 9000.0)
    job.handle(co.NodeBack(1), 9001.0)
    job.handle(co.NodeExited(1, "its job process ended by SIGKILL"), 9002.0)
    assert job.nodes[1].life is Life.WAITING


def test_starts_of_which_none_has_helped_are_not_forgotten_however_long_they_took() -> None:
    job = running(2)
    for now in (20.0, 520.0, 1020.0, 1520.0):
        job.handle(co.NodeExited(1, "its job process ended by SIGKILL"), now)
        job.handle(co.Tick(), now + 5.0)
    assert job.nodes[1].life is Life.GONE


@pytest.mark.parametrize("options", [{"min_nodes": 2}, {"needed": [1]}], ids=["too few", "needed"])
def test_job_that_cannot_do_without_a_node_fails_with_its_last_words(options: dict[str, Any]) -> None:
    job, now = running(2, **options), 20.0
    for _ in range(3):
        job.handle(co.NodeExited(1, "its job process ended by SIGKILL"), now)
        now += 10.0
        job.handle(co.Tick(), now)
    assert job.handle(co.NodeExited(1, "its job process ended by SIGKILL"), now)[-2:] == [
        co.KillNodes((0, 1)),
        co.Finish(
            JobState.FAILED,
            f"node n1 (started again 3 times): {KILLED}",
            "",
            1,
        ),
    ]


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (co.NodeExited(1, KILLED), KILLED),
        (co.NodeLost(1, "its connection broke"), "it was lost: its connection broke"),
    ],
)
def test_node_that_is_irreplaceable_fails_the_job_at_once(event: co.Event, cause: str) -> None:
    job = running(3, needed=[0, 1, 2], irreplaceable=[0, 1, 2])
    finish = job.handle(event, 20.0)[-1]
    reason = f"node n1: {cause}; what it held is nowhere else: ako resume goes on from a checkpoint"
    assert finish == co.Finish(JobState.FAILED, reason, "", 1)


def test_node_that_is_irreplaceable_but_not_needed_is_given_up_and_the_others_go_on() -> None:
    job = running(3, irreplaceable=[0, 1, 2])
    told = members(2, {0: 0, 2: 0})
    assert job.handle(co.NodeExited(1, KILLED), 20.0) == [
        co.ChangeNode(1, Life.GONE, 0, 2, KILLED),
        co.Connect(0, told),
        co.Connect(2, told),
    ]
    assert job.state is JobState.RUNNING
    assert job.handle(co.NodeBack(1), 30.0) == []


def test_irreplaceable_node_that_stands_still_fails_the_job_once_its_process_is_gone() -> None:
    job = running(3, needed=[0, 1, 2], irreplaceable=[0, 1, 2])
    assert job.handle(co.NodeStalled(1, "it did nothing"), 20.0)[0] == co.KillNodes((1,))
    job.handle(co.NodeExited(1, KILLED), 20.5)
    assert job.state is JobState.FAILED


def test_needed_nodes_do_not_wait_when_all_others_are_gone() -> None:
    job = running(3, needed=[2])
    for node in (0, 1):
        job.handle(co.NodeLost(node, "its connection broke"), 20.0)
    finish = job.handle(co.Tick(), 30.0)[-1]
    assert finish == co.Finish(JobState.FAILED, "node n1: it was lost: its connection broke", "", 1)


def test_node_that_cannot_be_started_again_fails_the_job_with_what_it_had_died_of() -> None:
    job = running(2, needed=[1])
    job.handle(co.NodeExited(1, KILLED), 20.0)
    job.handle(co.Tick(), 21.0)
    finish = job.handle(co.NodeFailed(1, "there is no whole checkpoint"), 22.0)[-1]
    reason = f"node n1: there is no whole checkpoint; it was started again because {KILLED}"
    assert finish == co.Finish(JobState.FAILED, reason, "", 1)


def test_error_of_an_operator_fails_the_job_at_once() -> None:
    job = running()
    finish = job.handle(co.NodeFailed(1, "operator blur raised ValueError: no", "my_job.py:12"), 20.0)[-1]
    cause = "node n1: operator blur raised ValueError: no at my_job.py:12"
    assert finish == co.Finish(JobState.FAILED, cause, "", 1)


def test_node_that_has_to_begin_anew_dies_of_that_and_is_started_again() -> None:
    job, late = running(2), co.NodeFailed(1, "it is too late", "talk", anew=True)
    assert job.handle(late, 20.0)[:2] == [
        co.KillNodes((1,)),
        co.ChangeNode(1, Life.DYING, 0, 2, "it is too late at talk"),
    ]
    change, timer = job.handle(co.NodeExited(1, KILLED), 20.1)
    assert change == co.ChangeNode(1, Life.WAITING, 0, 2, "it is too late at talk")
    assert isinstance(timer, co.SetTimer)
    assert co.Deploy(1, 1) in job.handle(co.Tick(), timer.at_s)


def test_node_that_has_to_begin_anew_again_and_again_is_given_up_and_the_job_goes_on() -> None:
    job, now = running(2), 20.0
    for _ in range(4):
        job.handle(co.NodeFailed(1, "it is too late", anew=True), now)
        timer = job.handle(co.NodeExited(1, KILLED), now)[-1]
        if isinstance(timer, co.SetTimer):
            now = timer.at_s
        job.handle(co.Tick(), now)
        job.handle(co.NodePrepared(1, "host:1"), now)
        job.handle(co.NodeReady(1), now)
    assert job.nodes[1].life is Life.GONE
    assert job.state is JobState.RUNNING


def test_stalled_node_is_killed_and_started_again_once_its_process_is_gone() -> None:
    job = running(2)
    assert job.handle(co.NodeStalled(1, "no progress for 2.0 s"), 20.0) == [
        co.KillNodes((1,)),
        co.ChangeNode(1, Life.DYING, 0, 2, "no progress for 2.0 s"),
        co.Connect(0, members(2, {0: 0})),
    ]
    assert job.handle(co.NodeStalled(1, "no progress for 2.5 s"), 20.5) == []
    assert job.handle(co.NodeExited(1, "its job process ended by SIGKILL"), 20.5) == [
        co.ChangeNode(1, Life.WAITING, 0, 2, "no progress for 2.0 s"),
        co.SetTimer(21.25),
    ]


def test_lost_node_joins_again_when_its_agent_is_back() -> None:
    job = running(2)
    change, *_ = job.handle(co.NodeLost(1, "its connection broke"), 20.0)
    assert change == co.ChangeNode(1, Life.AWAY, 0, 2, "it was lost: its connection broke")
    assert job.handle(co.NodeBack(0), 50.0) == []
    assert job.handle(co.NodeBack(1), 50.0)[:2] == [co.ChangeNode(1, Life.JOINING, 1, 2), co.Deploy(1, 1)]


def test_job_waits_for_a_lost_node_that_it_needs_and_no_longer() -> None:
    job = running(2, needed=[1])
    assert job.handle(co.NodeLost(1, "its connection broke"), 20.0)[-1] == co.SetTimer(30.0)
    finish = job.handle(co.Tick(), 30.0)[-1]
    assert finish == co.Finish(JobState.FAILED, "node n1: it was lost: its connection broke", "", 1)


def test_job_whose_nodes_are_all_dead_fails_at_once_as_what_it_learnt_is_gone() -> None:
    job = running(2)
    job.handle(co.NodeLost(0, "its connection broke"), 20.0)
    finish = job.handle(co.NodeLost(1, "its connection broke"), 21.0)[-1]
    assert finish == co.Finish(
        JobState.FAILED,
        "all its nodes have died, the last of them node n1: it was lost: its connection broke; "
        "ako resume goes on from its newest checkpoint",
        "",
        1,
    )


@pytest.mark.parametrize(
    ("broken", "buried"),
    [([(0, 1)], [1]), ([(1, 0), (0, 1)], [1]), ([(0, 1), (0, 2)], [0]), ([(2, 0), (1, 3)], [3, 2])],
)
def test_of_broken_links_the_node_with_most_is_buried_the_higher_number_among_equals(
    broken: list[tuple[int, int]], buried: list[int]
) -> None:
    job = running(4)
    for node, peer in broken:
        job.handle(co.LinkBroken(node, peer, "down for 2 s"), 20.0)
    assert job.nodes.those(*BURIED) == ()
    commands = job.handle(co.Tick(), 20.25)
    assert [c.node for c in commands if isinstance(c, co.ChangeNode)] == buried
    assert [c.nodes for c in commands if isinstance(c, co.KillNodes)] == [(node,) for node in buried]


@pytest.mark.parametrize("broken", [[(0, 1), (2, 0)], [(0, 1), (0, 2)]])
def test_death_by_broken_links_says_to_whom_they_were_and_who_told(broken: list[tuple[int, int]]) -> None:
    job = running(3)
    for node, peer in broken:
        job.handle(co.LinkBroken(node, peer, "no answer"), 20.0)
    (why,) = [c.reason for c in job.handle(co.Tick(), 20.25) if isinstance(c, co.ChangeNode)]
    assert why == "its links to n1, n2 are broken, as n0 told: no answer"


def again(job: JobCoordinator, node: int, now: float) -> None:
    """The process of a node that is buried ends, and the next incarnation becomes a member and starts."""
    job.handle(co.NodeExited(node, KILLED), now)
    job.handle(co.Tick(), now + 30.0)
    job.handle(co.NodePrepared(node, f"host:{node}"), now + 30.0)
    job.handle(co.NodeReady(node), now + 30.0)
    assert job.nodes[node].life is Life.ALIVE


def test_of_two_nodes_with_as_many_broken_links_the_one_that_became_a_member_last_is_buried() -> None:
    job = running(3)
    again(job, 0, 20.0)
    job.handle(co.LinkBroken(2, 0, "no answer", incarnation=1), 60.0)
    job.handle(co.Tick(), 60.25)
    assert job.nodes.those(*BURIED) == (0,)


def test_broken_link_with_an_incarnation_that_has_died_is_not_held_against_the_next() -> None:
    job = running(3)
    again(job, 1, 20.0)
    for node in (0, 2):
        assert job.handle(co.LinkBroken(node, 1, "refused", incarnation=0), 60.0) == []
    job.handle(co.Tick(), 60.25)
    assert job.nodes.those(*BURIED) == ()


def cut(job: JobCoordinator, node: int, now: float) -> None:
    """A node is buried because of its links, and its process killed."""
    for other in (0, 2):
        job.handle(co.LinkBroken(other, node, "down", job.nodes[node].incarnation), now)
    job.handle(co.Tick(), now + 0.25)
    assert job.nodes[node].life is Life.DYING
    job.handle(co.NodeExited(node, KILLED), now + 0.25)


def test_restarts_because_of_links_are_counted_apart_from_crashes_and_are_twenty_in_an_hour() -> None:
    job, now, pauses = running(3), 20.0, []
    for _ in range(20):
        cut(job, 1, now)
        assert job.nodes[1].life is Life.WAITING
        pauses.append(job.nodes[1].due_s - now - 0.25)
        now += 40.0
        job.handle(co.Tick(), now)
        job.handle(co.NodePrepared(1, "host:1"), now)
        job.handle(co.NodeReady(1), now)
    assert pauses == pytest.approx([0.75, 1.5, 3.0, 6.0, 12.0, *[22.5] * 15])
    for times in range(1, 4):
        again(job, 1, now)
        assert len(job.nodes[1].restarts) == times
        now += 60.0
    cut(job, 1, now)
    assert job.nodes[1].life is Life.GONE
    assert job.nodes.tried(1) == " (started again 3 times)"


def test_failure_long_after_a_return_is_not_put_down_to_what_the_node_had_died_of() -> None:
    job = running(3)
    again(job, 1, 20.0)
    finish = job.handle(co.NodeFailed(1, "no such image", "my_job.py:3"), 90.0)[-1]
    assert finish == co.Finish(JobState.FAILED, "node n1: no such image at my_job.py:3", "", 1)


def test_broken_link_to_a_node_that_turns_out_dead_costs_nobody_else() -> None:
    job = running(3)
    job.handle(co.LinkBroken(0, 1, "refused"), 20.0)
    job.handle(co.NodeExited(1, "its job process ended by SIGKILL"), 20.1)
    job.handle(co.LinkBroken(2, 1, "refused"), 20.2)
    job.handle(co.Tick(), 20.25)
    assert job.nodes.those(Life.ALIVE) == (0, 2)


def test_broken_link_to_a_node_that_has_ended_costs_nobody_anything() -> None:
    job = running(3)
    job.handle(ended(1), 20.0)
    told = members(2, {0: 0, 2: 0}, 1)
    assert job.handle(co.LinkBroken(0, 1, "down"), 20.0) == [
        co.ChangeNode(1, Life.ENDED, 0, 2),
        co.Connect(0, told),
        co.Connect(2, told),
    ]
    assert job.handle(co.LinkBroken(2, 1, "down"), 20.0) == []


def test_node_that_was_paused_is_told_the_membership_or_killed() -> None:
    job = running(2)
    assert job.handle(co.NodePaused(1, 1), 20.0) == [co.Connect(1, members(1, {0: 0, 1: 0}), 1)]
    job.handle(co.NodeStalled(1, "no progress"), 21.0)
    assert job.handle(co.NodePaused(1, 2), 21.0) == [co.KillNodes((1,))]


def test_node_that_was_paused_before_it_is_a_member_is_answered_once_it_is() -> None:
    job = running(2)
    job.handle(co.NodeExited(1, KILLED), 20.0)
    job.handle(co.Tick(), 30.0)
    assert job.handle(co.NodePaused(1, 1), 31.0) == []
    told = [command for command in job.handle(co.NodePrepared(1, "host:11"), 32.0) if isinstance(command, co.Connect)]
    assert [(connect.node, connect.answers) for connect in told] == [(0, 0), (1, 1)]


def test_node_that_dies_while_the_job_ends_is_not_started_again() -> None:
    job = running(3, StopRules(time_s=5.0))
    job.handle(co.Tick(), 15.0)
    assert job.handle(co.NodeExited(2, "its job process ended by SIGKILL"), 16.0)[0] == co.ChangeNode(
        2, Life.GONE, 0, 2, KILLED
    )
    job.handle(ended(0), 17.0)
    assert job.handle(ended(1), 17.0)[-1] == co.Finish(JobState.FINISHED, "", "time")


def test_job_ends_without_waiting_for_a_node_that_is_being_started_again() -> None:
    job = running(2)
    job.handle(co.NodeExited(1, "its job process ended by SIGKILL"), 20.0)
    assert job.handle(ended(0), 20.1)[-1] == co.Finish(JobState.FINISHED, "", "epochs")


def test_last_worker_of_a_job_that_is_ending_is_started_again_while_its_servers_can_serve_it() -> None:
    for server_has_ended in (False, True):
        job = running(3, StopRules(time_s=5.0), needed=(1, 2))
        job.handle(co.Tick(), 15.0)
        if server_has_ended:
            job.handle(ended(1), 15.1)
        job.handle(co.NodeExited(0, KILLED), 15.2)
        assert job.nodes[0].life is (Life.GONE if server_has_ended else Life.WAITING)
        assert job.state is (JobState.FAILED if server_has_ended else JobState.RUNNING)


def test_joiner_that_a_node_ended_without_hearing_of_is_let_go_and_the_job_ends() -> None:
    job = running(2)
    job.handle(co.NodeExited(1, KILLED), 20.0)
    job.handle(co.Tick(), 21.0)
    job.handle(co.NodePrepared(1, "host:11"), 22.0)
    commands = job.handle(ended(0, epoch=2), 22.0)
    assert commands[:2] == [co.KillNodes((1,)), co.ChangeNode(1, Life.DYING, 1, 4, "the job is ending")]
    assert commands[-1] == co.Finish(JobState.FINISHED, "", "epochs")


def test_node_that_ended_before_it_heard_of_a_joiner_is_no_member_for_it() -> None:
    job = running(3, min_nodes=3)
    job.handle(co.NodeExited(1, "its job process ended by SIGKILL"), 20.0)
    job.handle(co.Tick(), 21.0)
    job.handle(co.NodePrepared(1, "host:11"), 22.0)
    told = members(4, {1: 1, 2: 0}, 0)
    assert job.handle(ended(0, epoch=2), 22.0) == [
        co.ChangeNode(0, Life.ENDED, 0, 4),
        co.Connect(1, told),
        co.Connect(2, told),
    ]
    assert job.handle(ended(2, epoch=4), 23.0) == []
    assert job.handle(ended(1, epoch=4), 24.0)[-1] == co.Finish(JobState.FINISHED, "", "epochs")


def test_joiner_that_is_needed_is_told_that_the_others_are_through_when_the_last_had_not_heard_of_it() -> None:
    job = running(2, min_nodes=2)
    job.handle(co.NodeExited(1, KILLED), 20.0)
    job.handle(co.Tick(), 21.0)
    job.handle(co.NodePrepared(1, "host:11"), 22.0)
    told = co.Connect(1, members(4, {1: 1}, 0))
    assert job.handle(ended(0, epoch=2), 22.0) == [co.ChangeNode(0, Life.ENDED, 0, 4), told]
    assert job.handle(ended(1, epoch=4), 23.0)[-1] == co.Finish(JobState.FINISHED, "", "epochs")


def test_restarted_node_that_takes_too_long_is_killed() -> None:
    job = running(2)
    job.handle(co.NodeExited(1, "its job process ended by SIGKILL"), 20.0)
    job.handle(co.Tick(), 21.0)
    commands = job.handle(co.Tick(), 621.0)
    assert commands[0] == co.KillNodes((1,))
    assert job.nodes[1].life is Life.DYING


nodes = st.integers(0, 2)
happenings = st.one_of(
    nodes.map(lambda node: co.NodePrepared(node, f"host:{node}")),
    nodes.map(co.NodeReady),
    st.builds(ended, nodes, st.one_of(st.none(), st.integers(1, 6))),
    nodes.map(lambda node: co.NodeExited(node, "its job process ended by SIGKILL")),
    nodes.map(lambda node: co.NodeStalled(node, "no progress")),
    nodes.map(co.NodeLost),
    nodes.map(co.NodeBack),
    nodes.map(co.NodePaused),
    st.builds(lambda node, step: co.LinkBroken(node, (node + step) % 3, "down"), nodes, st.integers(1, 2)),
    st.tuples(nodes, nodes).map(lambda both: co.LinkBroken(*both, "link")),
    st.just(co.Tick()),
    st.just(co.CheckpointFound(7)),
    st.just(co.CheckpointFound(None, "there is none")),
    st.just(co.Placed(("n0", "n1", "n2"))),
)


@given(
    st.lists(st.tuples(happenings, st.floats(0.0, 5.0)), max_size=60),
    st.integers(1, 3),
    st.sets(nodes, max_size=1),
    st.booleans(),
    st.booleans(),
)
@settings(deadline=None)
def test_whoever_dies_joins_and_ends_in_any_order_the_job_finishes_once_and_the_buried_are_left_alone(
    happened: list[tuple[co.Event, float]], min_nodes: int, needed: set[int], stop: bool, goes_on: bool
) -> None:
    rules = StopRules(time_s=30.0 if stop else None)
    job = running(3, rules, min_nodes=min_nodes, needed=needed, goes_on=goes_on)
    now, epoch, finishes = 10.0, 1, 0
    incarnations = {0: 0, 1: 0, 2: 0}
    for event, delay_s in happened:
        now += delay_s
        commands = job.handle(event, now)
        for command in commands:
            assert finishes == 0
            match command:
                case co.Finish():
                    finishes += 1
                case co.ChangeState(JobState.PENDING):
                    epoch, incarnations = 0, dict.fromkeys(incarnations, 0)
                case co.Deploy(node, incarnation):
                    assert incarnation == incarnations[node] + bool(epoch)
                    incarnations[node] = incarnation
                case co.Connect(node, told):
                    assert told.epoch >= epoch
                    epoch = told.epoch
                    assert job.state in ENDED or node in told.incarnations
                    assert told.addresses.keys() <= told.incarnations.keys()
                case co.Start(node):
                    assert job.nodes[node].life is Life.ALIVE
        assert finishes == (job.state in ENDED)
        if job.state is JobState.RUNNING:
            last = [c.members for c in commands if isinstance(c, co.Connect)]
            if last:
                assert set(last[-1].addresses) == set(job.nodes.those(Life.ALIVE))
    for _ in range(2):  # nobody is heard of any more
        for node in range(3):
            job.handle(co.NodeLost(node), now)
        now += 1000.0
        job.handle(co.Tick(), now)
    assert job.state in ENDED or (goes_on and job.state is JobState.PENDING)
