"""The cores of a node of its own machine, shared by its compute tasks and borrowed for what it does besides."""

import random

import pytest

from dataflow.sim.cores import Cores


def ends_at(cores: Cores, now: float, mark: float) -> float:
    """When a compute task ends, if nothing more comes up."""
    while (done_s := cores.computed_s(now, mark)) > now:
        now = done_s
    cores.end(now, mark)
    return now


def test_task_alone_on_its_core_loses_nothing() -> None:
    cores = Cores(1)
    assert ends_at(cores, 0.0, cores.compute(0.0, 5.0)) == 5.0


def test_compute_task_on_one_core_loses_all_that_something_else_takes() -> None:
    cores = Cores(1)
    mark = cores.compute(0.0, 5.0)
    assert cores.computed_s(0.0, mark) == 5.0
    cores.beside(1.0, 0.25)
    assert ends_at(cores, 5.0, mark) == 5.25


def test_compute_task_on_one_core_ends_after_what_came_up_just_before_its_end() -> None:
    """A second of it was left at 4, and five begin then: it goes on at 9; at 9.5 another quarter is lost."""
    cores = Cores(1)
    mark = cores.compute(0.0, 5.0)
    cores.beside(4.0, 5.0)
    assert cores.computed_s(5.0, mark) == 10.0
    cores.beside(9.5, 0.25)
    assert ends_at(cores, 10.0, mark) == 10.25


def test_free_core_does_the_rest_and_nobody_loses() -> None:
    cores = Cores(2)
    mark = cores.compute(0.0, 5.0)
    cores.beside(1.0, 0.25)
    assert ends_at(cores, 5.0, mark) == 5.0


def test_busy_cores_share_what_something_else_takes() -> None:
    cores = Cores(2)
    marks = [cores.compute(0.0, 5.0), cores.compute(0.0, 5.0)]
    cores.beside(1.0, 0.25)
    assert [cores.computed_s(1.0, mark) for mark in marks] == [5.125, 5.125]
    assert [cores.computed_s(5.0, mark) for mark in marks] == [5.125, 5.125]


def test_compute_task_that_ends_before_what_is_done_besides_loses_its_share_until_then() -> None:
    cores = Cores(2)
    marks = [cores.compute(0.0, 1.0), cores.compute(0.0, 1.0)]
    cores.beside(0.0, 10.0)
    assert [cores.computed_s(0.0, mark) for mark in marks] == [2.0, 2.0]


def test_compute_tasks_of_which_another_ends_meanwhile_lose_only_until_then() -> None:
    """Both compute from 0 to 2, in which time 1 to 2 is shared; then a core is free."""
    cores = Cores(2)
    marks = [cores.compute(0.0, 6.0), cores.compute(0.0, 1.5)]
    cores.beside(1.0, 3.0)
    assert ends_at(cores, 1.5, marks[1]) == 2.0
    assert ends_at(cores, 6.0, marks[0]) == 6.5


def test_compute_task_that_begins_beside_something_else_loses_what_is_left_of_it() -> None:
    cores = Cores(1)
    cores.beside(1.0, 0.25)
    assert ends_at(cores, 1.125, cores.compute(1.125, 3.875)) == 5.125


def test_compute_task_that_begins_after_another_ended_owes_nothing_of_the_others() -> None:
    cores = Cores(1)
    first = cores.compute(0.0, 0.75)
    cores.beside(0.5, 0.25)
    assert ends_at(cores, 0.75, first) == 1.0
    assert ends_at(cores, 2.0, cores.compute(2.0, 3.0)) == 5.0


@pytest.mark.parametrize(("now", "done_s"), [(0.5, 1.75), (1.25, 1.75), (2.0, 2.5)])
def test_something_else_is_done_once_all_before_it_is(now: float, done_s: float) -> None:
    cores = Cores(2)
    cores.beside(0.25, 1.0)
    mark = cores.beside(now, 0.5)
    assert cores.beside_s(now, mark) == done_s
    assert cores.done_s(now, 0.25) == done_s + 0.25
    assert cores.done_s(now, 0.0) == done_s + 0.25
    assert cores.beside_s(done_s, mark) == done_s
    assert cores.done_s(done_s + 0.25, 0.0) == done_s + 0.25


def test_turn_of_something_else_begins_when_what_was_before_it_is_done() -> None:
    cores = Cores(1)
    assert cores.turn_s(1.5, 1.0) == 0.5
    assert cores.turn_s(2.0, 1.0) == 0.5
    assert cores.turn_s(5.0, 4.0) == 1.0


def test_what_comes_up_later_is_never_done_sooner_for_rounding() -> None:
    rng, cores, now, before_s = random.Random(3), Cores(2), 0.0, 0.0
    for _ in range(20_000):
        now += rng.choice([0.0, 1e-4, 1e-3]) * rng.random()
        done_s = cores.done_s(now, rng.choice([0.0, 5e-4]))
        assert done_s >= before_s
        before_s = done_s
