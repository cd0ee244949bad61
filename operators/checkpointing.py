"""When checkpoints are due: so that those of all nodes fit together without a barrier."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


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
        """Number of the newest checkpoint that falls due between gradients `before` (excluded) and `number`, if any.

        Args:
            before: a gradient's number.
            number: that of a later one.
            workers: how many there are.
        """
        every = max(1, round(self.images / (self.batch * workers)))
        newest = number // every * every
        return newest if newest > before else None
