"""Rules that correct a gradient for how far the weights have moved since they were sent: DC-ASGD and DANA-DC.

g^ = g + lambda g g (theta - sent), element by element: a second-order expansion with the square of the gradient in the
place of the Hessian (dana.txt, equation 17).
"""

from __future__ import annotations

from typing import ClassVar, Literal, cast, final

import numpy as np
from pydantic import Field

from operators.dnn.arrays import read_only
from operators.jit import compiled
from operators.messages import Vector
from operators.optimizer import travel, travel_ahead
from operators.update_rules.momentum import behind, of_worker, total_of, with_momentum
from operators.update_rules.rule import Memory, Push, Rule

_EPSILON = np.float32(1e-7)
_SQUARES = "squares"


class CompensatedRule(Rule):
    """A rule with delay compensation, and a velocity for each worker.

    Args:
        momentum: share of a velocity that is kept.
        weight_decay: strength of the pull of theta towards zero, added to the corrected gradient.
        strength: lambda.
    """

    uses_sent: ClassVar[bool] = True
    momentum: float = Field(ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    strength: float = Field(default=2.0, ge=0)

    @property
    def form(self) -> str:
        """The rule, and the momentum that its velocities come of."""
        return with_momentum(super().form, self.momentum)


@final
class DcAsgd(CompensatedRule):
    """Multi-ASGD with delay compensation (dana.txt, algorithm 10; Zheng et al. 2017).

    Args:
        smoothing: with it lambda is adaptive (DC-ASGD-a): each element's is divided by the root of the running mean
            square of its gradients, of which this share is kept from gradient to gradient.
    """

    kind: Literal["dc-asgd"] = "dc-asgd"
    smoothing: float | None = Field(default=None, ge=0, lt=1)

    def update(self, weights: Vector, memory: Memory, push: Push) -> None:
        """Move along the worker's velocity, brought up to date with the corrected gradient."""
        sent = read_only(cast("Vector", push.sent))
        if self.smoothing is None:
            gradient = _corrected(weights, sent, push.gradient, self.strength)
        else:
            squares, gradient = memory.vector(_SQUARES, weights.size), np.empty_like(weights)
            numbers = np.float32(self.strength), np.float32(self.smoothing)
            _adapt(gradient, squares, read_only(weights), sent, read_only(push.gradient), *numbers)
        velocity = memory.vector(of_worker(push.worker), weights.size)
        decay = self.weight_decay
        travel(weights, velocity, gradient, momentum=self.momentum, rate=push.rate, weight_decay=decay)


@final
class DanaDc(CompensatedRule):
    """DANA-Zero with delay compensation (dana.txt, algorithm 7). Kept is what is sent, as in DANA-Zero.

    The correction is by theta of the algorithm, theta = Theta + momentum sum(v).
    """

    kind: Literal["dana-dc"] = "dana-dc"

    def update(self, weights: Vector, memory: Memory, push: Push) -> None:
        """Move along the worker's velocity and ahead, with the corrected gradient."""
        velocity, total = memory.vector(of_worker(push.worker), weights.size), total_of(memory, weights.size)
        master, sent = self.master(weights, memory), read_only(cast("Vector", push.sent))
        gradient = _corrected(master, sent, push.gradient, self.strength)
        decay = self.weight_decay
        travel_ahead(weights, velocity, total, gradient, momentum=self.momentum, rate=push.rate, weight_decay=decay)

    def master(self, weights: Vector, memory: Memory) -> Vector:
        """Theta of algorithm 7, which no worker sees."""
        return behind(weights, memory, self.momentum)


def _corrected(weights: Vector, sent: Vector, gradient: Vector, strength: float) -> Vector:
    corrected = np.empty_like(weights)
    _correct(corrected, read_only(weights), sent, read_only(gradient), np.float32(strength))
    return corrected


@compiled
def _correct(out: Vector, weights: Vector, sent: Vector, gradient: Vector, strength: np.float32) -> None:
    for i in range(out.size):
        out[i] = gradient[i] + _second(gradient[i], strength, weights[i] - sent[i])


@compiled
def _adapt(
    out: Vector,
    squares: Vector,
    weights: Vector,
    sent: Vector,
    gradient: Vector,
    strength: np.float32,
    smoothing: np.float32,
) -> None:
    for i in range(out.size):
        square = gradient[i] * gradient[i]
        squares[i] = smoothing * squares[i] + (np.float32(1) - smoothing) * square
        own = strength / np.sqrt(squares[i] + _EPSILON)
        out[i] = gradient[i] + _second(gradient[i], own, weights[i] - sent[i])


@compiled
def _second(gradient: np.float32, strength: np.float32, moved: np.float32) -> np.float32:
    """The correction; none where it is beyond float32. The square of a gradient that is finite may well not be."""
    found = gradient * ((strength * gradient) * moved)
    return found if np.isfinite(found) else np.float32(0)
