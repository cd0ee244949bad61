"""Warm-up: stages at the beginning of training with fewer nodes and smaller mini-batches (strom_sparse_sgd.txt 3.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from pydantic import BaseModel, ConfigDict, Field


class WarmUp(BaseModel):
    """One stage.

    Args:
        nodes: of the role, the first so many, all if None; the mini-batches of the others are empty.
        epochs: how long, to the nearest mini-batch. All nodes go through their data at the pace of later epochs, so
            what is left out of mini-batches is not seen in these.
        batch: images of a mini-batch, the first ones of what it will be later; all if None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    nodes: int | None = Field(default=None, ge=1)
    epochs: float = Field(gt=0)
    batch: int | None = Field(default=None, ge=1)


def of_step(stages: Sequence[WarmUp], step: int, per_epoch: int) -> WarmUp | None:
    """The stage of a mini-batch; None once all are over.

    Args:
        stages: one after the other.
        step: mini-batches before this one.
        per_epoch: mini-batches of an epoch.
    """
    ends = accumulate(stage.epochs for stage in stages)
    within = (stage for stage, end in zip(stages, ends, strict=True) if step < math.floor(end * per_epoch + 0.5))
    return next(within, None)
