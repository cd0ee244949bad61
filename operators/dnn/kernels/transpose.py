"""Transposition of matrices, by squares that fit the vector registers."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from operators.dnn.kernels.jit import intrinsic, kernel
from operators.dnn.kernels.simd import I64, REGISTER_BYTES, Vectors
from operators.dnn.kernels.table import Floats


@kernel
def transpose(
    source: Floats,
    source_at: int,
    source_step: int,
    target: Floats,
    target_at: int,
    target_step: int,
    rows: int,
    columns: int,
) -> None:
    """Write target[c, r] = source[r, c].

    Both arrays are one-dimensional, of one dtype; `_at` is where element [0, 0] lies, `_step` how far rows are apart.
    """
    side = REGISTER_BYTES // source.itemsize
    for r in range(0, rows, side):
        for c in range(0, columns, side):
            _square(
                source, source_at + r * source_step + c, source_step,
                target, target_at + c * target_step + r, target_step,
                min(side, rows - r), min(side, columns - c),
            )  # fmt: skip


@intrinsic
def _square(  # type: ignore[no-untyped-def]
    typing, source, source_at, source_step, target, target_at, target_step, rows, columns
):
    """Transpose a square with as many rows as a register has lanes, or a smaller piece one by one.

    Stores of a part of a register, by mask, take AMD's processors longer than as many elements.
    """
    signature = types.void(source, types.int64, types.int64, target, *[types.int64] * 4)

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        source, source_at, source_step, target, target_at, target_step, rows, columns = arguments
        vectors = Vectors(context, builder, signature.args[0])
        source_p = vectors.pointer(signature.args[0], source, source_at)
        target_p = vectors.pointer(signature.args[3], target, target_at)
        side = I64(vectors.lanes)
        whole = builder.and_(*(builder.icmp_signed("==", count, side) for count in (rows, columns)))
        with builder.if_else(whole) as (square, piece):
            with square:
                lines = [I64(line) for line in range(vectors.lanes)]
                loaded = [vectors.load(builder.gep(source_p, [builder.mul(source_step, line)])) for line in lines]
                for line, vector in zip(lines, vectors.transposed(loaded), strict=True):
                    vectors.store(vector, builder.gep(target_p, [builder.mul(target_step, line)]))
            with piece, cgutils.for_range(builder, columns) as c:
                column = builder.gep(source_p, [c.index])
                line = builder.gep(target_p, [builder.mul(target_step, c.index)])
                with cgutils.for_range(builder, rows) as r:
                    value = builder.load(builder.gep(column, [builder.mul(source_step, r.index)]))
                    builder.store(value, builder.gep(line, [r.index]))
        return context.get_dummy_value()

    return signature, emit
