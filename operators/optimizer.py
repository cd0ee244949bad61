"""Momentum and weight decay: from the gradient of a mini-batch to the direction that the weights move against.

All momentum of the package is worked out here: a worker's own, and that which a server keeps for update rules.
"""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from operators.dnn.arrays import read_only
from operators.jit import compiled
from operators.messages import Vector

_LEAST = np.float32(2.0**-100)
"""Smaller velocities of a worker are 0. Where no gradient comes any more they would sink to where float32 has fewer
digits and, with a momentum above 0.5, stay there: then a pass over them takes up to fifty times as long."""

_NONE = np.float32(0)


class Sgd(BaseModel):
    """Stochastic gradient descent with momentum, in PyTorch's formulation, before the learning rate.

    For the gradient g at weights w, with velocity v, which is zero at the start::

        g <- g + weight_decay w
        v <- momentum v + g
        direction = v, or g + momentum v with Nesterov's (Sutskever et al. 2013, equations 1 to 4)

    where numbers of v that are smaller than 2^-100 in size are 0.

    Nesterov's looks one step ahead: the weights that it moves are where momentum alone is about to lead. With
    `look_ahead` k they are where it leads in k steps, w = theta - (momentum + ... + momentum^k) v, and move by

        direction = (1 + momentum + ... + momentum^(k-1)) g + momentum^k v          (docs/momentum.md)

    The learning rate scales the direction, so a schedule scales what earlier gradients put into v, too. With `scaled`
    it scales g in the second line instead: earlier updates stay what they were, and the direction is the update.
    Weight decay is for all weights, biases included.

    Args:
        momentum: share of the velocity that is kept.
        look_ahead: steps of momentum that the weights are ahead of those without: 1 is Nesterov's.
        weight_decay: strength of the pull towards zero.
        scaled: whether the learning rate is in the velocity.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    momentum: float = Field(default=0.0, ge=0, lt=1)
    look_ahead: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    scaled: bool = False

    @property
    def form(self) -> str:
        """What a velocity means, in words; empty where there is none."""
        if not self.momentum:
            return ""
        ahead = f", {self.look_ahead} ahead" if self.look_ahead else ""
        return f"momentum {self.momentum}{ahead}" + (", with the rate in it" if self.scaled else "")

    def velocity(self, n_weights: int) -> Vector:
        """A velocity for the start, (n_weights,) float32; of no elements where there is no momentum."""
        return np.zeros(n_weights if self.momentum else 0, np.float32)

    def direct(self, gradient: Vector, weights: Vector, velocity: Vector, rate: float = 1.0) -> None:
        """Turn a gradient into the direction, in one pass.

        Args:
            gradient: (weights,) float32, of the loss at `weights`; overwritten with the direction.
            weights: (weights,) float32, only read.
            velocity: from `velocity`, brought up to date.
            rate: the learning rate; only used if `scaled`.
        """
        decay, scale = np.float32(self.weight_decay), np.float32(rate if self.scaled else 1.0)
        if self.momentum:
            shares = _shares(self.momentum, self.look_ahead)
            _accelerate(gradient, read_only(weights), velocity, np.float32(self.momentum), scale, decay, *shares)
            return
        if self.weight_decay:
            gradient += decay * weights
        if self.scaled:
            gradient *= scale

    def step(self, gradient: Vector, weights: Vector, velocity: Vector, total: Vector, rate: float) -> None:
        """Take a step, and add up its direction with those of steps before, in one pass.

        Args:
            gradient: (weights,) float32, of the loss at `weights`; only read.
            weights: (weights,) float32, which move by the rate times the direction that `direct` would give.
            velocity: from `velocity`, brought up to date.
            total: (weights,) float32, the sum of directions, brought up to date.
            rate: the learning rate.
        """
        of_step, of_velocity = _shares(self.momentum, self.look_ahead)
        scale, moved = (rate, 1.0) if self.scaled else (1.0, rate)
        _step(
            read_only(gradient),
            weights,
            velocity,
            total,
            np.float32(self.momentum),
            np.float32(self.weight_decay),
            np.float32(scale),
            np.float32(moved),
            of_step,
            of_velocity,
        )

    def compile(self) -> None:
        """Compile what `direct` and `step` need, or load it from disk, so that no step waits for it."""
        gradient, weights, total = np.zeros((3, 1), np.float32)
        self.direct(gradient, weights, self.velocity(1))
        self.step(gradient, weights, self.velocity(1), total, 1.0)


def travel(
    weights: Vector,
    velocity: Vector,
    gradient: Vector,
    *,
    momentum: float,
    rate: float,
    weight_decay: float = 0.0,
    look_ahead: int = 0,
) -> None:
    """Move weights as `Sgd` with `scaled` would, in one pass: what a server does that keeps a velocity, however small.

    Args:
        weights: (elements,) float32, changed in place.
        velocity: (elements,) float32, brought up to date.
        gradient: (elements,) float32, only read.
        momentum: see `Sgd`.
        rate: the learning rate.
        weight_decay: see `Sgd`.
        look_ahead: see `Sgd`.
    """
    numbers = np.float32(momentum), np.float32(rate), np.float32(weight_decay)
    _travel(weights, velocity, read_only(gradient), *numbers, *_shares(momentum, look_ahead))


def travel_ahead(
    weights: Vector,
    velocity: Vector,
    total: Vector,
    gradient: Vector,
    *,
    momentum: float,
    rate: float,
    weight_decay: float = 0.0,
) -> None:
    """Move weights that are ahead of theta along all velocities, one of which takes in a gradient, in one pass.

    Theta = w + momentum sum(v) is what decays; w moves as by `travel` with a `look_ahead` of 1.

    Args:
        weights: (elements,) float32, changed in place.
        velocity: (elements,) float32, brought up to date.
        total: (elements,) float32, the sum of all velocities, brought up to date (dana.txt, appendix A.2).
        gradient: (elements,) float32, only read.
        momentum: see `Sgd`.
        rate: the learning rate.
        weight_decay: see `Sgd`.
    """
    numbers = np.float32(momentum), np.float32(rate), np.float32(weight_decay)
    _travel_ahead(weights, velocity, total, read_only(gradient), *numbers)


def _shares(momentum: float, look_ahead: int) -> tuple[np.float32, np.float32]:
    """Shares of a step and of the velocity in a direction: 0 and 1 without looking ahead, 1 and momentum one step."""
    kept = momentum**look_ahead
    return np.float32((1 - kept) / (1 - momentum)), np.float32(kept)


@compiled
def _move(velocity: np.float32, step: np.float32, momentum: np.float32) -> np.float32:
    return momentum * velocity + step


@compiled
def _sink(velocity: np.float32) -> np.float32:
    return _NONE if abs(velocity) < _LEAST else velocity


@compiled
def _direct(velocity: np.float32, step: np.float32, of_step: np.float32, of_velocity: np.float32) -> np.float32:
    return of_step * step + of_velocity * velocity


@compiled
def _accelerate(
    gradient: Vector,
    weights: Vector,
    velocity: Vector,
    momentum: np.float32,
    rate: np.float32,
    decay: np.float32,
    of_step: np.float32,
    of_velocity: np.float32,
) -> None:
    for i in range(gradient.size):
        step = rate * (gradient[i] + decay * weights[i])
        velocity[i] = _sink(_move(velocity[i], step, momentum))
        gradient[i] = _direct(velocity[i], step, of_step, of_velocity)


@compiled
def _step(
    gradient: Vector,
    weights: Vector,
    velocity: Vector,
    total: Vector,
    momentum: np.float32,
    decay: np.float32,
    scale: np.float32,
    rate: np.float32,
    of_step: np.float32,
    of_velocity: np.float32,
) -> None:
    if velocity.size:
        for i in range(gradient.size):
            step = scale * (gradient[i] + decay * weights[i])
            velocity[i] = _sink(_move(velocity[i], step, momentum))
            direction = _direct(velocity[i], step, of_step, of_velocity)
            total[i] += direction
            weights[i] -= rate * direction
    else:
        for i in range(gradient.size):
            direction = scale * (gradient[i] + decay * weights[i])
            total[i] += direction
            weights[i] -= rate * direction


@compiled
def _travel(
    weights: Vector,
    velocity: Vector,
    gradient: Vector,
    momentum: np.float32,
    rate: np.float32,
    decay: np.float32,
    of_step: np.float32,
    of_velocity: np.float32,
) -> None:
    for i in range(gradient.size):
        step = rate * (gradient[i] + decay * weights[i])
        velocity[i] = _move(velocity[i], step, momentum)
        weights[i] -= _direct(velocity[i], step, of_step, of_velocity)


@compiled
def _travel_ahead(
    weights: Vector,
    velocity: Vector,
    total: Vector,
    gradient: Vector,
    momentum: np.float32,
    rate: np.float32,
    decay: np.float32,
) -> None:
    for i in range(gradient.size):
        step, before = rate * (gradient[i] + decay * (weights[i] + momentum * total[i])), velocity[i]
        velocity[i] = _move(before, step, momentum)
        total[i] += velocity[i] - before
        weights[i] -= _direct(velocity[i], step, np.float32(1), momentum)
