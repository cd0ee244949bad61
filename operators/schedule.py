"""Learning-rate schedules: the rate of a gradient by how many epochs were made before it."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from operators.passes import Passes


class Constant(BaseModel):
    """The rate stays."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["constant"] = "constant"

    def rate(self, lr: float, _epochs: float) -> float:
        """The rate `lr`."""
        return lr


class Step(BaseModel):
    """The rate is multiplied by a factor at each milestone.

    Args:
        milestones: epochs after which the rate is multiplied.
        gamma: the factor.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["step"] = "step"
    milestones: tuple[Annotated[float, Field(ge=0)], ...]
    gamma: float = Field(gt=0, le=1)

    def rate(self, lr: float, epochs: float) -> float:
        """The rate after so many epochs."""
        return lr * self.gamma ** sum(epochs >= milestone for milestone in self.milestones)


class Cosine(BaseModel):
    """The rate falls along half a cosine (Loshchilov & Hutter 2017, SGDR, equation 5, without restarts).

    Args:
        begin: epochs before the fall.
        end: epochs after which the rate has fallen, and stays.
        lr_min: rate at the end and after it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["cosine"] = "cosine"
    begin: float = Field(default=0.0, ge=0)
    end: float = Field(ge=0)
    lr_min: float = Field(default=0.0, ge=0)

    def rate(self, lr: float, epochs: float) -> float:
        """The rate after so many epochs."""
        if epochs <= self.begin:
            return lr
        progress = min((epochs - self.begin) / max(self.end - self.begin, 1e-9), 1.0)
        return self.lr_min + (lr - self.lr_min) * (1 + math.cos(math.pi * progress)) / 2


class Schedule(BaseModel):
    """A rate that rises in a linear warm-up and goes on as `decay` says.

    Args:
        lr: learning rate per gradient, before any decay.
        warmup: epochs over which the rate rises.
        decay: how the rate goes on; it counts from the first gradient too, and the warm-up scales what it gives.
        passes: how many gradients are an epoch; None where that does not matter, or nobody asks by number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    lr: float = Field(gt=0)
    warmup: float = Field(default=0.0, ge=0)
    decay: Constant | Step | Cosine = Field(default=Constant(), discriminator="kind")
    passes: Passes | None = None

    @model_validator(mode="after")
    def _knows_epochs(self) -> Self:
        if self.passes is None and (self.warmup or not isinstance(self.decay, Constant)):
            message = "a rate that changes needs passes"
            raise ValueError(message)
        return self

    def after(self, epochs: float, workers: int) -> float:
        """The rate of a gradient ahead of which so many epochs were made; the warm-up begins with a 1/workers of it."""
        rate = self.decay.rate(self.lr, epochs)
        if epochs >= self.warmup:
            return rate
        start = 1 / workers
        return rate * (start + (1 - start) * epochs / self.warmup)

    def behind(self, images: int, workers: int) -> float:
        """The rate of a gradient ahead of which those of all workers were of so many images."""
        return self.after(self.passes.of(images) if self.passes else 0.0, workers)

    def at(self, number: int, workers: int) -> float:
        """The rate of a node's gradient `number`, counted from 1, where all that there were at first go on.

        Every worker is taken to have made as many gradients as this node. A node that has made none yet, as one that is
        answered first of all, has the rate of its first.
        """
        return self.after(self.passes.made(max(number, 1) - 1, workers) if self.passes else 0.0, workers)
