"""What goes over arrays element by element, and what changes their layout: spatial arrays, and flat ones.

A flat array counts as one channel here, except where the number of an element matters.
"""

import numpy as np

from operators.dnn.kernels.activation import activate, differentiate
from operators.dnn.kernels.arrays import add, copy
from operators.dnn.kernels.jit import kernel
from operators.dnn.kernels.table import (
    CHANNELS,
    FLAT,
    FUNCTION,
    HEIGHT,
    INPUT,
    INPUT_GRADIENT,
    NOWHERE,
    NUMBER,
    OUTPUT,
    OUTPUT_GRADIENT,
    RATE,
    SECOND,
    SECOND_GRADIENT,
    WIDTH,
    Floats,
    Row,
    channel_stride,
    real,
)
from operators.dnn.kernels.transpose import transpose
from operators.dnn.kernels.unit import Chunk, Unit

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


@kernel
def runs(row: Row, batch: int) -> tuple[int, int, int]:
    """Contiguous runs that an input consists of: their number, the elements in each, and the distance between two."""
    if row[FLAT] == 1:
        return 1, row[CHANNELS] * batch, 0
    area = row[HEIGHT] * row[WIDTH] * batch
    return row[CHANNELS], area, channel_stride(area)


@kernel
def copy_to(row: Row, chunk: Chunk, source: int, target: int) -> None:
    """Copy an array at `source`, of the shape of the row's input, to `target`."""
    number, size, stride = runs(row, chunk.batch)
    buffer = chunk.buffer
    for c in range(number):
        at = c * stride
        copy(buffer[source + at : source + at + size], buffer[target + at : target + at + size])


@kernel
def add_to(row: Row, chunk: Chunk, source: int, target: int) -> None:
    """Add an array at `source`, of the shape of the row's input, to that at `target`."""
    number, size, stride = runs(row, chunk.batch)
    buffer = chunk.buffer
    for c in range(number):
        at = c * stride
        add(buffer[source + at : source + at + size], buffer[target + at : target + at + size])


@Unit
def activation_forward(row: Row, chunk: Chunk) -> None:
    """Apply a function that is no other operation's part."""
    copy_to(row, chunk, row[INPUT], row[OUTPUT])
    number, size, stride = runs(row, chunk.batch)
    for c in range(number):
        activate(row[FUNCTION], chunk.buffer[row[OUTPUT] + c * stride : row[OUTPUT] + c * stride + size])


@Unit
def activation_backward(row: Row, chunk: Chunk) -> None:
    """Write the gradient of the input of a function."""
    if row[INPUT_GRADIENT] == NOWHERE:
        return
    copy_to(row, chunk, row[OUTPUT_GRADIENT], row[INPUT_GRADIENT])
    number, size, stride = runs(row, chunk.batch)
    for c in range(number):
        gradient = chunk.buffer[row[INPUT_GRADIENT] + c * stride : row[INPUT_GRADIENT] + c * stride + size]
        differentiate(
            row[FUNCTION], chunk.buffer[row[OUTPUT] + c * stride : row[OUTPUT] + c * stride + size], gradient
        )  # fmt: skip


@Unit
def add_forward(row: Row, chunk: Chunk) -> None:
    """Add two arrays."""
    copy_to(row, chunk, row[INPUT], row[OUTPUT])
    add_to(row, chunk, row[SECOND], row[OUTPUT])


@Unit
def add_backward(row: Row, chunk: Chunk) -> None:
    """Hand the gradient to both summands."""
    for target in (row[INPUT_GRADIENT], row[SECOND_GRADIENT]):
        if target != NOWHERE:
            copy_to(row, chunk, row[OUTPUT_GRADIENT], target)


@kernel
def _draw(key: np.uint64, number: int) -> np.uint64:
    """Output `number` of splitmix64; see `operators.dnn.masks`."""
    z = key + (np.uint64(number) + np.uint64(1)) * _GAMMA
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


@kernel
def _drop(row: Row, chunk: Chunk, source: int, target: int) -> None:
    """Write to `target` what dropout leaves of `source`."""
    buffer, batch = chunk.buffer, chunk.batch
    rate = real(row, RATE)
    least = np.uint64(np.ceil(rate * 4294967296.0))
    factor = buffer.dtype.type(1.0 / (1.0 - rate))
    zero = buffer.dtype.type(0)
    layer = _draw(_draw(np.uint64(chunk.seed), 0), row[NUMBER])
    pixels = row[HEIGHT] * row[WIDTH]
    stride = channel_stride(pixels * batch)
    for n in range(batch):
        key = _draw(layer, chunk.image + n)
        for c in range(row[CHANNELS]):
            for pixel in range(pixels):
                place = n * row[CHANNELS] + c if row[FLAT] == 1 else c * stride + pixel * batch + n
                kept = (_draw(key, c * pixels + pixel) >> np.uint64(32)) >= least
                buffer[target + place] = buffer[source + place] * factor if kept else zero


@Unit
def dropout_forward(row: Row, chunk: Chunk) -> None:
    """In training, zero some elements and enlarge the others."""
    if chunk.training:
        _drop(row, chunk, row[INPUT], row[OUTPUT])
    else:
        copy_to(row, chunk, row[INPUT], row[OUTPUT])


@Unit
def dropout_backward(row: Row, chunk: Chunk) -> None:
    """Write the gradient of the input: that of the elements which were kept, enlarged as they were."""
    if row[INPUT_GRADIENT] != NOWHERE:
        _drop(row, chunk, row[OUTPUT_GRADIENT], row[INPUT_GRADIENT])


@Unit
def transpose_forward(row: Row, chunk: Chunk) -> None:
    """Write a spatial array as a flat one (image, channel row column), or a flat one as spatial."""
    _transpose(row, chunk, row[INPUT], row[OUTPUT], row[FLAT] == 1)


@Unit
def transpose_backward(row: Row, chunk: Chunk) -> None:
    """Write the gradient of the input in the input's layout."""
    if row[INPUT_GRADIENT] != NOWHERE:
        _transpose(row, chunk, row[OUTPUT_GRADIENT], row[INPUT_GRADIENT], row[FLAT] == 0)


@kernel
def _transpose(row: Row, chunk: Chunk, source: int, target: int, from_flat: bool) -> None:
    buffer, batch = chunk.buffer, chunk.batch
    pixels = row[HEIGHT] * row[WIDTH]
    features = row[CHANNELS] * pixels
    stride = channel_stride(pixels * batch)
    for c in range(row[CHANNELS]):
        flat, spatial = c * pixels, c * stride
        if from_flat:
            transpose(buffer, source + flat, features, buffer, target + spatial, batch, batch, pixels)
        else:
            transpose(buffer, source + spatial, batch, buffer, target + flat, features, pixels, batch)


@kernel
def load_images(row: Row, images: Floats, buffer: Floats) -> None:
    """Copy images (image, pixels) to the input of the first operation, in its layout."""
    batch, features = images.shape
    if row[FLAT] == 1:
        for n in range(batch):
            copy(images[n], buffer[row[INPUT] + n * features : row[INPUT] + (n + 1) * features])
        return
    pixels = row[HEIGHT] * row[WIDTH]
    stride = channel_stride(pixels * batch)
    flat = images.reshape(batch * features)
    for c in range(row[CHANNELS]):
        transpose(flat, c * pixels, features, buffer, row[INPUT] + c * stride, batch, batch, pixels)
