"""What a fragment says, whether as float32 or as a code."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from operators.compression import add
from operators.messages import Code, Fragment, Vector


def subtract(fragment: Fragment, target: Vector, rate: float | None = None) -> None:
    """Take a fragment's sum, times `rate` if there is one, off `target` in place, all of it or nothing.

    Args:
        fragment: the sum.
        target: (weights of the fragment's cells,) float32, contiguous.
        rate: rounded to float32.

    Raises:
        WireError: the fragment's code is not one of so many weights.
    """
    if fragment.values.dtype == np.uint8:
        add(target, cast("Code", fragment.values), -1.0 if rate is None else -rate)
    elif rate is None:
        target -= fragment.values
    else:
        target -= fragment.values * np.float32(rate)


def decoded(fragment: Fragment, n_weights: int) -> Fragment:
    """A fragment with its sum as float32.

    Args:
        fragment: returned as it is if it is that already.
        n_weights: of its cells.

    Raises:
        WireError: the fragment's code is not one of so many weights.
    """
    if fragment.values.dtype != np.uint8:
        return fragment
    values = np.zeros(n_weights, np.float32)
    add(values, cast("Code", fragment.values))
    return replace(fragment, values=values)
