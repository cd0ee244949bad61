"""Convolution by minimal filtering along the rows of images: fewer multiplications than a direct sum has.

Lines of pixels are combined to tiles of `TILE` points, with `TILE` - side + 1 output rows each; every point is then a
convolution of its own, whose kernel is one row high. Borders are zeros that are written out. Gradients take the same
way back, so that they too are sums over points. See `winograd_lines`, `winograd_plan` and docs/decisions/0042.
"""

import numpy as np

from operators.dnn.kernels.activation import activate
from operators.dnn.kernels.arrays import add, fill
from operators.dnn.kernels.conv import backward_taps, begin_backward, packed_width, pool_line
from operators.dnn.kernels.jit import kernel
from operators.dnn.kernels.outer import START_TARGET, START_ZERO, row_blocks
from operators.dnn.kernels.pool import max_unpool
from operators.dnn.kernels.table import (
    CHANNELS,
    DOT,
    FUNCTION,
    HEIGHT,
    INPUT,
    INPUT_GRADIENT,
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
    WEIGHTS,
    WIDTH,
    Floats,
    Row,
    channel_stride,
)
from operators.dnn.kernels.transpose import transpose
from operators.dnn.kernels.unit import Chunk, Unit, call
from operators.dnn.kernels.winograd_lines import (
    TILE,
    inputs_to_points,
    outputs_to_points,
    points_to_inputs,
    points_to_outputs,
    points_to_weights,
    weights_to_points,
)
from operators.dnn.kernels.winograd_plan import Plan, tile_plan

MAX_LINES = 128
"""Lines of pixels that are read at once."""


@kernel
def _pack(row: Row, weights: Floats, buffer: Floats, spare: int, reach: int) -> None:
    """Write the weight at the points, a block's filters innermost: (point, block, channel, column, filter).

    For the gradient of the input channels take the place of filters: (point, block, filter, column, channel).
    """
    side, channels, filters = row[KERNEL], row[CHANNELS], row[OUT_CHANNELS]
    area = side * side
    _pack_blocks(
        weights, buffer, row[WEIGHTS], row[PACKED], side, filters, channels * area, channels, area, spare, reach
    )
    if row[INPUT_GRADIENT] != NOWHERE:
        at = row[PACKED_BACK]
        _pack_blocks(weights, buffer, row[WEIGHTS], at, side, channels, area, filters, channels * area, spare, reach)


@kernel
def _pack_blocks(
    weights: Floats,
    buffer: Floats,
    source: int,
    target: int,
    side: int,
    count: int,
    step: int,
    others: int,
    other_step: int,
    spare: int,
    reach: int,
) -> None:
    """Write (point, block, other, column, one of `count`); steps are those in the weight.

    As many others as a line has room for are mapped at once. What a smaller block leaves of its width is mapped, too,
    whatever it holds, and never read.
    """
    blocks, least, larger = row_blocks(count)
    width, depth = packed_width(count), others * side
    lines, places = _lines(spare, reach), np.empty(TILE, np.int64)
    most = reach // (side * width)
    first = 0
    for block in range(blocks):
        size = least + (block < larger)
        for begin in range(0, others, most):
            stop = min(begin + most, others)
            for other in range(begin, stop):
                at, line = source + first * step + other * other_step, (other - begin) * side * width
                for i in range(side):
                    transpose(weights, at + i * side, step, buffer, lines[i] + line, width, size, side)
            for point in range(TILE):
                places[point] = target + ((point * blocks + block) * depth + begin * side) * width
            weights_to_points(buffer, side, lines, places, (stop - begin) * side * width, weights.dtype.type(0))
        first += size


@kernel
def _lines(first: int, step: int) -> Row:
    """Offsets of a tile's lines that are `step` apart."""
    lines = np.empty(TILE, np.int64)
    for line in range(TILE):
        lines[line] = first + line * step
    return lines


@kernel
def _pairs(count: int, a_step: int, b_step: int) -> Row:
    """Pairs of offsets, as `outer` and `dot` take them, of rows that are evenly apart in both factors."""
    pairs = np.empty(2 * count, np.int64)
    for number in range(count):
        pairs[2 * number], pairs[2 * number + 1] = number * a_step, number * b_step
    return pairs


@Unit
def winograd_forward(row: Row, chunk: Chunk) -> None:
    """Compute function(weight * input + bias), or the maxima of its windows."""
    weights, buffer, batch = chunk.weights, chunk.buffer, chunk.batch
    side, channels, filters = row[KERNEL], row[CHANNELS], row[OUT_CHANNELS]
    plan = tile_plan(row, batch)
    if chunk.image == 0:
        _pack(row, weights, buffer, plan.spare, plan.reach)
    fill(buffer[plan.zeros : plan.zeros + plan.reach], 0)
    line, padded = row[OUT_WIDTH] * batch, (row[WIDTH] + 2 * row[PADDING]) * batch
    blocks, width = row_blocks(filters)[0], packed_width(filters)
    block = channels * side * width
    taps = _pairs(channels, side * width, plan.input_step)
    pooled, stride = 0, channel_stride(row[OUT_HEIGHT] * line)
    for top in range(0, plan.tiles, plan.band):
        tiles = min(plan.band, plan.tiles - top)
        _inputs_at_points(row, buffer, batch, plan, top, tiles)
        for point in range(TILE):
            for tile in range(tiles):
                for c in range(0, channels, MAX_LINES):
                    call(row[OUTER], (
                        buffer, plan.outputs + point * filters * plan.output_step + tile * line, plan.output_step,
                        buffer, row[PACKED] + point * blocks * block, block, width,
                        buffer, plan.inputs + point * channels * plan.input_step + tile * padded, batch,
                        taps[2 * c :], min(MAX_LINES, channels - c), side,
                        weights, 0, START_TARGET if c else START_ZERO, filters, line,
                    ))  # fmt: skip
        _outputs(row, weights, buffer, batch, plan, top, tiles)
        done = min((top + tiles) * plan.rows, row[OUT_HEIGHT])
        while row[POOL] and pooled < row[POOL_HEIGHT] and pooled * row[POOL_STRIDE] + row[POOL] <= done:
            pool_line(row, buffer, batch, pooled, plan.whole + pooled * row[POOL_STRIDE] * line, stride)
            pooled += 1


@kernel
def _inputs_at_points(row: Row, buffer: Floats, batch: int, plan: Plan, top: int, tiles: int) -> None:
    """Write a band's inputs at the points, with a border of zeros at both ends of their lines."""
    line, border = row[WIDTH] * batch, row[PADDING] * batch
    padded, stride = line + 2 * border, channel_stride(row[HEIGHT] * line)
    sources = np.empty(TILE, np.int64)
    for c in range(row[CHANNELS]):
        for tile in range(tiles):
            y = (top + tile) * plan.rows - row[PADDING]
            for i in range(TILE):
                inside = 0 <= y + i < row[HEIGHT]
                sources[i] = row[INPUT] + c * stride + (y + i) * line if inside else plan.zeros
            at = plan.inputs + c * plan.input_step + tile * padded
            targets = _lines(at + border, row[CHANNELS] * plan.input_step)
            inputs_to_points(buffer, row[KERNEL], sources, targets, line, buffer.dtype.type(0))
            if border:
                for point in range(TILE):
                    fill(buffer[targets[point] - border : targets[point]], 0)
                    fill(buffer[targets[point] + line : targets[point] + line + border], 0)


@kernel
def _outputs(row: Row, weights: Floats, buffer: Floats, batch: int, plan: Plan, top: int, tiles: int) -> None:
    """Write a band's outputs: those before the pool, without the function, or all there is to an output."""
    filters, line = row[OUT_CHANNELS], row[OUT_WIDTH] * batch
    stride = channel_stride(row[OUT_HEIGHT] * line)
    output = plan.whole if row[POOL] else row[OUTPUT]
    bias = row[WEIGHTS] + filters * row[CHANNELS] * row[KERNEL] * row[KERNEL]
    targets = np.empty(TILE, np.int64)
    first, stop = top * plan.rows, min((top + tiles) * plan.rows, row[OUT_HEIGHT])
    for f in range(filters):
        for tile in range(tiles):
            y = (top + tile) * plan.rows
            for i in range(plan.rows):
                inside = y + i < row[OUT_HEIGHT]
                targets[i] = output + f * stride + (y + i) * line if inside else plan.spare
            sources = _lines(plan.outputs + f * plan.output_step + tile * line, filters * plan.output_step)
            points_to_outputs(buffer, row[KERNEL], sources, targets, line, weights[bias + f])
        if not row[POOL]:
            activate(row[FUNCTION], buffer[output + f * stride + first * line : output + f * stride + stop * line])


@Unit
def winograd_backward(row: Row, chunk: Chunk) -> None:
    """Add the gradient of weight and bias to `out`, and write that of the input if anything asks for it."""
    out, buffer, batch = chunk.out, chunk.buffer, chunk.batch
    begin_backward(row, chunk)
    plan = tile_plan(row, batch)
    delta = row[OUTPUT_GRADIENT]
    if row[POOL]:
        delta = plan.whole
        stride = channel_stride(row[OUT_HEIGHT] * row[OUT_WIDTH] * batch)
        max_unpool(row, buffer, batch, 0, row[POOL_HEIGHT], row[OUT_HEIGHT], stride)
    fill(buffer[plan.zeros : plan.zeros + plan.reach], 0)
    fill(buffer[plan.sums : plan.inputs], 0)
    for top in range(0, plan.tiles, plan.band):
        tiles = min(plan.band, plan.tiles - top)
        _inputs_at_points(row, buffer, batch, plan, top, tiles)
        _gradient_at_points(row, buffer, batch, plan, delta, top, tiles)
        _weight_gradient(row, buffer, batch, plan, tiles)
        if row[INPUT_GRADIENT] != NOWHERE:
            _input_gradient_at_points(row, buffer, batch, plan, tiles)
            _input_gradient(row, buffer, batch, plan, top, tiles)
    _add_weight_gradient(row, out, buffer, plan)


@kernel
def _gradient_at_points(row: Row, buffer: Floats, batch: int, plan: Plan, delta: int, top: int, tiles: int) -> None:
    """Write the gradient of a band's outputs at the points."""
    filters, line = row[OUT_CHANNELS], row[OUT_WIDTH] * batch
    stride = channel_stride(row[OUT_HEIGHT] * line)
    sources = np.empty(TILE, np.int64)
    for f in range(filters):
        for tile in range(tiles):
            y = (top + tile) * plan.rows
            for i in range(plan.rows):
                sources[i] = delta + f * stride + (y + i) * line if y + i < row[OUT_HEIGHT] else plan.zeros
            targets = _lines(plan.outputs + f * plan.output_step + tile * line, filters * plan.output_step)
            outputs_to_points(buffer, row[KERNEL], sources, targets, line, buffer.dtype.type(0))


@kernel
def _weight_gradient(row: Row, buffer: Floats, batch: int, plan: Plan, tiles: int) -> None:
    """Add a band's products of gradient and input at the points."""
    side, channels, filters = row[KERNEL], row[CHANNELS], row[OUT_CHANNELS]
    line, padded = row[OUT_WIDTH] * batch, (row[WIDTH] + 2 * row[PADDING]) * batch
    groups = _pairs(channels, side, plan.input_step)
    for point in range(TILE):
        call(row[DOT], (
            buffer, plan.sums + point * filters * channels * side, channels * side, 1,
            buffer, plan.outputs + point * filters * plan.output_step, plan.output_step, line,
            buffer, plan.inputs + point * channels * plan.input_step, batch, padded,
            groups, channels, tiles, line, filters, side,
        ))  # fmt: skip


@kernel
def _add_weight_gradient(row: Row, out: Floats, buffer: Floats, plan: Plan) -> None:
    """Add the weight's gradient, from what it is at the points."""
    side, channels, filters = row[KERNEL], row[CHANNELS], row[OUT_CHANNELS]
    size = channels * side
    targets = _lines(plan.spare, plan.reach)
    for f in range(filters):
        sources = _lines(plan.sums + f * size, filters * size)
        points_to_weights(buffer, side, sources, targets, size, buffer.dtype.type(0))
        for c in range(channels):
            for i in range(side):
                at = row[WEIGHTS] + ((f * channels + c) * side + i) * side
                for j in range(side):
                    out[at + j] += buffer[targets[i] + c * side + j]


@kernel
def _input_gradient_at_points(row: Row, buffer: Floats, batch: int, plan: Plan, tiles: int) -> None:
    """Write the gradient of a band's inputs at the points, over those that it was computed from; borders have none."""
    side, channels, filters, padding = row[KERNEL], row[CHANNELS], row[OUT_CHANNELS], row[PADDING]
    line = row[OUT_WIDTH] * batch
    blocks, width = row_blocks(channels)[0], packed_width(channels)
    block = filters * side * width
    taps = _pairs(filters, side * width, plan.output_step)
    x = 0
    while x < row[WIDTH]:
        j, depth = backward_taps(x + padding, row[OUT_WIDTH], side, 1)
        x_stop = x + 1
        while x_stop < row[WIDTH] and backward_taps(x_stop + padding, row[OUT_WIDTH], side, 1) == (j, depth):
            x_stop += 1
        for point in range(TILE):
            for tile in range(tiles):
                at = plan.inputs + point * channels * plan.input_step + (tile * row[WIDTH] + x) * batch
                left = plan.outputs + point * filters * plan.output_step + tile * line + (x + padding - j) * batch
                for f in range(0, filters, MAX_LINES):
                    call(row[OUTER], (
                        buffer, at, plan.input_step,
                        buffer, row[PACKED_BACK] + point * blocks * block + j * width, block, width,
                        buffer, left, -batch,
                        taps[2 * f :], min(MAX_LINES, filters - f), depth,
                        buffer, 0, START_TARGET if f else START_ZERO, channels, (x_stop - x) * batch,
                    ))  # fmt: skip
        x = x_stop


@kernel
def _input_gradient(row: Row, buffer: Floats, batch: int, plan: Plan, top: int, tiles: int) -> None:
    """Write the gradient of a band's inputs; where tiles overlap, the lower one adds to it."""
    channels, line = row[CHANNELS], row[WIDTH] * batch
    stride = channel_stride(row[HEIGHT] * line)
    targets = np.empty(TILE, np.int64)
    for c in range(channels):
        for tile in range(tiles):
            first = (top + tile) * plan.rows - row[PADDING]
            shared = TILE - plan.rows if top + tile else 0
            for i in range(TILE):
                written = i >= shared and 0 <= first + i < row[HEIGHT]
                at = row[INPUT_GRADIENT] + c * stride + (first + i) * line
                targets[i] = at if written else plan.spare + i * plan.reach
            sources = _lines(plan.inputs + c * plan.input_step + tile * line, channels * plan.input_step)
            points_to_inputs(buffer, row[KERNEL], sources, targets, line, buffer.dtype.type(0))
            for i in range(shared):
                if 0 <= first + i < row[HEIGHT]:
                    at = row[INPUT_GRADIENT] + c * stride + (first + i) * line
                    add(buffer[targets[i] : targets[i] + line], buffer[at : at + line])
