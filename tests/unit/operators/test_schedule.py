import pytest

from operators.passes import Passes
from operators.schedule import Constant, Cosine, Schedule, Step

EACH = Passes(images=1, batch=1)
"""One gradient of a worker is an epoch."""


def rates(schedule, numbers, workers=1):
    return [schedule.at(number, workers) for number in numbers]


def test_at_without_warm_up_is_constant():
    schedule = Schedule(lr=0.5)
    assert [schedule.at(number, 4) for number in (1, 2, 1000)] == [0.5] * 3


def test_at_warm_up_of_four_workers_rises_from_a_quarter():
    schedule = Schedule(lr=0.8, warmup=1.0, passes=Passes(images=16, batch=1))  # four gradients of each worker
    assert [schedule.at(number, 4) for number in range(1, 7)] == pytest.approx([0.2, 0.35, 0.5, 0.65, 0.8, 0.8])


def test_at_warm_up_of_one_worker_is_constant():
    schedule = Schedule(lr=0.8, warmup=1.0, passes=Passes(images=10, batch=1))
    assert [schedule.at(number, 1) for number in (1, 5, 11)] == [0.8] * 3


def test_at_warm_up_shorter_than_a_gradient_is_over_behind_the_first():
    schedule = Schedule(lr=0.8, warmup=0.5, passes=Passes(images=4, batch=1))
    assert [schedule.at(number, 4) for number in (1, 2)] == [0.2, 0.8]


def test_at_step_falls_with_the_first_gradient_after_each_milestone():
    schedule = Schedule(lr=0.8, decay=Step(milestones=(2, 4), gamma=0.5), passes=EACH)
    assert rates(schedule, (1, 2, 3, 4, 5, 100)) == [0.8, 0.8, 0.4, 0.4, 0.2, 0.2]


def test_at_step_milestones_are_epochs_of_what_workers_share():
    schedule = Schedule(lr=0.8, decay=Step(milestones=(2,), gamma=0.25), passes=Passes(images=3, batch=1))
    assert rates(schedule, (1, 2, 3, 4), workers=3) == [0.8, 0.8, 0.2, 0.2]


def test_at_cosine_falls_to_the_least_rate_at_the_end():
    schedule = Schedule(lr=0.9, decay=Cosine(end=6, lr_min=0.1), passes=EACH)
    # 0.1 + 0.4 (1 + cos x) for x = 0, 30, 60, 90, 120, 150, 180 degrees and beyond the end
    want = [0.9, 0.1 + 0.4 * 1.8660254, 0.7, 0.5, 0.3, 0.1 + 0.4 * 0.1339746, 0.1, 0.1]
    assert rates(schedule, range(1, 9)) == pytest.approx(want)


def test_at_cosine_of_two_workers_goes_twice_as_fast():
    schedule = Schedule(lr=0.9, decay=Cosine(end=1, lr_min=0.1), passes=Passes(images=6, batch=1))
    assert rates(schedule, range(1, 5), workers=2) == pytest.approx([0.9, 0.7, 0.3, 0.1])


def test_at_cosine_begins_where_the_warm_up_ends():
    schedule = Schedule(lr=0.8, warmup=1, decay=Cosine(begin=1, end=2), passes=Passes(images=4, batch=1))
    # of two workers: 0.4, 0.6, then 0.8 x 1, 1/2, 0
    assert rates(schedule, range(1, 7), workers=2) == pytest.approx([0.4, 0.6, 0.8, 0.4, 0.0, 0.0])


def test_at_step_within_the_warm_up_scales_both():
    schedule = Schedule(lr=0.8, warmup=2, decay=Step(milestones=(1,), gamma=0.5), passes=Passes(images=4, batch=1))
    # of two workers: the warm-up gives 4/8, 5/8, 6/8, 7/8, 1 of 0.8 before the milestone and of 0.4 after it
    assert rates(schedule, range(1, 6), workers=2) == pytest.approx([0.4, 0.5, 0.3, 0.35, 0.4])


def test_behind_goes_by_images_whoever_has_made_gradients_of_them():
    schedule = Schedule(lr=0.8, decay=Cosine(end=2), passes=Passes(images=12, batch=5))
    assert [schedule.behind(images, 3) for images in (0, 8, 12, 16, 24)] == pytest.approx([0.8, 0.6, 0.4, 0.2, 0])
    assert Schedule(lr=0.5).behind(1000, 3) == 0.5


def test_budget_is_the_nearest_number_of_images():
    passes = Passes(images=10, batch=3)
    assert [passes.budget(epochs) for epochs in (0.01, 0.24, 0.25, 2)] == [1, 2, 3, 20]


@pytest.mark.parametrize("decay", [Step(milestones=(3,), gamma=0.1), Cosine(begin=2, end=11, lr_min=0.01)])
def test_schedule_survives_json(decay):
    schedule = Schedule(lr=0.5, decay=decay, passes=EACH)
    assert Schedule.model_validate_json(schedule.model_dump_json()) == schedule


@pytest.mark.parametrize("decay", [Constant(), Step(milestones=(1,), gamma=0.5), Cosine(end=10)])
@pytest.mark.parametrize("warmup", [0, 40])
def test_at_before_the_first_gradient_is_as_at_it(decay, warmup):
    schedule = Schedule(lr=0.5, warmup=warmup, decay=decay, passes=EACH)
    assert schedule.at(0, 4) == schedule.at(1, 4) > 0


@pytest.mark.parametrize("decay", [Step(milestones=(1,), gamma=0.5), Cosine(end=10)])
def test_rate_that_changes_needs_to_know_what_an_epoch_is(decay):
    with pytest.raises(ValueError, match="needs passes"):
        Schedule(lr=0.5, decay=decay)


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_cosine_falls_over_all_epochs_however_large_the_last_mini_batches_are(workers):
    """Of 8 workers each has 162 images, and makes two gradients of them: 150 and 12."""
    passes = Passes(images=1296, batch=150)
    schedule = Schedule(lr=1.0, decay=Cosine(end=6), passes=passes)
    steps = 6 * passes.steps(workers)
    assert passes.made(steps, workers) == 6
    assert schedule.at(steps // 2 + 1, workers) == pytest.approx(0.5)
    assert schedule.at(steps, workers) > schedule.at(steps + 1, workers) == 0
