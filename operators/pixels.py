"""Passes over pixels, compiled: what is done to every mini-batch before its gradient.

Unlike the kernels of the network these keep the interpreter: they take microseconds, and to give it up was no faster.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from operators.jit import compiled

Floats = npt.NDArray[np.float32]


def gathered(images: npt.NDArray[np.uint8], rows: npt.NDArray[np.int64], factor: np.float32) -> Floats:
    """Some images times a factor.

    Args:
        images: (images, channels, height, width), C-contiguous.
        rows: (batch,), which of them.
        factor: what their pixels are multiplied by.

    Returns:
        (batch, channels, height, width).
    """
    pixels = _gather(_read(images.reshape(len(images), -1)), _read(rows), factor)
    return pixels.reshape(len(rows), *images.shape[1:])


def standardised(images: Floats, mean: Floats, std: Floats) -> Floats:
    """Images less the mean of their channel, divided by its standard deviation.

    Args:
        images: (batch, channels, height, width).
        mean: (channels,).
        std: (channels,).
    """
    batch, channels = images.shape[:2]
    planes = np.ascontiguousarray(images, np.float32).reshape(batch, channels, images[0, 0].size if batch else 0)
    return _standardise(_read(planes), _read(mean), _read(std)).reshape(images.shape)


@partial(compiled, nogil=False)
def _gather(images: npt.NDArray[np.uint8], rows: npt.NDArray[np.int64], factor: np.float32) -> Floats:
    pixels = np.empty((rows.shape[0], images.shape[1]), np.float32)
    for number in range(rows.shape[0]):
        image, target = images[rows[number]], pixels[number]
        for place in range(image.shape[0]):
            target[place] = np.float32(image[place]) * factor
    return pixels


@partial(compiled, nogil=False)
def _standardise(planes: Floats, mean: Floats, std: Floats) -> Floats:
    result = np.empty(planes.shape, np.float32)
    for number in range(planes.shape[0]):
        for channel in range(planes.shape[1]):
            source, target = planes[number, channel], result[number, channel]
            middle, width = mean[channel], std[channel]
            for place in range(source.shape[0]):
                target[place] = (source[place] - middle) / width
    return result


def _read(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """View an array as read-only, so that every caller's arrays have the one type that is compiled."""
    view = array.view()
    view.flags.writeable = False
    return view
