"""YellowFin, closed loop: a rule that tunes momentum and learning rate itself (Zhang & Mitliagkas 2019)."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, final

import numpy as np
from pydantic import Field

from operators.messages import Vector
from operators.optimizer import travel
from operators.update_rules.rule import Memory, Push, Rule

_VELOCITY, _MEAN, _SQUARES = "velocity", "mean", "squares"
_TINY = 1e-30
_HALVINGS = 50


@final
class YellowFin(Rule):
    """Heavy-ball momentum, for all workers one, with the momentum and rate that minimise a model of the loss.

    From running means of the gradient g it has the range [h_min, h_max] of curvature, the variance C of g and the
    distance D to the optimum, and takes (equation 15 there)

        mu, eta = argmin mu D^2 + eta^2 C,  mu >= ((sqrt(h_max/h_min) - 1) / (sqrt(h_max/h_min) + 1))^2,
        eta = (1 - sqrt(mu))^2 / h_min.

    Asynchrony has momentum of its own. The closed loop measures the total, at the weights that a gradient was computed
    on, as the median over the weights of (change after + eta g) / change before, and moves the momentum that it applies
    until the total is mu. A gradient that is not stale tells nothing of it.

    The rate found is scaled by the schedule: by the share that a push's rate is of `lr`.

    Args:
        lr: rate at the start.
        momentum: momentum at the start.
        smoothing: share of running means that is kept from gradient to gradient.
        weight_decay: strength of the pull of the server's weights towards zero, as part of the gradient.
        window: gradients over which the range of curvature is taken; of ten times as many at the start the rate rises.
        gain: share of the difference in momentum that a gradient makes up for.
    """

    kind: Literal["yellowfin"] = "yellowfin"
    in_one: ClassVar[bool] = True
    lr: float = Field(default=1e-4, gt=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    smoothing: float = Field(default=0.999, gt=0, lt=1)
    window: int = Field(default=20, ge=1)
    gain: float = Field(default=0.01, ge=0, le=1)

    def init(self, weights: Vector, workers: int) -> Memory:
        """The rate and the momentum of the start."""
        numbers = {"gradients": 0.0, "rate": self.lr, "target": self.momentum, "momentum": self.momentum, "last": -1.0}
        return Memory(workers, numbers=numbers)

    def update(self, weights: Vector, memory: Memory, push: Push) -> None:
        """Measure, tune and move; a gradient of zeros changes nothing."""
        numbers, gradient, keep = memory.numbers, push.gradient, self.smoothing
        if not gradient.any():  # that of an empty mini-batch says nothing of the loss
            return
        numbers["gradients"] += 1
        momentum, rate = single_step(*self._measured(memory, gradient))
        numbers["target"] = keep * numbers["target"] + (1 - keep) * momentum
        numbers["rate"] = keep * numbers["rate"] + (1 - keep) * rate
        step = numbers["rate"] * min(1.0, numbers["gradients"] / (10 * self.window)) * push.rate / self.lr
        total = self._total(memory, push, step)
        applied = numbers["momentum"] + self.gain * (numbers["target"] - total)
        numbers["momentum"] = min(max(applied, -0.99), 0.99)
        before = weights.copy()
        travel(
            weights,
            memory.vector(_VELOCITY, weights.size),
            gradient,
            momentum=numbers["momentum"],
            rate=step,
            weight_decay=self.weight_decay,
        )
        self._note(memory, push.worker, weights - before)

    def _measured(self, memory: Memory, gradient: Vector) -> tuple[float, float, float, float]:
        """h_min, h_max, C and D after another gradient."""
        numbers = memory.numbers
        count, keep = int(numbers["gradients"]), self.smoothing
        square = max(float(np.dot(gradient, gradient)), _TINY)
        numbers[f"curvature.{count % self.window}"] = square
        recent = [
            numbers[f"curvature.{slot % self.window}"] for slot in range(max(1, count - self.window + 1), count + 1)
        ]
        low = self._running(numbers, "h_min", min(recent))
        high = self._running(numbers, "h_max", max(recent))
        norm, squares = self._running(numbers, "norm", math.sqrt(square)), self._running(numbers, "square", square)
        distance = self._running(numbers, "distance", norm / squares)
        mean, second = memory.vector(_MEAN, gradient.size), memory.vector(_SQUARES, gradient.size)
        mean += np.float32(1 - keep) * (gradient - mean)
        second += np.float32(1 - keep) * (np.square(gradient) - second)
        share = 1 - keep**count
        variance = float(np.sum(second, dtype=np.float64)) / share - float(np.dot(mean, mean)) / share**2
        return low, high, max(variance, _TINY), distance

    def _running(self, numbers: dict[str, float], name: str, value: float) -> float:
        """A running mean after another value, with the bias of its start at zero taken out."""
        numbers[name] = self.smoothing * numbers.get(name, 0.0) + (1 - self.smoothing) * value
        return numbers[name] / (1 - self.smoothing ** int(numbers["gradients"]))

    def _total(self, memory: Memory, push: Push, step: float) -> float:
        """The momentum in how the weights have moved, or what is applied where that cannot be told."""
        before, after = (memory.vectors.get(f"{name}.{push.worker}") for name in ("before", "after"))
        if before is not None and after is not None:
            moved = np.flatnonzero(before)
            if moved.size:
                return float(np.median((after[moved] + np.float32(step) * push.gradient[moved]) / before[moved]))
        return memory.numbers["momentum"]

    def _note(self, memory: Memory, worker: int, change: Vector) -> None:
        """Keep the changes next to the weights that each worker computes on: a worker is answered after its own."""
        last = int(memory.numbers["last"])
        if last >= 0:
            memory.vectors[f"after.{last}"] = change
        memory.vectors[f"before.{worker}"] = change
        memory.vectors.pop(f"after.{worker}", None)
        memory.numbers["last"] = float(worker)


def single_step(low: float, high: float, variance: float, distance: float) -> tuple[float, float]:
    """Momentum and rate that minimise momentum D^2 + rate^2 C (equation 15).

    Without the bound x = sqrt(mu) solves p x = (1 - x)^3 for p = (D h_min)^2 / (2 C). The left side rises from 0, the
    right one falls to 0, so x is found by halving [0, 1]; Cardano's formula loses all digits where p is large.

    Args:
        low: least curvature, h_min.
        high: largest curvature, h_max.
        variance: of the gradient, C.
        distance: to the optimum, D.
    """
    p = distance * low * distance * low / (2 * variance)
    left, right = 0.0, 1.0
    for _ in range(_HALVINGS):
        x = (left + right) / 2
        if p * x < (1 - x) ** 3:
            left = x
        else:
            right = x
    ratio = math.sqrt(high / low)
    momentum = max(left * left, ((ratio - 1) / (ratio + 1)) ** 2)
    return momentum, (1 - math.sqrt(momentum)) ** 2 / low
