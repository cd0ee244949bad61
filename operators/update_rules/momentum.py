"""Rules in which the server keeps velocities: NAG-ASGD, Multi-ASGD, LWP and DANA-Zero.

With velocity v, learning rate eta and gradient g of worker i, v <- momentum v + eta g: the rate is in the velocity, so
a velocity keeps its meaning when the rate changes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal, final

import numpy as np
from pydantic import Field

from operators.messages import Vector
from operators.optimizer import travel, travel_ahead
from operators.staleness import GAP_EVERY
from operators.update_rules.rule import Memory, Push, Rule

SHARED = "velocity"
_OWN, _TOTAL = f"{SHARED}.", "velocities"


def of_worker(worker: int) -> str:
    """Name of a worker's velocity in a memory."""
    return f"{_OWN}{worker}"


def total_of(memory: Memory, n_weights: int) -> Vector:
    """The sum of all velocities in a memory, (weights,) float32, kept there from now on.

    Whoever changes a velocity has to bring it up to date, or to forget it.
    """
    if _TOTAL not in memory.vectors:
        memory.vectors[_TOTAL] = _sum(memory, n_weights)
    return memory.vectors[_TOTAL]


def behind(weights: Vector, memory: Memory, momentum: float) -> Vector:
    """Theta of weights that are ahead of it along all velocities: theta = w + momentum sum(v), (weights,) float32."""
    total = memory.vectors.get(_TOTAL)
    total = _sum(memory, weights.size) if total is None else total
    return weights + np.float32(momentum) * total


def _sum(memory: Memory, n_weights: int) -> Vector:
    total = np.zeros(n_weights, np.float32)
    for name, velocity in memory.vectors.items():
        if name.startswith(_OWN):
            total += velocity
    return total


def with_momentum(form: str, momentum: float) -> str:
    """The form of a memory that has velocities of this momentum."""
    return f"{form}, momentum {momentum}"


class MomentumRule(Rule):
    """A rule with momentum, kept by the server.

    Args:
        momentum: share of a velocity that is kept.
        weight_decay: strength of the pull of theta towards zero, as part of the gradient.
    """

    momentum: float = Field(gt=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)

    @property
    def form(self) -> str:
        """The rule, and the momentum that its velocities come of."""
        return with_momentum(super().form, self.momentum)


class HeavyBall(MomentumRule):
    """A rule whose server moves theta along a velocity."""

    @abstractmethod
    def velocity(self, memory: Memory, worker: int, n_weights: int) -> Vector:
        """The velocity that a worker's gradients are part of, (weights,) float32."""

    def update(self, weights: Vector, memory: Memory, push: Push) -> None:
        """Move along the velocity, brought up to date."""
        travel(
            weights,
            self.velocity(memory, push.worker, weights.size),
            push.gradient,
            momentum=self.momentum,
            rate=push.rate,
            weight_decay=self.weight_decay,
        )


@final
class NagAsgd(HeavyBall):
    """One velocity for all workers (dana.txt, algorithm 8): v <- momentum v + eta g, theta <- theta - v."""

    kind: Literal["nag-asgd"] = "nag-asgd"

    def velocity(self, memory: Memory, worker: int, n_weights: int) -> Vector:
        """The only one."""
        return memory.vector(SHARED, n_weights)


@final
class MultiAsgd(HeavyBall):
    """A velocity for each worker (dana.txt, algorithm 9): v_i <- momentum v_i + eta g, theta <- theta - v_i."""

    kind: Literal["multi-asgd"] = "multi-asgd"

    def velocity(self, memory: Memory, worker: int, n_weights: int) -> Vector:
        """The worker's."""
        return memory.vector(of_worker(worker), n_weights)


@final
class Lwp(HeavyBall):
    """Linear weight prediction (dana.txt, algorithm 3): NAG-ASGD that answers with theta - tau v.

    The paper leaves tau open; it is the number of other workers that are there, the lag at equal pace.
    """

    kind: Literal["lwp"] = "lwp"

    def velocity(self, memory: Memory, worker: int, n_weights: int) -> Vector:
        """The only one."""
        return memory.vector(SHARED, n_weights)

    def view(self, weights: Vector, memory: Memory, worker: int) -> Vector:
        """Where tau more steps along the velocity would lead."""
        found: Vector = weights - np.float32(max(0, memory.workers - 1)) * memory.vector(SHARED, weights.size)
        return found


@final
class DanaZero(MomentumRule):
    """A velocity for each worker, and answers that look ahead along all (dana.txt, algorithm 4, in the form of eq. 16).

    Kept is what is sent, Theta = theta - momentum sum(v), so an update is Theta <- Theta - (momentum v_i + eta g).
    Theta itself is looked at where a gap is measured, and formed from all velocities then: no sum of them is kept. One
    in so many gradients has its gap measured that this costs each of them the same, however many workers there are.
    With `weight_decay` theta is part of every update, and the sum is kept (appendix A.2).
    """

    kind: Literal["dana-zero"] = "dana-zero"

    def update(self, weights: Vector, memory: Memory, push: Push) -> None:
        """Move along the worker's velocity, brought up to date, and ahead."""
        velocity, kept = memory.vector(of_worker(push.worker), weights.size), self.momentum
        if self.weight_decay:
            total, decay = total_of(memory, weights.size), self.weight_decay
            travel_ahead(weights, velocity, total, push.gradient, momentum=kept, rate=push.rate, weight_decay=decay)
        else:
            memory.vectors.pop(_TOTAL, None)  # of a training with decay, that this goes on from
            travel(weights, velocity, push.gradient, momentum=kept, rate=push.rate, look_ahead=1)

    def master(self, weights: Vector, memory: Memory) -> Vector:
        """Theta of algorithm 4, which no worker sees: theta = Theta + momentum sum(v)."""
        return behind(weights, memory, self.momentum)

    def gap_every(self, workers: int) -> int:
        """One in as many as there are velocities to add up, where their sum is not kept."""
        return GAP_EVERY if self.weight_decay else max(GAP_EVERY, workers)
