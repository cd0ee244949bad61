"""Momentum and weight decay: from the gradient of a mini-batch to the direction that the weights move against."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numba
import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from operators.dnn.arrays import read_only
from operators.messages import Vector

_Accelerate = Callable[[Vector, Vector, Vector, np.float32, np.float32, bool], None]


class Sgd(BaseModel):
    """Stochastic gradient descent with momentum, in PyTorch's formulation, before the learning rate.

    For the gradient g at weights w, with velocity v, which is zero at the start::

        g <- g + weight_decay w
        v <- momentum v + g
        direction = g + momentum v with Nesterov's, v without (Sutskever et al. 2013, equations 1 to 4)

    The learning rate scales the direction, so a schedule does not scale what earlier gradients put into v. Weight
    decay is for all weights, biases included.

    Args:
        momentum: share of the velocity that is kept.
        nesterov: whether the direction looks ahead.
        weight_decay: strength of the pull towards zero.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    momentum: float = Field(default=0.0, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(default=0.0, ge=0)

    def velocity(self, n_weights: int) -> Vector:
        """A velocity for the start, (n_weights,) float32; of no elements where there is no momentum."""
        return np.zeros(n_weights if self.momentum else 0, np.float32)

    def direct(self, gradient: Vector, weights: Vector, velocity: Vector) -> None:
        """Turn a gradient into the direction, in one pass.

        Args:
            gradient: (weights,) float32, of the loss at `weights`; overwritten with the direction.
            weights: (weights,) float32, only read.
            velocity: from `velocity`, brought up to date.
        """
        decay = np.float32(self.weight_decay)
        if self.momentum:
            _accelerate(gradient, read_only(weights), velocity, np.float32(self.momentum), decay, self.nesterov)
        elif self.weight_decay:
            gradient += decay * weights

    def compile(self) -> None:
        """Compile what `direct` needs, or load it from disk, so that no step waits for it."""
        self.direct(np.zeros(1, np.float32), np.zeros(1, np.float32), self.velocity(1))


def _accelerated(
    gradient: Vector, weights: Vector, velocity: Vector, momentum: np.float32, decay: np.float32, nesterov: bool
) -> None:
    for i in range(gradient.size):
        decayed = gradient[i] + decay * weights[i]
        velocity[i] = momentum * velocity[i] + decayed
        gradient[i] = decayed + momentum * velocity[i] if nesterov else velocity[i]


# Without fast math: every product and sum is rounded as NumPy rounds it, so runs can be compared bit for bit.
_accelerate = cast("_Accelerate", numba.njit(nogil=True, error_model="numpy", cache=True)(_accelerated))
