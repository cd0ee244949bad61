"""When checkpoints are due: so that those of all nodes fit together without a barrier."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from dataflow.operators_api import Checkpoint
from operators.clocks import ClocksState


class Checkpoints(BaseModel):
    """Checkpoints in equal numbers of gradients, and named after the gradient they follow.

    That is the node's own, where no worker gets far ahead of another. Where nobody waits each would come to it at
    another time, and the slowest later and later: there it is the gradient that it would be if all had made as many.

    Args:
        images: images that all workers see between two, to the nearest gradient.
        batch: images of a mini-batch of a worker.
        at_pace: whether nobody waits, so that gradients of all workers are counted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    images: int = Field(ge=1)
    batch: int = Field(ge=1)
    at_pace: bool = False

    def due(self, before: int, number: int, workers: int) -> int | None:
        """Number of a checkpoint that falls due between gradients `before` (excluded) and `number`, if any.

        Of several it is the one that is a multiple of the largest power of two: all who look rarely keep their parts of
        the same ones.

        Args:
            before: a gradient's number.
            number: that of a later one.
            workers: how many there are.
        """
        every = max(1, round(self.images / (self.batch * workers)))
        kept, due = before // every, number // every
        while due & (due - 1) > kept:  # without its lowest bit
            due &= due - 1
        return due * every if due > kept else None

    def at(self, average: int, clocks: ClocksState, workers: int) -> Checkpoint | None:
        """The checkpoint that is due once workers have made `average` gradients each on average, if any is.

        Args:
            average: see above.
            clocks: of a worker, which note how far it looked.
            workers: how many there are.
        """
        before, clocks.pace = clocks.pace, max(clocks.pace, average)
        number = self.due(before, clocks.pace, workers)
        return None if number is None else Checkpoint(number, steps=clocks.made)
