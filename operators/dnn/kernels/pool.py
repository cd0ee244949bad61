"""Pooling: maxima, with the positions of the winners kept for the backward pass, and means."""

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from operators.dnn.kernels.arrays import fill
from operators.dnn.kernels.jit import intrinsic, kernel
from operators.dnn.kernels.simd import I64, Vectors
from operators.dnn.kernels.table import (
    CHANNELS,
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
from operators.dnn.kernels.unit import Chunk, Unit

_Pixel = Callable[[ir.Value, ir.Value], None]
"""Emits something for a pixel of a window: with its offset from the first, and its number in every lane."""

_EachPixel = Callable[[_Pixel], None]
"""Emits something for each pixel of a window."""


@kernel
def max_pool_line(
    buffer: Floats, source: int, line: int, target: int, kept: int, side: int, step: int, width: int, batch: int
) -> None:
    """Write the maxima of a row of windows to `target`, and their positions in the windows to `kept`.

    The first of equal values wins, and a NaN beats every number. `line` is the distance between input rows.
    """
    for x in range(width):
        _maxima(buffer, source + x * step * batch, line, target + x * batch, kept + x * batch, side, batch)


@kernel
def hand_back_line(
    buffer: Floats, gradient: int, kept: int, target: int, line: int, side: int, step: int, width: int, batch: int
) -> None:
    """Give the gradients of a row of windows to the inputs that won, which add them up where windows overlap.

    Where they do not, all inputs of the windows are written; where they do, they must hold zeros at first.
    """
    for x in range(width):
        _hand_back(buffer, gradient + x * batch, kept + x * batch, target + x * step * batch, line, side, batch, step)


@intrinsic
def _maxima(typing, buffer, source, line, target, kept, side, batch):  # type: ignore[no-untyped-def]
    """Write the maxima of one window of each image, and their positions."""
    signature = types.void(buffer, *[types.int64] * 6)

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        buffer, source, line, target, kept, side, batch = arguments
        vectors = Vectors(context, builder, signature.args[0])
        source_p, target_p, kept_p = (
            vectors.pointer(signature.args[0], buffer, at) for at in (source, target, kept)
        )  # fmt: skip

        def run(each_pixel: _EachPixel, n: ir.Value, mask: ir.Value | None) -> None:
            [[best, winner]] = vectors.variables(1, 2)
            builder.store(vectors.load(builder.gep(source_p, [n]), mask), best)
            builder.store(ir.Constant(vectors.type, None), winner)

            def compete(offset: ir.Value, position: ir.Value) -> None:
                value = vectors.load(builder.gep(source_p, [builder.add(offset, n)]), mask)
                champion = builder.load(best)
                # greater, or a NaN that meets a number; the first of the window does not beat itself
                wins = builder.and_(
                    builder.fcmp_unordered(">", value, champion), builder.fcmp_ordered("ord", champion, champion)
                )
                builder.store(builder.select(wins, value, champion), best)
                builder.store(builder.select(wins, position, builder.load(winner)), winner)

            each_pixel(compete)
            vectors.store(builder.load(best), builder.gep(target_p, [n]), mask)
            vectors.store(builder.load(winner), builder.gep(kept_p, [n]), mask)

        two = builder.icmp_signed("==", side, I64(2))
        with builder.if_else(two) as (common, general):
            with common:
                vectors.each(batch, partial(run, _two_by_two(builder, vectors, line, batch)))
            with general:
                vectors.each(batch, partial(run, _any_window(builder, vectors, side, line, batch)))
        return context.get_dummy_value()

    return signature, emit


@intrinsic
def _hand_back(typing, buffer, gradient, kept, target, line, side, batch, step):  # type: ignore[no-untyped-def]
    """Give the gradient of one window of each image to the input that won."""
    signature = types.void(buffer, *[types.int64] * 7)

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        buffer, gradient, kept, target, line, side, batch, step = arguments
        vectors = Vectors(context, builder, signature.args[0])
        gradient_p, kept_p, target_p = (
            vectors.pointer(signature.args[0], buffer, at) for at in (gradient, kept, target)
        )  # fmt: skip

        def run(each_pixel: _EachPixel, overlap: ir.Value | None, n: ir.Value, mask: ir.Value | None) -> None:
            given = vectors.load(builder.gep(gradient_p, [n]), mask)
            winner = vectors.load(builder.gep(kept_p, [n]), mask)

            def reach(offset: ir.Value, position: ir.Value) -> None:
                address = builder.gep(target_p, [builder.add(offset, n)])
                won = builder.fcmp_ordered("==", winner, position)
                share = builder.select(won, given, ir.Constant(vectors.type, None))
                if overlap is not None:
                    share = builder.select(overlap, builder.fadd(vectors.load(address, mask), share), share)
                vectors.store(share, address, mask)

            each_pixel(reach)

        two, overlap = builder.icmp_signed("==", side, I64(2)), builder.icmp_signed("<", step, side)
        with builder.if_else(builder.and_(two, builder.not_(overlap))) as (common, general):
            with common:
                vectors.each(batch, partial(run, _two_by_two(builder, vectors, line, batch), None))
            with general:
                vectors.each(batch, partial(run, _any_window(builder, vectors, side, line, batch), overlap))
        return context.get_dummy_value()

    return signature, emit


def _two_by_two(builder: ir.IRBuilder, vectors: Vectors, line: ir.Value, batch: ir.Value) -> _EachPixel:
    """A function that emits something for each pixel of a window of two rows and columns, without a loop."""

    def each(run: _Pixel) -> None:
        for number, offset in enumerate((I64(0), batch, line, builder.add(line, batch))):
            run(offset, ir.Constant(vectors.type, [float(number)] * vectors.lanes))

    return each


def _any_window(builder: ir.IRBuilder, vectors: Vectors, side: ir.Value, line: ir.Value, batch: ir.Value) -> _EachPixel:
    """A function that emits something for each pixel of a window of `side` rows and columns, in loops."""

    def each(run: _Pixel) -> None:
        [[mark]] = vectors.variables(1, 1)
        builder.store(ir.Constant(vectors.type, None), mark)
        with cgutils.for_range(builder, side) as i, cgutils.for_range(builder, side) as j:
            number = builder.load(mark)
            run(builder.add(builder.mul(i.index, line), builder.mul(j.index, batch)), number)
            builder.store(builder.fadd(number, ir.Constant(vectors.type, [1.0] * vectors.lanes)), mark)

    return each


@kernel
def max_unpool(row: Row, buffer: Floats, batch: int, top: int, bottom: int, height: int, stride: int) -> None:
    """Write the gradient before the pool of a convolution, of the `height` rows from where window row `top` begins.

    It goes to the scratch, filters `stride` apart.
    """
    line, pooled_line = row[OUT_WIDTH] * batch, row[POOL_WIDTH] * batch
    pooled = channel_stride(row[POOL_HEIGHT] * pooled_line)
    covered = (bottom - top) * row[POOL] == height and row[POOL_WIDTH] * row[POOL] == row[OUT_WIDTH]
    for f in range(row[OUT_CHANNELS]):
        target = row[SCRATCH] + f * stride
        if not covered:
            fill(buffer[target : target + height * line], 0)
        for y in range(top, bottom):
            place = f * pooled + y * pooled_line
            hand_back_line(
                buffer, row[OUTPUT_GRADIENT] + place, row[KEPT] + place, target + (y - top) * row[POOL_STRIDE] * line,
                line, row[POOL], row[POOL_STRIDE], row[POOL_WIDTH], batch,
            )  # fmt: skip


@Unit
def max_pool_forward(row: Row, chunk: Chunk) -> None:
    """Take the maximum of each window; see `max_pool_line`."""
    buffer, batch = chunk.buffer, chunk.batch
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
def max_pool_backward(row: Row, chunk: Chunk) -> None:
    """Write the gradient of the input: those of the windows that each pixel won."""
    buffer, batch = chunk.buffer, chunk.batch
    if row[INPUT_GRADIENT] == NOWHERE:
        return
    line, out_line = row[WIDTH] * batch, row[OUT_WIDTH] * batch
    stride, out_stride = channel_stride(row[HEIGHT] * line), channel_stride(row[OUT_HEIGHT] * out_line)
    for c in range(row[CHANNELS]):
        target = row[INPUT_GRADIENT] + c * stride
        fill(buffer[target : target + row[HEIGHT] * line], 0)
        for y in range(row[OUT_HEIGHT]):
            place = c * out_stride + y * out_line
            hand_back_line(
                buffer, row[OUTPUT_GRADIENT] + place, row[KEPT] + place, target + y * row[STRIDE] * line, line,
                row[KERNEL], row[STRIDE], row[OUT_WIDTH], batch,
            )  # fmt: skip


@Unit
def avg_pool_forward(row: Row, chunk: Chunk) -> None:
    """Take the mean of each window."""
    buffer, batch = chunk.buffer, chunk.batch
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
def avg_pool_backward(row: Row, chunk: Chunk) -> None:
    """Write the gradient of the input: an equal share of each window's."""
    buffer, batch = chunk.buffer, chunk.batch
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
