"""An operator of one's own: Ako, trained on blurred images.

    ako run examples/blur_job.py radius=1 --nodes 2

The operator travels to the nodes with this file. Test images are not blurred: validation reads the data set itself.
"""

import numpy as np
from pydantic import Field

from ako_jobs import ako
from dataflow import Emissions, In, LogicalGraph, Operator, Out
from operators.messages import Batch


class Blur(Operator):
    """Replace each pixel by the mean of the square of pixels at most `radius` away."""

    radius: int = Field(default=1, ge=0)
    batches = In(Batch)
    blurred = Out(Batch)

    def process(self, batch: Batch) -> Emissions:
        """The blurred batch; its images are (images, channels, height, width)."""
        width, reach = 2 * self.radius + 1, self.radius
        padded = np.pad(batch.images, ((0, 0), (0, 0), (reach, reach), (reach, reach)), mode="edge")
        squares = np.lib.stride_tricks.sliding_window_view(padded, (width, width), axis=(2, 3))
        yield self.blurred(batch.with_images(squares.mean(axis=(4, 5))))


class Config(ako.Config):
    """Ako's settings and one more.

    Args:
        radius: how far the blur reaches, in pixels.
    """

    radius: int = 1


def build(config: Config) -> LogicalGraph:
    """Ako's graph with `Blur` behind its source."""
    return ako.build(config).insert_after("source", Blur(radius=config.radius))
