import numpy as np
import pytest

from operators.dnn.integers import to_floats, to_integers

NUMBERS = [0, 1, -1, 2**24 - 1, 2**24, 2**24 + 1, -(2**24) - 1, 2**48, 2**53 + 1, 2**63 - 1, -(2**63)]


def test_integers_through_floats_are_exact():
    numbers = np.array(NUMBERS, np.int64)
    floats = to_floats(numbers)
    assert floats.dtype == np.float32
    assert floats.shape == (3 * len(NUMBERS),)
    assert to_integers(floats).tolist() == NUMBERS


def test_to_floats_parts_are_high_middle_low():
    assert to_floats(np.array([(5 << 48) + (6 << 24) + 7, -1])).tolist() == [5, -1, 6, 2**24 - 1, 7, 2**24 - 1]


@pytest.mark.parametrize(
    ("one", "other", "mean"),
    [(4, 6, 5), (2**24 - 2, 2**24, 2**24 - 1), (2**48 - 2, 2**48, 2**48 - 1), (-2, 2, 0), (7, 7, 7)],
)
def test_to_integers_mean_of_floats_is_the_mean_of_the_integers(one, other, mean):
    floats = (to_floats(np.array([one])) + to_floats(np.array([other]))) / np.float32(2)
    assert to_integers(floats).tolist() == [mean]


def test_integers_none_give_none():
    assert to_integers(to_floats(np.zeros(0, np.int64))).tolist() == []
