"""How many gradients are a pass over the training data, an epoch, for so many workers that share them."""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field


class Passes(BaseModel):
    """Passes over the data that workers share, each in mini-batches of its share, of which the last may be smaller.

    Args:
        images: training images that all workers share.
        batch: images of a worker's gradient.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    images: int = Field(ge=0)
    batch: int = Field(ge=1)

    def steps(self, workers: int) -> int:
        """Gradients of each worker in an epoch."""
        return steps_per_epoch(self.images, workers, self.batch)

    def gradients(self, workers: int) -> int:
        """Gradients of all workers in an epoch."""
        return self.steps(workers) * workers

    def budget(self, epochs: float) -> int:
        """Images of all workers' gradients in so many epochs, to the nearest one, at least one."""
        return max(1, math.floor(epochs * self.images + 0.5))

    def of(self, images: int) -> float:
        """Epochs that are made by gradients of so many images, with fraction."""
        return images / max(1, self.images)

    def made(self, steps: int, workers: int) -> float:
        """Epochs that are made by the first `steps` gradients of each worker, with fraction."""
        epochs, position = divmod(steps, self.steps(workers))
        share = max(1, self.images // workers)
        return epochs + min(position * self.batch, share) / share


def steps_per_epoch(images: int, nodes: int, batch: int, *, keep_last: bool = True) -> int:
    """Mini-batches that every node makes per epoch; at least 1."""
    share = images // nodes
    return max(1, -(-share // batch) if keep_last else share // batch)
