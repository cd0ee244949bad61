"""Pooling: maxima, with the positions of the winners kept for the backward pass, and means."""

from operators.dnn.kernels.activation import differentiate
from operators.dnn.kernels.arrays import fill
from operators.dnn.kernels.jit import kernel
from operators.dnn.kernels.table import (
    CHANNELS,
    FUNCTION,
    HEIGHT,
    INPUT,
    INPUT_GRADIENT,
    KEPT,
    KERNEL,
    KERNEL_WIDTH,
    NOWHERE,
    OUT_CHANNELS,
    OUT_HEIGHT,
    OUT_WIDTH,
    OUTPUT,
    OUTPUT_GRADIENT,
    POOL,
    POOL_HEIGHT,
    POOL_STRIDE,
    POOL_WIDTH,
    SCRATCH,
    STRIDE,
    WIDTH,
    Floats,
    Row,
    channel_stride,
)
from operators.dnn.kernels.unit import Unit


@kernel
def max_pool_line(
    buffer: Floats, source: int, line: int, target: int, kept: int, side: int, step: int, width: int, batch: int
) -> None:
    """Write the maxima of a row of windows to `target`, and their positions in the windows to `kept`.

    The first of equal values wins, and a NaN beats every number. `line` is the distance between input rows.
    """
    for x in range(width):
        best = buffer[target + x * batch : target + (x + 1) * batch]
        winner = buffer[kept + x * batch : kept + (x + 1) * batch]
        corner = source + x * step * batch
        for i in range(side):
            for j in range(side):
                begin = corner + i * line + j * batch
                _compete(buffer[begin : begin + batch], best, winner, i * side + j)


@kernel
def _compete(values: Floats, best: Floats, winner: Floats, position: int) -> None:
    """Let the pixels at `position` of their windows, one per image, challenge the best so far."""
    mark = winner.dtype.type(position)
    if position == 0:
        for n in range(values.size):
            best[n] = values[n]
            winner[n] = mark
        return
    for n in range(values.size):
        value = values[n]
        champion = best[n]
        # a NaN wins, once: no comparison with the NaN that reigns is true
        wins = (value > champion) | ((value != value) & (champion == champion))  # noqa: PLR0124
        best[n] = value if wins else champion
        winner[n] = mark if wins else winner[n]


@kernel
def _hand_back(
    buffer: Floats, gradient: int, kept: int, target: int, line: int, side: int, step: int, width: int, batch: int
) -> None:
    """Add the gradients of a row of windows to those of the inputs that won."""
    zero = buffer.dtype.type(0)
    for x in range(width):
        given = buffer[gradient + x * batch : gradient + (x + 1) * batch]
        winner = buffer[kept + x * batch : kept + (x + 1) * batch]
        for i in range(side):
            for j in range(side):
                begin = target + i * line + (x * step + j) * batch
                reached = buffer[begin : begin + batch]
                mark = buffer.dtype.type(i * side + j)
                for n in range(batch):
                    reached[n] += given[n] if winner[n] == mark else zero


@kernel
def max_unpool(row: Row, buffer: Floats, batch: int) -> None:
    """Write the gradient before the function and the pool of a convolution to its scratch."""
    line, pooled_line = row[OUT_WIDTH] * batch, row[POOL_WIDTH] * batch
    area = row[POOL_HEIGHT] * pooled_line
    stride, pooled = channel_stride(row[OUT_HEIGHT] * line), channel_stride(area)
    for f in range(row[OUT_CHANNELS]):
        begin = f * pooled
        gradient = buffer[row[OUTPUT_GRADIENT] + begin : row[OUTPUT_GRADIENT] + begin + area]
        differentiate(row[FUNCTION], buffer[row[OUTPUT] + begin : row[OUTPUT] + begin + area], gradient, gradient)
        target = row[SCRATCH] + f * stride
        fill(buffer[target : target + row[OUT_HEIGHT] * line], 0)
        for y in range(row[POOL_HEIGHT]):
            place = begin + y * pooled_line
            _hand_back(
                buffer, row[OUTPUT_GRADIENT] + place, row[KEPT] + place, target + y * row[POOL_STRIDE] * line, line,
                row[POOL], row[POOL_STRIDE], row[POOL_WIDTH], batch,
            )  # fmt: skip


@Unit
def max_pool_forward(
    row: Row,
    weights: Floats,
    statistics: Floats,
    out: Floats,
    buffer: Floats,
    batch: int,
    image: int,
    seed: int,
    training: bool,
) -> None:
    """Take the maximum of each window; see `max_pool_line`."""
    line, out_line = row[WIDTH] * batch, row[OUT_WIDTH] * batch
    stride, out_stride = channel_stride(row[HEIGHT] * line), channel_stride(row[OUT_HEIGHT] * out_line)
    for c in range(row[CHANNELS]):
        for y in range(row[OUT_HEIGHT]):
            place = c * out_stride + y * out_line
            max_pool_line(
                buffer, row[INPUT] + c * stride + y * row[STRIDE] * line, line, row[OUTPUT] + place, row[KEPT] + place,
                row[KERNEL], row[STRIDE], row[OUT_WIDTH], batch,
            )  # fmt: skip


@Unit
def max_pool_backward(
    row: Row,
    weights: Floats,
    statistics: Floats,
    out: Floats,
    buffer: Floats,
    batch: int,
    image: int,
    seed: int,
    training: bool,
) -> None:
    """Write the gradient of the input: those of the windows that each pixel won."""
    if row[INPUT_GRADIENT] == NOWHERE:
        return
    line, out_line = row[WIDTH] * batch, row[OUT_WIDTH] * batch
    stride, out_stride = channel_stride(row[HEIGHT] * line), channel_stride(row[OUT_HEIGHT] * out_line)
    for c in range(row[CHANNELS]):
        target = row[INPUT_GRADIENT] + c * stride
        fill(buffer[target : target + row[HEIGHT] * line], 0)
        for y in range(row[OUT_HEIGHT]):
            place = c * out_stride + y * out_line
            _hand_back(
                buffer, row[OUTPUT_GRADIENT] + place, row[KEPT] + place, target + y * row[STRIDE] * line, line,
                row[KERNEL], row[STRIDE], row[OUT_WIDTH], batch,
            )  # fmt: skip


@Unit
def avg_pool_forward(
    row: Row,
    weights: Floats,
    statistics: Floats,
    out: Floats,
    buffer: Floats,
    batch: int,
    image: int,
    seed: int,
    training: bool,
) -> None:
    """Take the mean of each window."""
    line, out_line = row[WIDTH] * batch, row[OUT_WIDTH] * batch
    stride, out_stride = channel_stride(row[HEIGHT] * line), channel_stride(row[OUT_HEIGHT] * out_line)
    factor = buffer.dtype.type(1) / buffer.dtype.type(row[KERNEL] * row[KERNEL_WIDTH])
    for c in range(row[CHANNELS]):
        for y in range(row[OUT_HEIGHT]):
            for x in range(row[OUT_WIDTH]):
                begin = row[OUTPUT] + c * out_stride + y * out_line + x * batch
                mean = buffer[begin : begin + batch]
                fill(mean, 0)
                for i in range(row[KERNEL]):
                    for j in range(row[KERNEL_WIDTH]):
                        at = row[INPUT] + c * stride + (y * row[STRIDE] + i) * line + (x * row[STRIDE] + j) * batch
                        values = buffer[at : at + batch]
                        for n in range(batch):
                            mean[n] += values[n]
                for n in range(batch):
                    mean[n] *= factor


@Unit
def avg_pool_backward(
    row: Row,
    weights: Floats,
    statistics: Floats,
    out: Floats,
    buffer: Floats,
    batch: int,
    image: int,
    seed: int,
    training: bool,
) -> None:
    """Write the gradient of the input: an equal share of each window's."""
    if row[INPUT_GRADIENT] == NOWHERE:
        return
    line, out_line = row[WIDTH] * batch, row[OUT_WIDTH] * batch
    stride, out_stride = channel_stride(row[HEIGHT] * line), channel_stride(row[OUT_HEIGHT] * out_line)
    factor = buffer.dtype.type(1) / buffer.dtype.type(row[KERNEL] * row[KERNEL_WIDTH])
    for c in range(row[CHANNELS]):
        target = row[INPUT_GRADIENT] + c * stride
        fill(buffer[target : target + row[HEIGHT] * line], 0)
        for y in range(row[OUT_HEIGHT]):
            for x in range(row[OUT_WIDTH]):
                begin = row[OUTPUT_GRADIENT] + c * out_stride + y * out_line + x * batch
                given = buffer[begin : begin + batch]
                for i in range(row[KERNEL]):
                    for j in range(row[KERNEL_WIDTH]):
                        at = target + (y * row[STRIDE] + i) * line + (x * row[STRIDE] + j) * batch
                        reached = buffer[at : at + batch]
                        for n in range(batch):
                            reached[n] += given[n] * factor
