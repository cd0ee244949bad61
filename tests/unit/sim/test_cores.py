"""The cores of a node, shared by its compute tasks and borrowed for what it does besides."""

import pytest

from dataflow.sim.cores import Cores


def ends_at(cores: Cores, done_s: float, mark: float) -> float:
    """When a compute task ends that would at `done_s` if it lost nothing."""
    while True:
        owed_s, mark = cores.owed(done_s, mark)
        if owed_s == 0:
            cores.end(done_s)
            return done_s
        done_s += owed_s


def test_task_alone_on_its_core_loses_nothing() -> None:
    cores = Cores(1)
    assert ends_at(cores, 5.0, cores.begin(0.0)) == 5.0


def test_compute_task_on_one_core_loses_all_that_something_else_takes() -> None:
    cores = Cores(1)
    mark = cores.begin(0.0)
    cores.take(1.0, 1.25)
    assert ends_at(cores, 5.0, mark) == 5.25


def test_compute_task_on_one_core_ends_after_what_came_up_just_before_its_end() -> None:
    """A second of it was left at 4, and five begin then: it goes on at 9; at 9.5 another quarter is lost."""
    cores = Cores(1)
    mark = cores.begin(0.0)
    cores.take(4.0, 9.0)
    owed_s, mark = cores.owed(5.0, mark)
    assert owed_s == 5.0
    cores.take(9.5, 9.75)
    assert ends_at(cores, 10.0, mark) == 10.25


def test_free_core_does_the_rest_and_nobody_loses() -> None:
    cores = Cores(2)
    mark = cores.begin(0.0)
    cores.take(1.0, 1.25)
    assert ends_at(cores, 5.0, mark) == 5.0


def test_busy_cores_share_what_something_else_takes() -> None:
    cores = Cores(2)
    marks = [cores.begin(0.0), cores.begin(0.0)]
    cores.take(1.0, 1.25)
    assert [cores.owed(5.0, mark)[0] for mark in marks] == [0.125, 0.125]


def test_compute_tasks_of_which_another_ends_meanwhile_lose_only_until_then() -> None:
    """Both compute from 0 to 2, in which time 1 to 2 is shared; then a core is free."""
    cores = Cores(2)
    marks = [cores.begin(0.0), cores.begin(0.0)]
    cores.take(1.0, 4.0)
    cores.end(2.0)
    assert cores.owed(6.0, marks[0])[0] == 0.5


def test_compute_task_that_begins_beside_something_else_loses_what_is_left_of_it() -> None:
    cores = Cores(1)
    cores.take(1.0, 1.25)
    assert ends_at(cores, 5.0, cores.begin(1.125)) == 5.125


def test_compute_task_that_begins_after_another_ended_owes_nothing_of_the_others() -> None:
    cores = Cores(1)
    cores.begin(0.0)
    cores.take(0.5, 0.75)
    cores.end(1.0)
    assert ends_at(cores, 5.0, cores.begin(2.0)) == 5.0


@pytest.mark.parametrize(("now", "free_s"), [(0.5, 1.25), (1.25, 1.25), (2.0, 2.0)])
def test_cores_are_free_for_something_else_once_the_last_is_done(now: float, free_s: float) -> None:
    cores = Cores(2)
    cores.take(0.25, 1.25)
    assert cores.free_s(now) == free_s
