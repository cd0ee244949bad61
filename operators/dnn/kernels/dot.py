"""Dot products of some rows with some others, along their contiguous elements.

This is the inner loop of the convolution's weight gradient and of the dense layer forward. Each sum has a vector
register of partial sums, whose lanes are added up at the end.
"""

from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from operators.dnn.kernels.jit import intrinsic
from operators.dnn.kernels.simd import I64, REGISTERS, Vectors
from operators.dnn.kernels.table import Floats, Row
from operators.dnn.kernels.unit import Unit

MAX_B = 5
"""Rows of the second factor in a block."""


def most_a(registers: int) -> tuple[int, ...]:
    """Most rows of the first factor in a block with one, two, and so on of the second.

    The registers hold a sum for each pair, the rows of the second factor, and one of the first. More than six rows
    gain nothing. `dot` asks for what fits its largest block of the second factor, and for no more with a smaller one:
    these numbers must not rise.
    """
    return tuple(min(6, (registers - 1 - b_rows) // b_rows) for b_rows in range(1, MAX_B + 1))


MOST_A = most_a(REGISTERS)


@intrinsic
def _block(  # type: ignore[no-untyped-def]
    typing, target, target_at, target_a, target_b, a, a_at, a_step, a_line, b, b_at, b_step, b_line, lines, count,
    a_rows, b_rows,
):  # fmt: skip
    signature = types.void(
        target, types.int64, types.int64, types.int64, a, types.int64, types.int64, types.int64,
        b, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64,
    )  # fmt: skip

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        (target, target_at, target_a, target_b, a, a_at, a_step, a_line, b, b_at, b_step, b_line, lines, count,
         a_rows, b_rows) = arguments  # fmt: skip
        vectors = Vectors(context, builder, signature.args[0])
        target_p = vectors.pointer(signature.args[0], target, target_at)
        a_p = vectors.pointer(signature.args[4], a, a_at)
        b_p = vectors.pointer(signature.args[8], b, b_at)

        def block(height: int, width: int) -> None:
            sums = vectors.variables(height, width)
            for row in sums:
                for variable in row:
                    builder.store(ir.Constant(vectors.type, None), variable)

            def step(a_lines: list[ir.Value], b_lines: list[ir.Value], t: ir.Value, mask: ir.Value | None) -> None:
                right = [vectors.load(builder.gep(line, [t]), mask) for line in b_lines]
                for i, line in enumerate(a_lines):
                    left = vectors.load(builder.gep(line, [t]), mask)
                    for j in range(width):
                        builder.store(vectors.multiply_add(left, right[j], builder.load(sums[i][j])), sums[i][j])

            with cgutils.for_range(builder, lines) as loop:
                a_start, b_start = builder.mul(loop.index, a_line), builder.mul(loop.index, b_line)
                a_lines = [builder.gep(a_p, [builder.add(a_start, builder.mul(a_step, I64(i)))]) for i in range(height)]
                b_lines = [builder.gep(b_p, [builder.add(b_start, builder.mul(b_step, I64(j)))]) for j in range(width)]
                vectors.each(count, partial(step, a_lines, b_lines))
            totals = vectors.totals([builder.load(variable) for row in sums for variable in row])
            for number, total in enumerate(totals):
                i, j = divmod(number, width)
                place = builder.add(builder.mul(target_a, I64(i)), builder.mul(target_b, I64(j)))
                address = builder.gep(target_p, [place])
                builder.store(builder.fadd(builder.load(address), builder.load(total)), address)

        done = builder.append_basic_block("done")
        widths = builder.switch(b_rows, done)
        for width in range(1, MAX_B + 1):
            case = builder.append_basic_block(f"columns{width}")
            widths.add_case(I64(width), case)
            builder.position_at_end(case)
            heights = builder.switch(a_rows, done)
            for height in range(1, MOST_A[width - 1] + 1):
                case = builder.append_basic_block(f"rows{height}")
                heights.add_case(I64(height), case)
                builder.position_at_end(case)
                block(height, width)
                builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return signature, emit


@Unit
def dot(
    target: Floats,
    target_at: int,
    target_a: int,
    target_b: int,
    a: Floats,
    a_at: int,
    a_step: int,
    a_line: int,
    b: Floats,
    b_at: int,
    b_step: int,
    b_line: int,
    groups: Row,
    n_groups: int,
    lines: int,
    count: int,
    a_rows: int,
    b_rows: int,
) -> None:
    """Add to target[i, g, j] the sum over l and t of a[i, l, t] * b[g, j, l, t].

    All arrays are one-dimensional; offsets and strides count elements. `_at` is where element [0, 0, 0] lies, `_step`
    the distance between neighbours in i or j, `_line` that in l. Neighbours in t lie side by side.

    It is added to `target`, where neighbours in i are `target_a` apart, those in j `target_b`. `groups` (int64, flat)
    are pairs of offsets in `target` and in `b`, one for each of the `n_groups` g. There are `a_rows` i, `b_rows` j,
    `lines` l and `count` t. Some rows of `a` are done with all of `b` before the next.
    """
    # divisions of integers would take longer than a short block
    b_blocks = (b_rows + MAX_B - 1) // MAX_B
    b_least = int(b_rows / b_blocks)
    b_larger = b_rows - b_least * b_blocks
    a_most = MOST_A[b_least + (b_larger > 0) - 1]
    a_blocks = int((a_rows + a_most - 1) / a_most)
    a_least = int(a_rows / a_blocks)
    a_larger = a_rows - a_least * a_blocks
    i = 0
    for a_block in range(a_blocks):
        height = a_least + (a_block < a_larger)
        for group in range(n_groups):
            target_group = target_at + i * target_a + groups[2 * group]
            b_group = b_at + groups[2 * group + 1]
            j = 0
            for b_block in range(b_blocks):
                width = b_least + (b_block < b_larger)
                _block(
                    target, target_group + j * target_b, target_a, target_b, a, a_at + i * a_step, a_step, a_line,
                    b, b_group + j * b_step, b_step, b_line, lines, count, height, width,
                )  # fmt: skip
                j += width
        i += height
