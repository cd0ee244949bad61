"""Local steps: mini-batches that a worker trains on, one after the other on weights of its own, for one gradient.

What a gradient costs besides its kernels, in the engine and on the way, is then paid once for all of them. This is what
local SGD does between two synchronisations (Stich 2019, algorithm 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from operators.dnn.arrays import read_only
from operators.messages import Vector
from operators.optimizer import Sgd

Differentiate = Callable[[slice, Vector, Vector], float]
"""Writes the mean gradient of some images at some weights; gives the sum of their losses."""


class Walk(NamedTuple):
    """What local steps have come to.

    Args:
        total: (weights,) float32, the sum of their directions: times the rate it is how far the weights have moved.
        velocity: (weights,) float32, or of no elements where there is no momentum.
        loss: sum over the images.
    """

    total: Vector
    velocity: Vector
    loss: float


def walk(
    images: int,
    steps: int,
    differentiate: Differentiate,
    weights: Vector,
    velocity: Vector,
    optimizer: Sgd,
    rate: float,
) -> Walk:
    """Take a step for each of several mini-batches.

    Args:
        images: how many there are; they are divided evenly, and a mini-batch without images makes no step.
        steps: mini-batches at most.
        differentiate: called for each mini-batch, with where it lies among the images.
        weights: (weights,) float32, where to begin; only read.
        velocity: from `Sgd.velocity`, or of the walk before; only read.
        optimizer: makes directions of gradients.
        rate: of each step.
    """
    here, velocity, total = weights.copy(), velocity.copy(), np.zeros_like(weights)
    gradient, loss = np.empty_like(weights), 0.0
    for part in parts(images, steps):
        loss += differentiate(part, read_only(here), gradient)
        optimizer.step(read_only(gradient), here, velocity, total, rate)
    return Walk(total, velocity, loss)


def parts(images: int, steps: int) -> list[slice]:
    """Images in mini-batches whose sizes differ by one at most; none is empty, so few images make fewer of them."""
    steps = min(images, steps)
    return [slice(images * number // steps, images * (number + 1) // steps) for number in range(steps)]
