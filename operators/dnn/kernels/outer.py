"""A block of a matrix product as a sum of outer products, with one factor read at offsets from a table.

This is the inner loop of convolution forward and to its input, and of the dense layer's gradients. The block of sums
stays in registers; a step reads a row of each factor, and multiplies every element of one with all of the other.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from operators.dnn.kernels.jit import intrinsic, kernel
from operators.dnn.kernels.simd import I64, REGISTER_BYTES, REGISTERS, VECTORS, Vectors
from operators.dnn.kernels.table import Floats, Row
from operators.dnn.kernels.unit import Unit

START_ZERO = 0
START_BIAS = 1
START_TARGET = 2

MAX_ROWS = 12 if REGISTERS == 32 else 6
"""Rows of a block: with `VECTORS` vectors each, two of the other factor, and one element, they fill the registers."""


@intrinsic
def _block(  # type: ignore[no-untyped-def]
    typing, target, target_at, target_step, a, a_at, a_depth, b, b_at, b_depth, taps, n_taps, depth, bias, bias_at,
    start, rows, columns,
):  # fmt: skip
    signature = types.void(
        target, types.int64, types.int64, a, types.int64, types.int64, b, types.int64, types.int64,
        taps, types.int64, types.int64, bias, types.int64, types.int64, types.int64, types.int64,
    )  # fmt: skip

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        (target, target_at, target_step, a, a_at, a_depth, b, b_at, b_depth, taps, n_taps, depth, bias, bias_at,
         start, rows, columns) = arguments  # fmt: skip
        vectors = Vectors(context, builder, signature.args[0])
        target_p = vectors.pointer(signature.args[0], target, target_at)
        a_p = vectors.pointer(signature.args[3], a, a_at)
        b_p = vectors.pointer(signature.args[6], b, b_at)
        taps_p = vectors.pointer(signature.args[9], taps, I64(0))
        bias_p = vectors.pointer(signature.args[12], bias, bias_at)

        def block(height: int, masks: Sequence[ir.Value | None]) -> None:
            width = len(masks)
            sums = vectors.variables(height, width)
            places = [
                [
                    builder.gep(target_p, [builder.add(builder.mul(target_step, I64(f)), I64(v * vectors.lanes))])
                    for v in range(width)
                ]
                for f in range(height)
            ]
            # every way here writes all sums: one that did not would keep those of every size alive, out of registers
            ready, zero, bias_first, target_first = (
                builder.append_basic_block(name) for name in ("ready", "zero", "bias", "target")
            )
            choice = builder.switch(start, zero)
            choice.add_case(I64(START_BIAS), bias_first)
            choice.add_case(I64(START_TARGET), target_first)
            firsts: tuple[tuple[ir.Block, Callable[[int, int], ir.Value]], ...] = (
                (zero, lambda _f, _v: ir.Constant(vectors.type, None)),
                (bias_first, lambda f, _v: vectors.splat(builder.load(builder.gep(bias_p, [I64(f)])))),
                (target_first, lambda f, v: vectors.load(places[f][v], masks[v])),
            )
            for case, first in firsts:
                builder.position_at_end(case)
                for f in range(height):
                    for v in range(width):
                        builder.store(first(f, v), sums[f][v])
                builder.branch(ready)
            builder.position_at_end(ready)
            with cgutils.for_range(builder, n_taps) as tap:
                entry = builder.mul(tap.index, I64(2))
                a_tap = builder.gep(a_p, [builder.load(builder.gep(taps_p, [entry]))])
                b_tap = builder.gep(b_p, [builder.load(builder.gep(taps_p, [builder.add(entry, I64(1))]))])
                with cgutils.for_range(builder, depth) as level:
                    a_row = builder.gep(a_tap, [builder.mul(level.index, a_depth)])
                    b_row = builder.gep(b_tap, [builder.mul(level.index, b_depth)])
                    row = [vectors.load(builder.gep(b_row, [I64(v * vectors.lanes)]), masks[v]) for v in range(width)]
                    for f in range(height):
                        factor = vectors.splat(builder.load(builder.gep(a_row, [I64(f)])))
                        for v in range(width):
                            total = vectors.multiply_add(factor, row[v], builder.load(sums[f][v]))
                            builder.store(total, sums[f][v])
            for f in range(height):
                for v in range(width):
                    vectors.store(builder.load(sums[f][v]), places[f][v], masks[v])

        done = builder.append_basic_block("done")
        for entry, masks in _widths(builder, vectors, columns):
            builder.position_at_end(entry)
            choice = builder.switch(rows, done)
            for height in range(1, MAX_ROWS + 1):
                case = builder.append_basic_block(f"rows{height}")
                choice.add_case(I64(height), case)
                builder.position_at_end(case)
                block(height, masks)
                builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return signature, emit


def _widths(builder: ir.IRBuilder, vectors: Vectors, columns: ir.Value) -> list[tuple[ir.Block, list[ir.Value | None]]]:
    """Branch by the columns of a block: to `VECTORS` vectors, the last of which they may not fill, or to one."""
    lanes = I64(vectors.lanes)
    whole, more, last, first = (builder.append_basic_block(name) for name in ("whole", "more", "last", "first"))
    builder.cbranch(builder.icmp_signed("==", columns, I64(VECTORS * vectors.lanes)), whole, more)
    builder.position_at_end(more)
    one, rest = vectors.mask(columns), vectors.mask(builder.sub(columns, lanes))
    builder.cbranch(builder.icmp_signed(">", columns, lanes), last, first)
    return [(whole, [None, None]), (last, [None, rest]), (first, [one])]


@kernel
def row_blocks(rows: int) -> tuple[int, int, int]:
    """The blocks that rows are divided into: their number, the least size, and how many at first are larger by one.

    It is called for every run of pixels: a division of integers would take longer than that of floats.
    """
    blocks = (rows + MAX_ROWS - 1) // MAX_ROWS
    size = int(rows / blocks)
    return blocks, size, rows - size * blocks


@Unit
def outer(
    target: Floats,
    target_at: int,
    target_step: int,
    a: Floats,
    a_at: int,
    a_block: int,
    a_depth: int,
    b: Floats,
    b_at: int,
    b_depth: int,
    taps: Row,
    n_taps: int,
    depth: int,
    bias: Floats,
    bias_at: int,
    start: int,
    rows: int,
    columns: int,
) -> None:
    """Compute target[f, t] = start[f, t] + sum over taps and d of a[tap, d, f] * b[tap, d, t].

    All arrays are one-dimensional; offsets and strides count elements. `_at` is where element [0, 0, 0] lies, `_depth`
    the distance between neighbours in d. Neighbours in f of `a`, and in t of `b` and `target`, lie side by side.
    All columns of a block of rows are done before the next block: one whose factor stays in the first-level cache.

    `target` is overwritten; neighbours in f are `target_step` apart. Blocks of rows of `a` are `a_block` apart, or side
    by side if that is 0. `taps` (int64, flat) are pairs of offsets in `a` and in `b`, `n_taps` of them. There are
    `depth` d, `rows` f and `columns` t. `start` is START_ZERO, START_BIAS for bias[bias_at + f], or START_TARGET for
    what `target` holds.
    """
    lanes = REGISTER_BYTES // target.itemsize
    blocks, least, larger = row_blocks(rows)
    first = 0
    for number in range(blocks):
        stop = first + least + (number < larger)
        factor = a_at + (number * a_block if a_block else first)
        t = 0
        while t < columns:
            size = min(columns - t, VECTORS * lanes)
            _block(
                target, target_at + first * target_step + t, target_step, a, factor, a_depth, b, b_at + t, b_depth,
                taps, n_taps, depth, bias, bias_at + first, start, stop - first, size,
            )  # fmt: skip
            t += size
        first = stop
