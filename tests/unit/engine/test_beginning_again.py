"""Jobs whose nodes have all died begin again, as their coordinator decides."""

from __future__ import annotations

import pytest
from coordinating import KILLED, ended, running

from dataflow.engine import coordination as co
from dataflow.engine.coordinator import JobCoordinator
from dataflow.engine.job_life import JobState
from dataflow.engine.membership import Life, Members
from dataflow.plan.job import StopRules
from dataflow.reports import LEFT_TO_OTHERS, NodeStatistics, OperatorReport, SampleStatistics

ALL_DIED = f"all its nodes have died, the last of them node n1: {KILLED}"


def all_die(job: JobCoordinator, now: float) -> list[co.Command]:
    job.handle(co.NodeLost(0, "its connection broke"), now)
    return job.handle(co.NodeExited(1, KILLED), now)


def with_one_that_has_come_back() -> JobCoordinator:
    """A job of two nodes, of which node 1 has died and runs again since second 23."""
    job = running(2, goes_on=True)
    job.handle(co.NodeExited(1, KILLED), 20.0)
    job.handle(co.Tick(), 21.0)
    job.handle(co.NodePrepared(1, "host:1"), 22.0)
    job.handle(co.NodeReady(1), 23.0)
    return job


def ended_that_has_left_the_last_work() -> co.NodeEnded:
    """The end of node 1, which has left that to another one."""
    samples = {f"due.{LEFT_TO_OTHERS}": SampleStatistics(1, 1.0, 1.0, 1.0)}
    return co.NodeEnded(1, NodeStatistics(1, samples=samples))


def start_again(job: JobCoordinator, now: float, number: int = 700) -> list[co.Command]:
    """Find a checkpoint, and bring the job to where it runs."""
    job.handle(co.CheckpointFound(number), now)
    job.handle(co.Placed(("n5", "n6")), now)
    for node in range(2):
        job.handle(co.NodePrepared(node, f"host:{node}"), now)
    job.handle(co.NodeReady(0), now)
    return job.handle(co.NodeReady(1), now)


def test_job_whose_nodes_are_all_dead_is_placed_again_from_its_newest_checkpoint() -> None:
    job = running(2, StopRules(time_s=100), goes_on=True)
    commands = all_die(job, 20.0)
    assert commands[1:] == [co.ChangeState(JobState.PENDING, ALL_DIED), co.KillNodes((0, 1)), co.FindCheckpoint()]
    assert job.again.looking
    for late in (co.NodeBack(0), co.NodeExited(0, KILLED), co.NodeFailed(1, "broken"), co.Tick()):
        assert job.handle(late, 21.0) == []
    (told,) = job.handle(co.CheckpointFound(700), 22.0)
    assert told == co.ChangeState(JobState.PENDING, f"{ALL_DIED}; it goes on from checkpoint 700")
    assert not job.again.looking
    placed = job.handle(co.Placed(("n5", "n6")), 23.0)
    assert placed[:3] == [co.ChangeState(JobState.DEPLOYING), co.Deploy(0), co.Deploy(1)]
    job.handle(co.NodePrepared(0, "host:0"), 24.0)
    founded = job.handle(co.NodePrepared(1, "host:1"), 24.0)
    whole = Members(1, {0: 0, 1: 0}, {0: "host:0", 1: "host:1"})
    assert [each for each in founded if isinstance(each, co.Connect)] == [co.Connect(0, whole), co.Connect(1, whole)]
    assert co.ChangeNode(1, Life.ALIVE, 0, 1) in founded
    job.handle(co.NodeReady(0), 25.0)
    begun = job.handle(co.NodeReady(1), 25.0)
    assert co.Start(0) in begun
    assert job.started_s == 10.0
    assert begun[-1] == co.SetTimer(110.0)  # the time that it may run counts from its first start


def test_job_begins_again_whose_last_node_has_come_back_and_says_that_it_has_learnt_nothing() -> None:
    job = with_one_that_has_come_back()
    job.handle(co.NodeLost(0, "its connection broke"), 24.0)
    assert job.state is JobState.RUNNING
    commands = job.handle(co.NodeFailed(1, "all that had joined have died", "enrol", anew=True), 24.1)
    assert co.FindCheckpoint() in commands
    assert job.state is JobState.PENDING


@pytest.mark.parametrize("left", [True, False])
def test_job_begins_again_if_only_those_have_ended_that_have_left_the_last_work_to_others(left: bool) -> None:
    job = with_one_that_has_come_back()
    job.handle(ended_that_has_left_the_last_work() if left else ended(1), 24.0)
    assert job.state is JobState.RUNNING
    job.handle(co.NodeExited(0, KILLED), 25.0)
    assert job.state is (JobState.PENDING if left else JobState.FINISHED)


def test_job_is_finished_if_one_has_ended_that_has_not_left_the_last_work_to_others() -> None:
    job = with_one_that_has_come_back()
    job.handle(ended_that_has_left_the_last_work(), 24.0)
    job.handle(ended(0), 25.0)
    assert job.state is JobState.FINISHED


def test_job_that_waits_for_nodes_again_says_for_which_and_why_it_does() -> None:
    job = running(2, goes_on=True)
    all_die(job, 20.0)
    job.handle(co.CheckpointFound(700), 21.0)
    (told,) = job.handle(co.Unplaced("needs 2 nodes, 1 attached"), 22.0)
    why = f"{ALL_DIED}; it goes on from checkpoint 700; needs 2 nodes, 1 attached"
    assert told == co.ChangeState(JobState.PENDING, why)


def test_job_that_waits_for_nodes_for_the_first_time_says_for_which() -> None:
    job = JobCoordinator(2, StopRules(), goes_on=True)
    (told,) = job.handle(co.Unplaced("needs 2 nodes, 1 attached"), 1.0)
    assert told == co.ChangeState(JobState.PENDING, "needs 2 nodes, 1 attached")


def test_job_that_comes_to_no_other_checkpoint_before_all_its_nodes_die_fails_at_last() -> None:
    job = running(2, goes_on=True)
    for life in range(6):  # the checkpoints of 3 lives, and then the last of them 3 times more
        all_die(job, 20.0 + 1000 * life)
        start_again(job, 20.0 + 1000 * life, 700 + min(life, 3))
        assert job.state is JobState.RUNNING
    all_die(job, 9000.0)
    finish = job.handle(co.CheckpointFound(703), 9000.0)[-1]
    why = f"{ALL_DIED.replace('n1', 'n6')}; it has gone on 3 times from checkpoint 703, and come no further"
    assert finish == co.Finish(JobState.FAILED, why, "", 1)


def test_what_is_watched_for_a_stop_rule_begins_again_with_the_job() -> None:
    rules = StopRules(report="validate.results", metric="accuracy", patience=3)
    job = running(2, rules, goes_on=True)

    def tell(accuracy: float) -> list[co.Command]:
        return job.handle(co.NodeReport(0, OperatorReport("validate.results", {"accuracy": accuracy})), 15.0)

    for accuracy in (0.1, 0.5, 0.5):
        assert tell(accuracy) == []
    all_die(job, 20.0)
    start_again(job, 21.0)
    for accuracy in (0.5, 0.5, 0.5):
        assert tell(accuracy) == []
    assert co.StopNodes((0, 1), "patience") in tell(0.5)


def test_job_whose_nodes_all_die_before_they_are_members_again_is_placed_once_more() -> None:
    job = running(2, goes_on=True)
    all_die(job, 20.0)
    job.handle(co.CheckpointFound(700), 21.0)
    job.handle(co.Placed(("n5", "n6")), 22.0)
    for node in range(2):
        job.handle(co.NodeLost(node, "its connection broke"), 23.0)
    assert co.FindCheckpoint() in job.handle(co.Tick(), 34.0)
    start_again(job, 40.0)
    assert job.state is JobState.RUNNING


def test_job_whose_checkpoint_broke_since_it_was_found_waits_for_the_one_before() -> None:
    job = running(2, goes_on=True)
    all_die(job, 20.0)
    job.handle(co.CheckpointFound(700), 21.0)
    job.handle(co.Placed(("n5", "n6")), 22.0)
    job.handle(co.NodePrepared(0, "host:0"), 23.0)
    commands = job.handle(co.NodeFailed(1, "checkpoint 700 cannot be used", checkpoint=True), 23.0)
    why = "node n6: checkpoint 700 cannot be used"
    assert commands[:3] == [co.ChangeState(JobState.PENDING, why), co.KillNodes((0, 1)), co.FindCheckpoint()]
    (told,) = job.handle(co.CheckpointFound(600), 24.0)
    assert told == co.ChangeState(JobState.PENDING, f"{why}; it goes on from checkpoint 600")
    start_again(job, 25.0, 600)
    assert job.state is JobState.RUNNING


def test_job_whose_only_checkpoint_breaks_whenever_it_is_read_fails_at_last() -> None:
    job = running(2, goes_on=True)
    all_die(job, 20.0)
    for _ in range(3):
        job.handle(co.CheckpointFound(700), 21.0)
        job.handle(co.Placed(("n5", "n6")), 22.0)
        job.handle(co.NodeFailed(1, "checkpoint 700 cannot be used", checkpoint=True), 23.0)
    finish = job.handle(co.CheckpointFound(700), 24.0)[-1]
    why = "node n6: checkpoint 700 cannot be used; it has gone on 3 times from checkpoint 700, and come no further"
    assert finish == co.Finish(JobState.FAILED, why, "", 1)


def test_job_that_was_submitted_to_go_on_from_a_checkpoint_fails_if_that_has_broken() -> None:
    job = JobCoordinator(2, StopRules(), goes_on=True)
    job.handle(co.Placed(("n0", "n1")), 1.0)
    finish = job.handle(co.NodeFailed(1, "checkpoint 700 cannot be used", checkpoint=True), 2.0)[-1]
    assert finish == co.Finish(JobState.FAILED, "node n1: checkpoint 700 cannot be used", "", 1)


def test_node_that_fails_is_not_told_to_have_been_started_again_for_what_befell_it_in_an_earlier_life() -> None:
    job = running(2, goes_on=True)
    all_die(job, 20.0)
    job.handle(co.CheckpointFound(700), 21.0)
    job.handle(co.Placed(("n5", "n6")), 22.0)
    finish = job.handle(co.NodeFailed(1, "no such file"), 23.0)[-1]
    assert finish == co.Finish(JobState.FAILED, "node n6: no such file", "", 1)


def test_change_that_is_under_way_when_all_die_is_dropped() -> None:
    job = running(2, goes_on=True, adjusted=(0, 1))
    job.handle(co.AdjustAsked("operation", "star"), 15.0)
    number = job.adjusting.newest
    for stage in ("ready", "begun"):
        for node in range(2):
            said = OperatorReport("reconfigure.adjustments", {"adjustment": number, "stage": stage})
            job.handle(co.NodeReport(node, said), 16.0)
    commands = all_die(job, 20.0)
    assert co.TellAdjustment(number, "dropped", "all nodes have died") in commands
    assert not job.adjusting.under_way
    start_again(job, 21.0)
    job.handle(co.AdjustAsked("another", "chain"), 22.0)
    assert job.adjusting.newest == number + 1


def test_process_of_the_life_before_that_wakes_up_says_nothing_of_its_successor() -> None:
    job = running(2, goes_on=True)
    all_die(job, 20.0)
    assert job.handle(co.NodePaused(1, 4), 21.0) == []
    start_again(job, 22.0)
    assert job.nodes[1].paused == 0


def test_job_whose_last_node_leaves_while_the_others_have_died_begins_again() -> None:
    job = running(2, goes_on=True)
    job.handle(co.DrainAsked(0), 15.0)
    job.handle(co.NodeExited(1, KILLED), 16.0)
    commands = job.handle(ended(0), 17.0)
    assert co.FindCheckpoint() in commands
    assert job.state is JobState.PENDING


def deploying(job: JobCoordinator, now: float) -> None:
    """Place a job of two nodes, which get as far as having loaded their part."""
    job.handle(co.Placed(("n0", "n1")), now)
    for node in range(2):
        job.handle(co.NodePrepared(node, f"host:{node}"), now)


def lose_both(job: JobCoordinator, now: float) -> list[co.Command]:
    """Lose both nodes of a job, which are members."""
    return [command for node in range(2) for command in job.handle(co.NodeLost(node, "its connection broke"), now)]


def test_job_whose_nodes_all_die_before_it_ran_begins_again_from_its_start_but_not_for_ever() -> None:
    job = JobCoordinator(2, StopRules(), goes_on=True)
    for life in range(3):
        deploying(job, 100.0 * life)
        commands = lose_both(job, 100.0 * life)
        assert co.KillNodes((0, 1)) in commands
        assert co.FindCheckpoint() not in commands
        assert job.state is JobState.PENDING
        assert not job.again.looking
    deploying(job, 1000.0)
    (finish,) = (each for each in lose_both(job, 1000.0) if isinstance(each, co.Finish))
    assert finish.state is JobState.FAILED
    assert finish.reason.endswith("it has gone on 3 times where it began, and come no further")


@pytest.mark.parametrize(("goes_on", "state"), [(True, JobState.PENDING), (False, JobState.FAILED)])
def test_job_of_which_no_node_is_left_that_was_to_begin_with_a_model_begins_again(
    goes_on: bool, state: JobState
) -> None:
    job = JobCoordinator(2, StopRules(), goes_on=goes_on)
    deploying(job, 1.0)
    job.handle(co.NodeExited(0, KILLED), 2.0)
    job.handle(co.Tick(), 4.0)
    job.handle(co.NodePrepared(0, "host:10"), 5.0)
    job.handle(co.NodeReady(0), 6.0)
    job.handle(co.NodeExited(1, KILLED), 6.1)
    assert job.state is state


def test_job_without_a_checkpoint_fails_once_all_have_died_and_says_why() -> None:
    job = running(2, goes_on=True)
    all_die(job, 20.0)
    finish = job.handle(co.CheckpointFound(None, "there is no whole checkpoint"), 21.0)[-1]
    assert finish == co.Finish(JobState.FAILED, f"{ALL_DIED}; there is no whole checkpoint", "", 1)


def test_job_is_cancelled_while_its_checkpoint_is_looked_for() -> None:
    job = running(2, goes_on=True)
    all_die(job, 20.0)
    assert job.handle(co.CancelAsked(), 21.0)[-1] == co.Finish(JobState.CANCELLED, "cancelled", "cancel")
    assert job.handle(co.CheckpointFound(700), 22.0) == []


def test_job_that_is_stopping_does_not_begin_again_when_all_die() -> None:
    job = running(2, StopRules(time_s=5), goes_on=True)
    job.handle(co.Tick(), 15.0)
    assert isinstance(all_die(job, 16.0)[-1], co.Finish)


@pytest.mark.parametrize("goes_on", [True, False])
def test_job_of_servers_is_not_through_when_its_workers_have_left_and_died_and_servers_end_as_nobody_is_there(
    goes_on: bool,
) -> None:
    """To a server one that leaves by request has done its part; so it ends when the last of the others dies."""
    job = running(3, needed=[2], goes_on=goes_on)
    job.handle(co.DrainAsked(0), 20.0)
    job.handle(ended(0), 21.0)
    job.handle(co.NodeExited(1, KILLED), 22.0)
    commands = job.handle(ended(2), 22.1)
    if goes_on:
        assert co.ChangeState(JobState.PENDING, ALL_DIED) in commands
        assert co.FindCheckpoint() in commands
    else:
        (finish,) = (each for each in commands if isinstance(each, co.Finish))
        assert finish.state is JobState.FAILED
        assert finish.reason == f"{ALL_DIED}; ako resume goes on from its newest checkpoint"


def test_job_of_servers_is_through_when_a_worker_has_ended_and_the_others_have_died() -> None:
    job = running(3, needed=[2], goes_on=True)
    job.handle(co.NodeExited(1, KILLED), 20.0)
    job.handle(ended(0), 21.0)
    assert job.handle(ended(2), 21.1)[-1] == co.Finish(JobState.FINISHED, "", "epochs")
