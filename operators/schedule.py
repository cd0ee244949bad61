"""Learning-rate schedules: the rate of a gradient by its number."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


def at_equal_pace(made: int, workers: int) -> int:
    """The number that a gradient would have if workers made as many each, behind so many of all of them."""
    return made // workers + 1


class Constant(BaseModel):
    """The rate stays."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["constant"] = "constant"

    def rate(self, lr: float, _done: int) -> float:
        """The rate `lr`."""
        return lr


class Step(BaseModel):
    """The rate is multiplied by a factor at each milestone.

    Args:
        milestones: gradients, of all workers together, after which the rate is multiplied.
        gamma: the factor.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["step"] = "step"
    milestones: tuple[Annotated[int, Field(ge=0)], ...]
    gamma: float = Field(gt=0, le=1)

    def rate(self, lr: float, done: int) -> float:
        """The rate after `done` gradients of all workers."""
        return lr * self.gamma ** sum(done >= milestone for milestone in self.milestones)


class Cosine(BaseModel):
    """The rate falls along half a cosine (Loshchilov & Hutter 2017, SGDR, equation 5, without restarts).

    Args:
        begin: gradients, of all workers together, before the fall.
        steps: gradients, of all workers together, from there to the end.
        lr_min: rate at the end and after it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["cosine"] = "cosine"
    begin: int = Field(default=0, ge=0)
    steps: int = Field(ge=1)
    lr_min: float = Field(default=0.0, ge=0)

    def rate(self, lr: float, done: int) -> float:
        """The rate after `done` gradients of all workers."""
        progress = min(max(done - self.begin, 0) / self.steps, 1.0)
        return self.lr_min + (lr - self.lr_min) * (1 + math.cos(math.pi * progress)) / 2


class Schedule(BaseModel):
    """A rate that rises in a linear warm-up and goes on as `decay` says.

    Args:
        lr: learning rate per gradient, before any decay.
        warmup_steps: gradients, of all workers together, over which the rate rises.
        decay: how the rate goes on; it counts from the first gradient too, and the warm-up scales what it gives.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    lr: float = Field(gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    decay: Constant | Step | Cosine = Field(default=Constant(), discriminator="kind")

    def at(self, number: int, workers: int) -> float:
        """The rate of a node's gradient `number`, counted from 1; in the warm-up it rises from a 1/workers of it.

        Until then, every worker is taken to have made as many gradients as this node. A node that has made none yet, as
        one that is answered first of all, has the rate of its first.
        """
        number = max(number, 1)
        rate = self.decay.rate(self.lr, (number - 1) * workers)
        steps = self.warmup_steps / workers
        if number > steps:
            return rate
        start = 1 / workers
        return rate * (start + (1 - start) * (number - 1) / steps)
