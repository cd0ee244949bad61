"""Integers as float32 numbers, exactly: what lets counters travel in a vector of statistics.

A float32 holds integers up to 2**24. An int64 is split as ``high * 2**48 + middle * 2**24 + low`` with 0 <= middle,
low < 2**24 and -2**15 <= high < 2**15. A mean must be taken of the integers, not of their parts, whose means would have
to be rounded to float32 before they are multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

PARTS = 3
"""Floats per integer."""

_BITS = 24
_MASK = (1 << _BITS) - 1


def to_floats(integers: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Split integers (n,) into (3 n,) float32: all high parts, then the middle ones, then the low ones."""
    parts = (integers >> 2 * _BITS, (integers >> _BITS) & _MASK, integers & _MASK)
    return np.concatenate(parts).astype(np.float32)


def to_integers(floats: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Integers (n,) from the (3 n,) float32 that they were split into."""
    high, middle, low = floats.astype(np.int64).reshape(PARTS, -1)
    integers: npt.NDArray[np.int64] = (high << 2 * _BITS) + (middle << _BITS) + low
    return integers


def mean(numbers: npt.NDArray[np.int64], weights: Sequence[int]) -> npt.NDArray[np.int64]:
    """The weighted mean of rows of integers (rows, n), each exact and then rounded to the nearest, halves to even.

    Args:
        numbers: (rows, n).
        weights: of the rows, whose sum is below 2**31.
    """
    total, shares = sum(weights), np.array(weights, np.int64)
    # v = q * total + r: sums of w * q are means already, to which those of w * r, which are small, add the rest.
    quotients, remainders = np.divmod(numbers, total)
    carried, rest = np.divmod(shares @ remainders, total)
    floor: npt.NDArray[np.int64] = shares @ quotients + carried
    return floor + (2 * rest + floor % 2 > total)
