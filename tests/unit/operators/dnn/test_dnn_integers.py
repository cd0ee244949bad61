from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.dnn.integers import mean, to_floats, to_integers

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
    ("numbers", "weights", "want"),
    [
        ([4, 6], [1, 1], 5),
        ([-1, 1], [1, 2], 0),  # 1/3
        ([-1, 2], [16, 15], 0),  # 14/31
        ([-1, 0, 0], [1, 1, 1], 0),
        ([2**48 - 1, 2**48 + 1], [1, 2], 2**48),  # and 1/3
        ([2**24 - 1, 2**48 + 2**24 - 1], [1, 1], 2**47 + 2**24 - 1),
        ([2**63 - 1, -(2**63)], [1, 1], 0),  # -1/2
        ([2**63 - 1, -(2**63)], [2, 1], 3074457345618258602),  # (2 * (2**63 - 1) - 2**63) / 3, and 2/3 less
        ([-(2**63), -(2**63) + 1], [3, 4], -(2**63) + 1),  # 4/7
        ([1, 2], [1, 1], 2),  # a half, to even
        ([-3, -2], [1, 1], -2),
        ([7, 5], [1, 0], 7),
    ],
)
def test_mean_of_integers_is_exact_and_rounded_to_the_nearest(numbers, weights, want):
    assert mean(np.array(numbers)[:, None], weights).tolist() == [want]


@given(
    numbers=st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**6)), min_size=1, max_size=5).filter(
        lambda pairs: any(weight for _, weight in pairs)
    )
)
def test_mean_of_any_integers_is_that_of_fractions(numbers):
    values, weights = zip(*numbers, strict=True)
    exact = Fraction(sum(value * weight for value, weight in numbers), sum(weights))
    assert mean(np.array(values)[:, None], weights).tolist() == [round(exact)]


def test_integers_none_give_none():
    assert to_integers(to_floats(np.zeros(0, np.int64))).tolist() == []
