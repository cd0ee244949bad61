"""Integers as float32 numbers, exactly: what lets counters travel in a vector of statistics.

A float32 holds integers up to 2**24. An int64 is split as ``high * 2**48 + middle * 2**24 + low`` with 0 <= middle,
low < 2**24 and -2**15 <= high < 2**15. The split is linear, so a mean of split integers is the split of their mean.
"""

from __future__ import annotations

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
    """Integers (n,) from (3 n,) float32, each rounded to the nearest."""
    high, middle, low = floats.astype(np.float64).reshape(PARTS, -1)
    whole = np.floor(high)
    rest = np.rint((high - whole) * 2.0 ** (2 * _BITS) + middle * 2.0**_BITS + low)
    integers: npt.NDArray[np.int64] = (whole.astype(np.int64) << 2 * _BITS) + rest.astype(np.int64)
    return integers
