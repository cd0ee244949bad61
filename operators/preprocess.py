"""Preprocessing operators: each takes batches and gives batches, without state."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, FiniteFloat, model_validator

from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, Operator
from dataflow.ports import In, Out
from operators.messages import Batch
from operators.pixels import standardised

Images = npt.NDArray[np.float32]
_Spread = Annotated[FiniteFloat, Field(gt=0)]


class Normalise(Operator):
    """Subtract each channel's mean and divide by its standard deviation.

    Args:
        mean, std: one number per channel, of pixels in [0, 1].
    """

    mean: tuple[FiniteFloat, ...] = Field(min_length=1)
    std: tuple[_Spread, ...]
    batches = In(Batch)
    normalised = Out(Batch)

    @model_validator(mode="after")
    def _paired(self) -> Self:
        if len(self.mean) != len(self.std):
            what = f"mean has {len(self.mean)} channels and std {len(self.std)}"
            raise ValueError(what)
        return self

    def open(self, node: NodeContext) -> None:
        """Compile what it calls."""
        self.apply(np.zeros((1, len(self.mean), 1, 1), np.float32))

    def process(self, batch: Batch) -> Emissions:
        """The normalised batch."""
        yield self.normalised(batch.with_images(self.apply(batch.images)))

    def apply(self, images: Images) -> Images:
        """Normalised images, (images, channels, height, width).

        Raises:
            ValueError: the images have another number of channels.
        """
        if images.shape[1] != len(self.mean):
            what = f"images have {images.shape[1]} channels, mean and std have {len(self.mean)}"
            raise ValueError(what)
        return standardised(images, *self._by_channel)

    @cached_property
    def _by_channel(self) -> tuple[Images, Images]:
        """Mean and std, (channels,) each."""
        return np.array(self.mean, np.float32), np.array(self.std, np.float32)


class Resize(Operator):
    """Resize images by taking the nearest pixel.

    Args:
        height, width: the new size in pixels.
    """

    height: int = Field(ge=1)
    width: int = Field(ge=1)
    batches = In(Batch)
    resized = Out(Batch)

    def process(self, batch: Batch) -> Emissions:
        """The resized batch."""
        _, _, height, width = batch.images.shape
        rows = (np.arange(self.height) * 2 + 1) * height // (2 * self.height)
        columns = (np.arange(self.width) * 2 + 1) * width // (2 * self.width)
        yield self.resized(batch.with_images(np.ascontiguousarray(batch.images[:, :, rows][:, :, :, columns])))


class RandomShift(Operator):
    """Shift every image by up to `pixels` in each direction, filling with `fill`.

    Args:
        pixels: largest shift.
        fill: value of the pixels that move in.
    """

    pixels: int = Field(default=1, ge=0)
    fill: float = 0.0
    batches = In(Batch)
    shifted = Out(Batch)

    def process(self, batch: Batch, rng: np.random.Generator) -> Emissions:
        """The shifted batch."""
        count, _, height, width = batch.images.shape
        reach = self.pixels
        padded = np.pad(
            batch.images, ((0, 0), (0, 0), (reach, reach), (reach, reach)), constant_values=np.float32(self.fill)
        )
        offsets = rng.integers(0, 2 * reach + 1, size=(2, count, 1))
        rows = (offsets[0] + np.arange(height))[:, None, :, None]
        columns = (offsets[1] + np.arange(width))[:, None, None, :]
        image = np.arange(count)[:, None, None, None]
        channel = np.arange(batch.images.shape[1])[None, :, None, None]
        yield self.shifted(batch.with_images(padded[image, channel, rows, columns]))


class RandomFlip(Operator):
    """Mirror every image left to right with probability `probability`."""

    probability: float = Field(default=0.5, ge=0, le=1)
    batches = In(Batch)
    flipped = Out(Batch)

    def process(self, batch: Batch, rng: np.random.Generator) -> Emissions:
        """The batch with some images mirrored."""
        mirrored = rng.random(len(batch.images)) < self.probability
        images = batch.images.copy()
        images[mirrored] = images[mirrored, :, :, ::-1]
        yield self.flipped(batch.with_images(images))
