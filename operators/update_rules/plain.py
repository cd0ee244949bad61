"""Rules without a velocity: ASGD, Staleness-Aware, Gap-Aware and EASGD. Workers may have momentum of their own."""

from __future__ import annotations

from typing import ClassVar, Literal, cast, final

import numpy as np
from pydantic import Field

from operators.dnn.arrays import read_only
from operators.jit import compiled
from operators.messages import Vector
from operators.update_rules.rule import Memory, Push, Rule

_TINY = np.float32(1e-30)


class PlainRule(Rule):
    """A rule without a velocity of the server's.

    Args:
        weight_decay: strength of the pull of the server's weights towards zero, as part of the gradient.
    """

    weight_decay: float = Field(default=0.0, ge=0)


@final
class Asgd(PlainRule):
    """Theta <- theta - eta g (dana.txt, algorithm 2)."""

    kind: Literal["asgd"] = "asgd"

    def update(self, weights: Vector, memory: Memory, push: Push) -> None:
        """Subtract the gradient."""
        _subtract(weights, read_only(push.gradient), np.float32(push.rate), np.float32(self.weight_decay))


@final
class StalenessAware(PlainRule):
    """ASGD at a rate of eta / max(1, lag) (Zhang et al. 2016, Staleness-aware async-SGD, equation 6)."""

    kind: Literal["staleness-aware"] = "staleness-aware"

    def update(self, weights: Vector, memory: Memory, push: Push) -> None:
        """Subtract the gradient, the less the staler it is."""
        rate = np.float32(push.rate / max(1, push.lag))
        _subtract(weights, read_only(push.gradient), rate, np.float32(self.weight_decay))


@final
class GapAware(PlainRule):
    """ASGD that divides each element of a gradient by 1 + gap / step (Barkai et al. 2020, Gap-Aware).

    The gap is how far the weight has moved since it was sent, the step how far one update moves it: eta times the root
    of the running mean square of its gradients, with the bias of its start taken out.

    Args:
        smoothing: share of the running mean that is kept from gradient to gradient.
    """

    kind: Literal["gap-aware"] = "gap-aware"
    uses_sent: ClassVar[bool] = True
    smoothing: float = Field(default=0.99, gt=0, lt=1)

    def update(self, weights: Vector, memory: Memory, push: Push) -> None:
        """Subtract what is left of the gradient."""
        count = memory.numbers["gradients"] = memory.numbers.get("gradients", 0.0) + 1
        share = 1 - self.smoothing**count
        squares = memory.vector("squares", weights.size)
        sent = cast("Vector", push.sent)
        numbers = (np.float32(each) for each in (push.rate, self.smoothing, share, self.weight_decay))
        _tame(weights, squares, read_only(push.gradient), read_only(sent), *numbers)


@final
class Easgd(PlainRule):
    """Elastic averaging (Zhang et al. 2015, Deep learning with elastic averaging SGD, equations 5 and 6).

    What the server keeps is the centre c; it keeps each worker's weights w_i as well, and answers with them. Both move
    from where they were: w_i <- w_i - eta g - alpha (w_i - c), c <- c + alpha (w_i - c). It is w_i that decays.

    A worker that comes, or comes back, begins from the centre: weights of long ago would pull back what was learnt.

    Args:
        alpha: strength of the pull between a worker and the centre.
    """

    kind: Literal["easgd"] = "easgd"
    each_its_own: ClassVar[bool] = True
    alpha: float = Field(default=0.15, gt=0, lt=1)

    def join(self, weights: Vector, memory: Memory, worker: int) -> None:
        """Begin from the centre."""
        memory.vectors[_of(worker)] = weights.copy()

    def leave(self, memory: Memory, worker: int) -> None:
        """Forget the worker's weights."""
        memory.vectors.pop(_of(worker), None)

    def update(self, weights: Vector, memory: Memory, push: Push) -> None:
        """Move the worker's weights and the centre."""
        name = _of(push.worker)
        if name not in memory.vectors:  # it was not there when the checkpoint was made that the job goes on from
            self.join(weights, memory, push.worker)
        numbers = (np.float32(each) for each in (push.rate, self.alpha, self.weight_decay))
        _pull(weights, memory.vectors[name], read_only(push.gradient), *numbers)

    def view(self, weights: Vector, memory: Memory, worker: int) -> Vector:
        """The worker's weights."""
        return memory.vectors.get(_of(worker), weights).copy()


def _of(worker: int) -> str:
    return f"weights.{worker}"


@compiled
def _subtract(weights: Vector, gradient: Vector, rate: np.float32, decay: np.float32) -> None:
    for i in range(weights.size):
        weights[i] -= rate * (gradient[i] + decay * weights[i])


@compiled
def _tame(
    weights: Vector,
    squares: Vector,
    gradient: Vector,
    sent: Vector,
    rate: np.float32,
    smoothing: np.float32,
    share: np.float32,
    decay: np.float32,
) -> None:
    for i in range(weights.size):
        slope = gradient[i] + decay * weights[i]
        squares[i] = smoothing * squares[i] + (np.float32(1) - smoothing) * slope * slope
        step = rate * np.sqrt(squares[i] / share)
        weights[i] -= rate * slope / (np.float32(1) + abs(weights[i] - sent[i]) / (step + _TINY))


@compiled
def _pull(
    centre: Vector, own: Vector, gradient: Vector, rate: np.float32, alpha: np.float32, decay: np.float32
) -> None:
    for i in range(centre.size):
        pull = alpha * (own[i] - centre[i])
        own[i] -= rate * (gradient[i] + decay * own[i]) + pull
        centre[i] += pull
