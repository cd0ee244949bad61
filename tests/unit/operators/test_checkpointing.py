import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.checkpointing import Checkpoints


@pytest.mark.parametrize(
    ("images", "workers", "every"), [(64, 1, 8), (64, 2, 4), (64, 3, 3), (64, 16, 1), (1, 4, 1), (1000, 2, 62)]
)
def test_checkpoints_are_due_in_equal_numbers_of_gradients(images, workers, every):
    checkpoints = Checkpoints(images=images, batch=8)
    due = [checkpoints.due(number - 1, number, workers) for number in range(1, 200)]
    assert [number for number in due if number is not None] == list(range(every, 200, every))
    assert all(number is None or number == at for at, number in enumerate(due, start=1))


def test_checkpoint_that_was_passed_over_is_due_once():
    checkpoints = Checkpoints(images=64, batch=8)
    assert checkpoints.due(7, 17, 1) == 16
    assert checkpoints.due(16, 23, 1) is None


@given(st.lists(st.integers(1, 64), min_size=20, max_size=60))
def test_whoever_looks_once_in_so_many_gradients_keeps_every_multiple_of_the_next_power_of_two(gaps):
    """Checkpoints are due every 8 gradients, and there are at most 64 between two looks."""
    checkpoints, at, kept = Checkpoints(images=64, batch=8), 0, set()
    for gap in gaps:
        kept.add(checkpoints.due(at, at + gap, 1))
        at += gap
    assert kept >= set(range(64, at + 1, 64))
