"""Convolution as matrix products over tiles of im2col columns.

A tile is a run of output rows whose columns fit the level-2 cache. It is gathered anew for the backward
pass: copying it again costs less than reading it back from memory.
"""

import numpy as np

from operators.dnn.kernels.activation import activate, differentiate
from operators.dnn.kernels.jit import kernel
from operators.dnn.kernels.table import (
    CHANNELS,
    FUNCTION,
    HEIGHT,
    INPUT,
    INPUT_GRADIENT,
    KERNEL,
    OUT_CHANNELS,
    OUT_HEIGHT,
    OUT_WIDTH,
    OUTPUT,
    OUTPUT_GRADIENT,
    PADDING,
    SCRATCH,
    STRIDE,
    WEIGHTS,
    WIDTH,
    Floats,
    Row,
    matrix,
    tile_rows,
)


@kernel
def _inside(row: Row, j: int) -> tuple[int, int]:
    """Output columns first <= x < stop whose pixel under kernel column j lies inside the input, not its padding."""
    stride = row[STRIDE]
    first = max(0, (row[PADDING] - j + stride - 1) // stride)
    stop = min(row[OUT_WIDTH], (row[WIDTH] + row[PADDING] - j + stride - 1) // stride)
    return min(first, row[OUT_WIDTH]), max(stop, min(first, row[OUT_WIDTH]))


@kernel
def _gather(row: Row, image: Floats, columns: Floats, top: int, bottom: int, batch: int) -> None:
    """Copy the patches of output rows top <= y < bottom to columns (channel, i, j; y, x, image)."""
    side, stride, padding = row[KERNEL], row[STRIDE], row[PADDING]
    line = row[WIDTH] * batch
    run = row[OUT_WIDTH] * batch
    zero = columns.dtype.type(0)
    for channel in range(row[CHANNELS]):
        for i in range(side):
            for j in range(side):
                patch = columns[(channel * side + i) * side + j]
                first, stop = _inside(row, j)
                for y in range(top, bottom):
                    target = patch[(y - top) * run : (y - top + 1) * run]
                    source_y = y * stride + i - padding
                    if source_y < 0 or source_y >= row[HEIGHT]:
                        target[:] = zero
                        continue
                    begin = (channel * row[HEIGHT] + source_y) * line
                    source = image[begin : begin + line]
                    target[: first * batch] = zero
                    target[stop * batch :] = zero
                    if stride == 1:
                        _copy(target, first * batch, source, (first + j - padding) * batch, (stop - first) * batch)
                    else:
                        for x in range(first, stop):
                            _copy(target, x * batch, source, (x * stride + j - padding) * batch, batch)


@kernel
def _scatter(row: Row, columns: Floats, image: Floats, top: int, bottom: int, batch: int) -> None:
    """Add columns to the patches they were gathered from: the transpose of `_gather`."""
    side, stride, padding = row[KERNEL], row[STRIDE], row[PADDING]
    line = row[WIDTH] * batch
    run = row[OUT_WIDTH] * batch
    for channel in range(row[CHANNELS]):
        for i in range(side):
            for j in range(side):
                patch = columns[(channel * side + i) * side + j]
                first, stop = _inside(row, j)
                for y in range(top, bottom):
                    source_y = y * stride + i - padding
                    if source_y < 0 or source_y >= row[HEIGHT]:
                        continue
                    source = patch[(y - top) * run : (y - top + 1) * run]
                    begin = (channel * row[HEIGHT] + source_y) * line
                    target = image[begin : begin + line]
                    if stride == 1:
                        _add(target, (first + j - padding) * batch, source, first * batch, (stop - first) * batch)
                    else:
                        for x in range(first, stop):
                            _add(target, (x * stride + j - padding) * batch, source, x * batch, batch)


@kernel
def _copy(target: Floats, to: int, source: Floats, begin: int, count: int) -> None:
    reached = target[to : to + count]
    read = source[begin : begin + count]
    for t in range(count):
        reached[t] = read[t]


@kernel
def _add(target: Floats, to: int, source: Floats, begin: int, count: int) -> None:
    reached = target[to : to + count]
    read = source[begin : begin + count]
    for t in range(count):
        reached[t] += read[t]


@kernel
def conv_forward(row: Row, weights: Floats, buffer: Floats, batch: int) -> None:
    """Compute output (filters, rows, columns, batch) = function(weight * input + bias)."""
    filters = row[OUT_CHANNELS]
    patch = row[CHANNELS] * row[KERNEL] * row[KERNEL]
    run = row[OUT_WIDTH] * batch
    area = row[OUT_HEIGHT] * run
    bias = row[WEIGHTS] + filters * patch
    weight = matrix(weights, row[WEIGHTS], filters, patch)
    image = buffer[row[INPUT] : row[INPUT] + row[CHANNELS] * row[HEIGHT] * row[WIDTH] * batch]
    output = matrix(buffer, row[OUTPUT], filters, area)
    rows = tile_rows(patch, row[OUT_HEIGHT], run)
    for top in range(0, row[OUT_HEIGHT], rows):
        bottom = min(top + rows, row[OUT_HEIGHT])
        size = (bottom - top) * run
        columns = matrix(buffer, row[SCRATCH], patch, size)
        tile = matrix(buffer, row[SCRATCH] + patch * size, filters, size)
        _gather(row, image, columns, top, bottom, batch)
        np.dot(weight, columns, tile)
        for f in range(filters):
            activate(row[FUNCTION], weights[bias + f], tile[f], output[f][top * run : top * run + size])


@kernel
def conv_backward(row: Row, weights: Floats, buffer: Floats, out: Floats, batch: int, to_input: bool) -> None:
    """Write the gradient of weight and bias to `out`, and that of the input if `to_input`."""
    filters = row[OUT_CHANNELS]
    patch = row[CHANNELS] * row[KERNEL] * row[KERNEL]
    run = row[OUT_WIDTH] * batch
    area = row[OUT_HEIGHT] * run
    pixels = row[CHANNELS] * row[HEIGHT] * row[WIDTH] * batch
    weight = matrix(weights, row[WEIGHTS], filters, patch)
    image = buffer[row[INPUT] : row[INPUT] + pixels]
    output = matrix(buffer, row[OUTPUT], filters, area)
    gradient = matrix(buffer, row[OUTPUT_GRADIENT], filters, area)
    input_gradient = buffer[row[INPUT_GRADIENT] : row[INPUT_GRADIENT] + pixels]
    weight_gradient = matrix(out, row[WEIGHTS], filters, patch)
    bias_gradient = out[row[WEIGHTS] + filters * patch : row[WEIGHTS] + filters * patch + filters]
    weight_gradient[:] = 0
    bias_gradient[:] = 0
    if to_input:
        input_gradient[:] = 0
    rows = tile_rows(patch, row[OUT_HEIGHT], run)
    for top in range(0, row[OUT_HEIGHT], rows):
        bottom = min(top + rows, row[OUT_HEIGHT])
        size = (bottom - top) * run
        columns = matrix(buffer, row[SCRATCH], patch, size)
        tile = matrix(buffer, row[SCRATCH] + patch * size, filters, size)
        product = matrix(buffer, row[SCRATCH] + (patch + filters) * size, filters, patch)
        begin = top * run
        for f in range(filters):
            differentiate(row[FUNCTION], output[f][begin : begin + size], gradient[f][begin : begin + size], tile[f])
            bias_gradient[f] += tile[f].sum()
        _gather(row, image, columns, top, bottom, batch)
        np.dot(tile, columns.T, product)
        for f in range(filters):
            for k in range(patch):
                weight_gradient[f, k] += product[f, k]
        if to_input:
            np.dot(weight.T, tile, columns)
            _scatter(row, columns, input_gradient, top, bottom, batch)
