"""Learning-rate schedules: the rate of a gradient by its number."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Schedule(BaseModel):
    """A constant rate, after a linear warm-up.

    Args:
        lr: learning rate per gradient.
        warmup_steps: gradients, of all workers together, over which the rate rises to `lr`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    lr: float = Field(gt=0)
    warmup_steps: int = Field(default=0, ge=0)

    def at(self, number: int, workers: int) -> float:
        """The rate of a node's gradient `number`, counted from 1: rising from lr/workers, then constant."""
        steps = self.warmup_steps / workers
        if number > steps:
            return self.lr
        start = 1 / workers
        return self.lr * (start + (1 - start) * (number - 1) / steps)
