"""Rules in which the server keeps velocities: NAG-ASGD, Multi-ASGD, LWP and DANA-Zero.

With velocity v, learning rate eta and gradient g of worker i, v <- momentum v + eta g: the rate is in the velocity, so
a velocity keeps its meaning when the rate changes.
"""

from __future__ import annotations

from typing import ClassVar, Literal, final

import numpy as np
from pydantic import Field

from operators.messages import Vector
from operators.optimizer import travel
from operators.update_rules.rule import Memory, Push, Rule

SHARED = "velocity"


def of_worker(worker: int | str) -> str:
    """Name of a worker's velocity in a memory."""
    return f"{SHARED}.{worker}"


class MomentumRule(Rule):
    """A rule with momentum, kept by the server.

    Args:
        momentum: share of a velocity that is kept.
        weight_decay: strength of the pull of the server's weights towards zero, as part of the gradient.
    """

    momentum: float = Field(gt=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    per_worker: ClassVar[bool]
    look_ahead: ClassVar[int] = 0

    def update(self, weights: Vector, memory: Memory, push: Push) -> None:
        """Move along the velocity, brought up to date."""
        travel(
            weights,
            memory.vector(of_worker(push.worker) if self.per_worker else SHARED, weights.size),
            push.gradient,
            momentum=self.momentum,
            rate=push.rate,
            weight_decay=self.weight_decay,
            look_ahead=self.look_ahead,
        )


@final
class NagAsgd(MomentumRule):
    """One velocity for all workers (dana.txt, algorithm 8): v <- momentum v + eta g, theta <- theta - v."""

    kind: Literal["nag-asgd"] = "nag-asgd"
    per_worker: ClassVar[bool] = False


@final
class MultiAsgd(MomentumRule):
    """A velocity for each worker (dana.txt, algorithm 9): v_i <- momentum v_i + eta g, theta <- theta - v_i."""

    kind: Literal["multi-asgd"] = "multi-asgd"
    per_worker: ClassVar[bool] = True


@final
class Lwp(MomentumRule):
    """Linear weight prediction (dana.txt, algorithm 3): NAG-ASGD that answers with theta - tau v.

    The paper leaves tau open; it is the number of other workers, the lag at equal pace.
    """

    kind: Literal["lwp"] = "lwp"
    per_worker: ClassVar[bool] = False

    def view(self, weights: Vector, memory: Memory, worker: int) -> Vector:
        """Where tau more steps along the velocity would lead."""
        found: Vector = weights - np.float32(memory.workers - 1) * memory.vector(SHARED, weights.size)
        return found


@final
class DanaZero(MomentumRule):
    """A velocity for each worker, and answers that look ahead along all (dana.txt, algorithm 4, in the form of eq. 16).

    Kept is what is sent, Theta = theta - momentum sum(v). An update is Theta <- Theta - (momentum v_i + eta g): it
    takes as long with many workers as with one.
    """

    kind: Literal["dana-zero"] = "dana-zero"
    per_worker: ClassVar[bool] = True
    look_ahead: ClassVar[int] = 1

    def master(self, weights: Vector, memory: Memory) -> Vector:
        """Theta of algorithm 4, which no worker sees: theta = Theta + momentum sum(v)."""
        total = np.zeros(weights.size, np.float32)
        for name in sorted(memory.vectors):
            if name.startswith(of_worker("")):
                total += memory.vectors[name]
        return weights + np.float32(self.momentum) * total
