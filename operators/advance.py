"""Advance: how far training is, where there is nothing to validate."""

from __future__ import annotations

from dataclasses import dataclass

from dataflow.message import Message
from dataflow.operators_api import Emissions, Operator
from dataflow.ports import In, Out
from operators.messages import Progress


@dataclass(frozen=True, slots=True)
class Reached(Message):
    """How far training is.

    Args:
        step: gradients the reporting node had computed.
        images: images seen by the whole role.
        epoch: passes over the training data.
    """

    step: int
    images: int
    epoch: float


class Advance(Operator):
    """Reports each progress that it is told: what takes the place of validations of a phantom, which has none."""

    pool = "network"
    progress = In(Progress, capacity=64)
    reached = Out(Reached, reported=True)

    def process(self, progress: Progress) -> Emissions:
        """What is reported."""
        yield self.reached(Reached(progress.step, progress.images, progress.epoch))
