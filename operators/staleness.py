"""Staleness: what has happened to weights between a gradient's being computed on them and its being applied.

The lag is how many updates there were in between; the gap, how far the weights have moved, as the root mean square of
the difference; the normalised gap, the gap over the gradient's norm (dana.txt, 3 and appendix B.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dataflow.operators_api import Sample
from operators.messages import Vector

GAP_EVERY = 8
"""Of a node's gradients, one in so many has its gap measured: weights have to be kept for it."""


class Staleness(NamedTuple):
    """How stale a gradient was when it was applied; None where that is not known, as gaps are of most."""

    lag: int | None = None
    gap: float | None = None
    normalised_gap: float | None = None

    def samples(self) -> Iterator[Sample]:
        """What is known."""
        if self.lag is not None:
            yield Sample("lag", float(self.lag))
        if self.gap is not None:
            yield Sample("gap", self.gap)
        if self.normalised_gap is not None:
            yield Sample("normalised_gap", self.normalised_gap)


UNKNOWN = Staleness()
FRESH = Staleness(0, 0.0, 0.0)
"""Of a gradient that is applied to the weights that it was computed on, as those of synchronous workers."""


def measured(gradient: Vector, computed_on: Vector, applied_to: Vector, lag: int | None = None) -> Staleness:
    """The staleness of a gradient with its gaps, but those that are no numbers in float32: of a training that diverges.

    Args:
        gradient: (weights,) float32.
        computed_on: (weights,) float32.
        applied_to: (weights,) float32.
        lag: updates in between, if they are counted.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        apart = applied_to - computed_on
        gap = math.sqrt(float(np.dot(apart, apart)) / apart.size)
        norm = math.sqrt(float(np.dot(gradient, gradient)))
    if not math.isfinite(gap):
        return Staleness(lag)
    return Staleness(lag, gap, gap / norm if norm and math.isfinite(norm) else None)
