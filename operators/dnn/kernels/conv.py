"""Convolution without im2col: outer products forward and to the input, dot products for the weights.

The kernels read the input where it lies. What a border leaves of the kernel at an output pixel differs from pixel to
pixel; neighbours that see the same part of the kernel lie side by side and are computed as one run.
"""

import numpy as np

from operators.dnn.kernels.activation import activate, differentiate
from operators.dnn.kernels.arrays import fill, total
from operators.dnn.kernels.jit import kernel
from operators.dnn.kernels.outer import START_BIAS, START_TARGET, START_ZERO, row_blocks
from operators.dnn.kernels.pool import max_pool_line, max_unpool
from operators.dnn.kernels.table import (
    CHANNELS,
    DOT,
    FUNCTION,
    HEIGHT,
    INPUT,
    INPUT_GRADIENT,
    KEPT,
    KERNEL,
    NOWHERE,
    OUT_CHANNELS,
    OUT_HEIGHT,
    OUT_WIDTH,
    OUTER,
    OUTPUT,
    OUTPUT_GRADIENT,
    PACKED,
    PACKED_BACK,
    PADDING,
    POOL,
    POOL_HEIGHT,
    POOL_STRIDE,
    POOL_WIDTH,
    SCRATCH,
    STRIDE,
    WEIGHTS,
    WIDTH,
    Floats,
    Row,
    channel_stride,
)
from operators.dnn.kernels.unit import Chunk, Unit, call

TILE_ELEMENTS = 128 * 1024
"""Elements of input, or of gradient, that are gone over again and again: they stay in the level-2 cache."""

FORWARD_LINES = 128
"""Lines of pixels that are read at once for outputs: with more of them, tiles would be too narrow."""

WEIGHT_LINES = 96
"""The same for the weights' gradient, whose sums want long tiles: each ends in adding up the lanes."""

BAND_ELEMENTS = 32 * 1024
"""Elements of gradient that are spread out before the weights take them up."""

TILE_RUN = 512
"""Least elements of such a tile."""


@kernel
def packed_width(filters: int) -> int:
    """Filters of each block of packed weights; the last ones of some blocks may be missing."""
    _, least, larger = row_blocks(filters)
    return least + (larger > 0)


@kernel
def _pack(row: Row, weights: Floats, buffer: Floats) -> None:
    """Copy the weight (filter, channel, i, j) with a block's filters innermost: (block, channel, i, j, filter).

    For the gradient of the input channels take the place of filters: (block, filter, i, j, channel).
    """
    filters, channels, area = row[OUT_CHANNELS], row[CHANNELS], row[KERNEL] * row[KERNEL]
    depth, width, first = channels * area, packed_width(filters), 0
    blocks, least, larger = row_blocks(filters)
    for block in range(blocks):
        stop = first + least + (block < larger)
        for k in range(depth):
            at = row[PACKED] + (block * depth + k) * width - first
            for f in range(first, stop):
                buffer[at + f] = weights[row[WEIGHTS] + f * depth + k]
        first = stop
    if row[INPUT_GRADIENT] == NOWHERE:
        return
    width, first = packed_width(channels), 0
    blocks, least, larger = row_blocks(channels)
    for block in range(blocks):
        stop = first + least + (block < larger)
        for f in range(filters):
            for k in range(area):
                at = row[PACKED_BACK] + ((block * filters + f) * area + k) * width - first
                for c in range(first, stop):
                    buffer[at + c] = weights[row[WEIGHTS] + (f * channels + c) * area + k]
        first = stop


@Unit
def conv_forward(row: Row, chunk: Chunk) -> None:
    """Compute function(weight * input + bias), or the maxima of its windows."""
    weights, buffer, batch = chunk.weights, chunk.buffer, chunk.batch
    if chunk.image == 0:
        _pack(row, weights, buffer)
    filters = row[OUT_CHANNELS]
    line = row[OUT_WIDTH] * batch
    stride = channel_stride(row[OUT_HEIGHT] * line)
    taps = np.empty(2 * row[CHANNELS] * row[KERNEL], np.int64)
    if row[POOL] == 0:
        for y in range(row[OUT_HEIGHT]):
            _forward_line(row, weights, buffer, batch, y, row[OUTPUT] + y * line, stride, taps)
            for f in range(filters):
                begin = row[OUTPUT] + f * stride + y * line
                activate(row[FUNCTION], buffer[begin : begin + line])
        return
    tile = channel_stride(row[POOL] * line)
    for y in range(row[POOL_HEIGHT]):
        for i in range(row[POOL]):
            _forward_line(
                row, weights, buffer, batch, y * row[POOL_STRIDE] + i, row[SCRATCH] + i * line, tile, taps
            )  # fmt: skip
        pool_line(row, buffer, batch, y, row[SCRATCH], tile)


@kernel
def pool_line(row: Row, buffer: Floats, batch: int, y: int, source: int, step: int) -> None:
    """Write row `y` of the function of the windows' maxima; filters whose windows they are lie `step` apart.

    The function rises, so that the maximum may be taken first.
    """
    line, pooled_line = row[OUT_WIDTH] * batch, row[POOL_WIDTH] * batch
    stride = channel_stride(row[POOL_HEIGHT] * pooled_line)
    for f in range(row[OUT_CHANNELS]):
        place = f * stride + y * pooled_line
        max_pool_line(
            buffer, source + f * step, line, row[OUTPUT] + place, row[KEPT] + place,
            row[POOL], row[POOL_STRIDE], row[POOL_WIDTH], batch,
        )  # fmt: skip
        activate(row[FUNCTION], buffer[row[OUTPUT] + place : row[OUTPUT] + place + pooled_line])


@kernel
def _forward_line(
    row: Row, weights: Floats, buffer: Floats, batch: int, y: int, target_at: int, target_step: int, taps: Row
) -> None:
    """Compute weight * input + bias of output row `y`."""
    side, step, padding, filters, channels = row[KERNEL], row[STRIDE], row[PADDING], row[OUT_CHANNELS], row[CHANNELS]
    stride, width = channel_stride(row[HEIGHT] * row[WIDTH] * batch), packed_width(filters)
    block = channels * side * side * width
    bias = row[WEIGHTS] + filters * channels * side * side
    n_taps = 0
    for c in range(1 if side == 1 else channels):
        for i in range(max(0, padding - y * step), min(side, row[HEIGHT] + padding - y * step)):
            taps[2 * n_taps] = (c * side + i) * side * width
            taps[2 * n_taps + 1] = c * stride + (y * step + i - padding) * row[WIDTH] * batch
            n_taps += 1
    most = _tile(n_taps, side, batch)
    for tap in range(0, n_taps, FORWARD_LINES):
        x = 0
        while x < row[OUT_WIDTH]:
            first, stop = _forward_taps(row, x)
            x_stop = x + 1
            while (
                step == 1 and x_stop < min(x + most, row[OUT_WIDTH]) and _forward_taps(row, x_stop) == (first, stop)
            ):  # fmt: skip
                x_stop += 1
            # a 1x1 kernel runs over channels where others run over their columns
            depth, depth_stride = (channels, stride) if side == 1 else (stop - first, batch)
            call(row[OUTER], (
                buffer, target_at + x * batch, target_step,
                buffer, row[PACKED] + first * width, block, width,
                buffer, row[INPUT] + (x * step + first - padding) * batch, depth_stride,
                taps[2 * tap :], min(FORWARD_LINES, n_taps - tap), depth,
                weights, bias, START_TARGET if tap else START_BIAS, filters, (x_stop - x) * batch,
            ))  # fmt: skip
            x = x_stop


@kernel
def _tile(lines: int, side: int, batch: int) -> int:
    """Most pixels of a run, of which so many lines are read, each wider by the kernel."""
    return max(1, TILE_ELEMENTS // (max(1, min(lines, FORWARD_LINES)) * batch) - side + 1)


@kernel
def _forward_taps(row: Row, x: int) -> tuple[int, int]:
    """Columns first <= j < stop of the kernel that lie on the input at output column `x`."""
    left = x * row[STRIDE] - row[PADDING]
    return max(0, -left), min(row[KERNEL], row[WIDTH] - left)


@Unit
def conv_backward(row: Row, chunk: Chunk) -> None:
    """Add the gradient of weight and bias to `out`, and write that of the input if anything asks for it."""
    out, buffer, batch = chunk.out, chunk.buffer, chunk.batch
    begin_backward(row, chunk)
    filters, pooled = row[OUT_CHANNELS], row[POOL] > 0
    line = row[OUT_WIDTH] * batch
    stride = channel_stride(row[OUT_HEIGHT] * line)
    delta = row[SCRATCH] if pooled else row[OUTPUT_GRADIENT]
    rows = row[POOL_HEIGHT] if pooled else row[OUT_HEIGHT]
    height = rows
    if pooled and row[INPUT_GRADIENT] == NOWHERE:
        # a band of the gradient at a time is enough where the input needs none
        height = max(1, BAND_ELEMENTS // (filters * row[POOL_STRIDE] * line))
    for top in range(0, rows, height):
        first, stop, step = top, min(top + height, rows), stride
        if pooled:
            bottom = stop
            first, stop = top * row[POOL_STRIDE], row[OUT_HEIGHT] if bottom == rows else bottom * row[POOL_STRIDE]
            step = channel_stride((stop - first) * line)
            max_unpool(row, buffer, batch, top, bottom, stop - first, step)
        _weight_gradient(row, buffer, out, batch, delta - first * line if pooled else delta, step, first, stop)
    if row[INPUT_GRADIENT] != NOWHERE:
        _input_gradient(row, buffer, batch, delta)


@kernel
def begin_backward(row: Row, chunk: Chunk) -> None:
    """Differentiate the function in place, add the gradient of the bias to `out`, and clear at first that of all."""
    out, buffer, batch = chunk.out, chunk.buffer, chunk.batch
    filters = row[OUT_CHANNELS]
    bias = row[WEIGHTS] + filters * row[CHANNELS] * row[KERNEL] * row[KERNEL]
    if chunk.image == 0:
        fill(out[row[WEIGHTS] : bias + filters], 0)
    given = (row[POOL_HEIGHT] * row[POOL_WIDTH] if row[POOL] else row[OUT_HEIGHT] * row[OUT_WIDTH]) * batch
    for f in range(filters):
        at = f * channel_stride(given)
        gradient = buffer[row[OUTPUT_GRADIENT] + at : row[OUTPUT_GRADIENT] + at + given]
        differentiate(row[FUNCTION], buffer[row[OUTPUT] + at : row[OUTPUT] + at + given], gradient)
        out[bias + f] += total(gradient)


@kernel
def _weight_gradient(
    row: Row, buffer: Floats, out: Floats, batch: int, delta: int, step: int, first: int, stop: int
) -> None:
    """Add the products of gradient and input to the weight's gradient, tile by tile of output rows and columns.

    Rows first <= y < stop of the gradient are at delta + y * line, for each filter `step` further on.
    """
    side, line = row[KERNEL], row[OUT_WIDTH] * batch
    # the input's lines stay in the level-2 cache for all filters, and a block of filters' gradients in the first
    most = min(max(1, WEIGHT_LINES // side), row[CHANNELS])
    budget = max(TILE_RUN, TILE_ELEMENTS // (most * side))
    lines = max(1, budget // line)
    columns = row[OUT_WIDTH] if lines > 1 else max(1, min(row[OUT_WIDTH], budget // batch))
    groups = np.zeros(2 * most * side, np.int64)
    if _unbroken(row):
        width = row[WIDTH] * batch
        for c in range(most):
            for i in range(side):
                groups[2 * (c * side + i)] = (c * side + i) * side
                groups[2 * (c * side + i) + 1] = c * channel_stride(row[HEIGHT] * width) + i * width
    for channel in range(0, row[CHANNELS], most):
        channels = min(most, row[CHANNELS] - channel)
        for top in range(first, stop, lines):
            bottom = min(top + lines, stop)
            for left in range(0, row[OUT_WIDTH], columns):
                right = min(left + columns, row[OUT_WIDTH])
                _weight_gradient_of_tile(
                    row, buffer, out, batch, delta, step, channel, channels, top, bottom, left, right, groups
                )


@kernel
def _unbroken(row: Row) -> bool:
    """Whether all weights of a kernel see neighbouring pixels at every output, none of them beyond the border."""
    unbroken: bool = row[STRIDE] == 1 and row[PADDING] == 0 and row[KERNEL] > 1
    return unbroken


@kernel
def _weight_gradient_of_tile(
    row: Row,
    buffer: Floats,
    out: Floats,
    batch: int,
    delta: int,
    stride: int,
    channel: int,
    channels: int,
    top: int,
    bottom: int,
    left: int,
    right: int,
    groups: Row,
) -> None:
    """Add a tile's products: blocks of filters by kernel columns if it is unbroken, else by channels, tap by tap."""
    side, step, padding, width = row[KERNEL], row[STRIDE], row[PADDING], row[WIDTH] * batch
    line, area = row[OUT_WIDTH] * batch, side * side
    source_stride = channel_stride(row[HEIGHT] * width)
    unbroken = _unbroken(row)
    target_b, b_step, n_groups, b_rows = area, source_stride, 1, channels
    if unbroken:
        target_b, b_step, n_groups, b_rows = 1, batch, channels * side, side
    for i in range(0, side, side if unbroken else 1):
        y = max(top, (padding - i + step - 1) // step)
        y_stop = min(bottom, (row[HEIGHT] - 1 + padding - i) // step + 1)
        for j in range(0, side, side if unbroken else 1):
            x = max(left, (padding - j + step - 1) // step)
            x_stop = min(right, (row[WIDTH] - 1 + padding - j) // step + 1)
            if y >= y_stop or x >= x_stop:
                continue
            target = row[WEIGHTS] + channel * area + i * side + j
            at = delta + y * line + x * batch
            source = (
                row[INPUT]
                + channel * source_stride
                + (y * step + i - padding) * width
                + (x * step + j - padding) * batch
            )
            # pixels of a stride lie apart, so that rows are done one by one, with pixels in the place of lines
            products, a_line, b_line, n_lines, count = 1, line, width, y_stop - y, (x_stop - x) * batch
            if step > 1:
                products, a_line, b_line, n_lines, count = y_stop - y, batch, step * batch, x_stop - x, batch
            for number in range(products):
                call(row[DOT], (
                    out, target, row[CHANNELS] * area, target_b,
                    buffer, at + number * line, stride, a_line,
                    buffer, source + number * step * width, b_step, b_line,
                    groups, n_groups, n_lines, count, row[OUT_CHANNELS], b_rows,
                ))  # fmt: skip


@kernel
def _input_gradient(row: Row, buffer: Floats, batch: int, delta: int) -> None:
    """Write to every pixel of the input the gradients of the outputs that it reached, times the weights."""
    side, step, padding, channels = row[KERNEL], row[STRIDE], row[PADDING], row[CHANNELS]
    line = row[OUT_WIDTH] * batch
    stride = channel_stride(row[OUT_HEIGHT] * line)
    target_stride = channel_stride(row[HEIGHT] * row[WIDTH] * batch)
    width = packed_width(channels)
    block = row[OUT_CHANNELS] * side * side * width
    most = _tile(row[OUT_CHANNELS] * side, side, batch)
    taps = np.empty(2 * row[OUT_CHANNELS] * side, np.int64)
    for y in range(row[HEIGHT]):
        first, count = backward_taps(y + padding, row[OUT_HEIGHT], side, step)
        top = y + padding - first if step == 1 else (y + padding - first) // step
        n_taps = 0
        for f in range(min(1, count) if side == 1 else row[OUT_CHANNELS]):
            for number in range(count):
                i = first + number * step
                taps[2 * n_taps] = (f * side + i) * side * width
                taps[2 * n_taps + 1] = f * stride + (top - number) * line
                n_taps += 1
        for tap in range(0, max(1, n_taps), FORWARD_LINES):
            x = 0
            while x < row[WIDTH]:
                j, depth = backward_taps(x + padding, row[OUT_WIDTH], side, step)
                x_stop = x + 1
                while (
                    step == 1
                    and x_stop < min(x + most, row[WIDTH])
                    and backward_taps(x_stop + padding, row[OUT_WIDTH], side, step) == (j, depth)
                ):
                    x_stop += 1
                left = x + padding - j if step == 1 else (x + padding - j) // step
                # the next column of the kernel reached the pixel from an output further left
                a_depth, b_depth = step * width, -batch
                if side == 1:
                    depth, a_depth, b_depth = min(1, depth) * row[OUT_CHANNELS], width, stride
                call(row[OUTER], (
                    buffer, row[INPUT_GRADIENT] + (y * row[WIDTH] + x) * batch, target_stride,
                    buffer, row[PACKED_BACK] + j * width, block, a_depth,
                    buffer, delta + left * batch, b_depth,
                    taps[2 * tap :], min(FORWARD_LINES, n_taps - tap), depth,
                    buffer, 0, START_TARGET if tap else START_ZERO, channels, (x_stop - x) * batch,
                ))  # fmt: skip
                x = x_stop


@kernel
def backward_taps(position: int, outputs: int, side: int, step: int) -> tuple[int, int]:
    """The first kernel row (or column) that reached an input at `position`, padding included, and their number.

    They are `step` apart: row k reached it from output (position - k) / step, if that is one of `outputs`.
    """
    least = max(0, position - (outputs - 1) * step)
    last = min(side - 1, position)
    if step == 1:  # by far the most frequent, and integers divide slowly
        return least, max(0, last - least + 1)
    first = position % step + (max(0, least - position % step) + step - 1) // step * step
    return first, (last - first) // step + 1 if last >= first else 0
