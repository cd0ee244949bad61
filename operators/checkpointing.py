"""When checkpoints are due: after the same gradients on every node, so that they fit together without a barrier."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Checkpoints(BaseModel):
    """Checkpoints in equal numbers of gradients, and named after the gradient they follow.

    Args:
        images: images that all workers see between two, to the nearest gradient.
        batch: images of a mini-batch of a worker.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    images: int = Field(ge=1)
    batch: int = Field(ge=1)

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
