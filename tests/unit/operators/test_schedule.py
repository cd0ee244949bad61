import pytest

from operators.schedule import Constant, Cosine, Schedule, Step


def rates(schedule, numbers, workers=1):
    return [schedule.at(number, workers) for number in numbers]


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


def test_at_step_falls_with_the_first_gradient_after_each_milestone():
    schedule = Schedule(lr=0.8, decay=Step(milestones=(2, 4), gamma=0.5))
    assert rates(schedule, (1, 2, 3, 4, 5, 100)) == [0.8, 0.8, 0.4, 0.4, 0.2, 0.2]


def test_at_step_milestones_count_the_gradients_of_all_workers():
    schedule = Schedule(lr=0.8, decay=Step(milestones=(6,), gamma=0.25))  # three have made 6 after two each
    assert rates(schedule, (1, 2, 3, 4), workers=3) == [0.8, 0.8, 0.2, 0.2]


def test_at_cosine_falls_to_the_least_rate_at_the_end():
    schedule = Schedule(lr=0.9, decay=Cosine(steps=6, lr_min=0.1))
    # 0.1 + 0.4 (1 + cos x) for x = 0, 30, 60, 90, 120, 150, 180 degrees and beyond the end
    want = [0.9, 0.1 + 0.4 * 1.8660254, 0.7, 0.5, 0.3, 0.1 + 0.4 * 0.1339746, 0.1, 0.1]
    assert rates(schedule, range(1, 9)) == pytest.approx(want)


def test_at_cosine_of_two_workers_goes_twice_as_fast():
    schedule = Schedule(lr=0.9, decay=Cosine(steps=6, lr_min=0.1))
    assert rates(schedule, range(1, 5), workers=2) == pytest.approx([0.9, 0.7, 0.3, 0.1])


def test_at_cosine_begins_where_the_warm_up_ends():
    schedule = Schedule(lr=0.8, warmup_steps=4, decay=Cosine(begin=4, steps=4))
    # of two workers: 0.4, 0.6, then 0.8 x 1, 1/2, 0
    assert rates(schedule, range(1, 7), workers=2) == pytest.approx([0.4, 0.6, 0.8, 0.4, 0.0, 0.0])


def test_at_step_within_the_warm_up_scales_both():
    schedule = Schedule(lr=0.8, warmup_steps=8, decay=Step(milestones=(4,), gamma=0.5))
    # of two workers: the warm-up gives 4/8, 5/8, 6/8, 7/8, 1 of 0.8 before the milestone and of 0.4 after it
    assert rates(schedule, range(1, 6), workers=2) == pytest.approx([0.4, 0.5, 0.3, 0.35, 0.4])


@pytest.mark.parametrize("decay", [Step(milestones=(3,), gamma=0.1), Cosine(begin=2, steps=9, lr_min=0.01)])
def test_schedule_survives_json(decay):
    schedule = Schedule(lr=0.5, decay=decay)
    assert Schedule.model_validate_json(schedule.model_dump_json()) == schedule


@pytest.mark.parametrize("decay", [Constant(), Step(milestones=(1,), gamma=0.5), Cosine(steps=10)])
@pytest.mark.parametrize("warmup_steps", [0, 40])
def test_at_before_the_first_gradient_is_as_at_it(decay, warmup_steps):
    schedule = Schedule(lr=0.5, warmup_steps=warmup_steps, decay=decay)
    assert schedule.at(0, 4) == schedule.at(1, 4) > 0
