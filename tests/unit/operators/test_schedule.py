import pytest

from operators.schedule import Schedule


def test_at_without_warm_up_is_constant():
    schedule = Schedule(lr=0.5)
    assert [schedule.at(number, 4) for number in (1, 2, 1000)] == [0.5] * 3


def test_at_warm_up_of_four_workers_rises_from_a_quarter():
    schedule = Schedule(lr=0.8, warmup_steps=16)  # four gradients of each worker
    assert [schedule.at(number, 4) for number in range(1, 7)] == pytest.approx([0.2, 0.35, 0.5, 0.65, 0.8, 0.8])


def test_at_warm_up_of_one_worker_is_constant():
    schedule = Schedule(lr=0.8, warmup_steps=10)
    assert [schedule.at(number, 1) for number in (1, 5, 11)] == [0.8] * 3


def test_at_warm_up_shorter_than_a_gradient_is_over_at_once():
    assert Schedule(lr=0.8, warmup_steps=3).at(1, 4) == 0.8
