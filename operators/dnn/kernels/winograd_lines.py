"""The linear maps of Winograd's minimal filtering, over whole lines of pixels.

Of `TILE` neighbouring inputs d and a kernel g of `side` taps, TILE - side + 1 outputs are A' ((G g) * (B' d)), with a
product for each of the tile's points, where a direct sum has `side` for each output (Winograd, Arithmetic Complexity of
Computations, 1980; Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015, section 4.1). Gradients go
the same way back: by the weights G' ((A dy) * (B' d)), by the inputs B ((G g) * (A dy)).

The points are 0, 1, -1, 2, -2, 1/2, -1/2 and infinity, as for Lavin and Gray's F(6 x 6, 3 x 3): they keep the error in
float32 within a few times that of a direct sum.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types

from operators.dnn.kernels.jit import intrinsic
from operators.dnn.kernels.simd import I64, Vectors

Matrix = npt.NDArray[np.float64]

TILE = 8
"""Inputs of a tile, and products of it."""

SIDES = range(3, 8)
"""Kernels for which there are maps."""

_POINTS = 0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5
_SCALES = 1, -2 / 9, -2 / 9, 1 / 90, 1 / 90, 32 / 45, 32 / 45, 1

_FLAGS = ("contract",)
"""What the compiler may do to sums. Where none is said, numba lets it add up in another order, which it does in the
last vector of a line only: results would depend on the size of the mini-batch."""

OF_INPUTS: Matrix = np.array(
    [
        [1, 0, -21 / 4, 0, 21 / 4, 0, -1, 0],
        [0, 1, 1, -17 / 4, -17 / 4, 1, 1, 0],
        [0, -1, 1, 17 / 4, -17 / 4, -1, 1, 0],
        [0, 1 / 2, 1 / 4, -5 / 2, -5 / 4, 2, 1, 0],
        [0, -1 / 2, 1 / 4, 5 / 2, -5 / 4, -2, 1, 0],
        [0, 2, 4, -5 / 2, -5, 1 / 2, 1, 0],
        [0, -2, 4, 5 / 2, -5, -1 / 2, 1, 0],
        [0, -1, 0, 21 / 4, 0, -21 / 4, 0, 1],
    ]
)
"""B': values at the points, of a tile of inputs, (TILE, TILE)."""


def of_outputs(side: int) -> Matrix:
    """A: values at the points, of a tile of outputs, (TILE, TILE - side + 1)."""
    return _powers(TILE - side + 1)


def of_weights(side: int) -> Matrix:
    """G: values at the points, of a kernel's taps, (TILE, side)."""
    scaled: Matrix = np.array(_SCALES)[:, None] * _powers(side)
    return scaled


def _powers(count: int) -> Matrix:
    """The powers 0 <= k < count of every point; infinity has the highest alone."""
    return np.array([*([point**k for k in range(count)] for point in _POINTS), [0.0] * (count - 1) + [1.0]])


def _mapping(matrices: Mapping[int, Matrix]) -> Callable[..., None]:
    """Emit target[o, n] = start + sum over i of matrix[o, i] * source[i, n].

    The matrix is that for a kernel's side; those of sides that are not listed are the first one.
    """

    @intrinsic
    def apply(typing, buffer, side, sources, targets, count, start):  # type: ignore[no-untyped-def]
        row = types.Array(types.int64, 1, "C")
        signature = types.void(buffer, types.int64, row, row, types.int64, buffer.dtype)

        def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            buffer, side, sources, targets, count, start = arguments
            vectors = Vectors(context, builder, signature.args[0])
            buffer_p = vectors.pointer(signature.args[0], buffer, I64(0))
            first = vectors.splat(start)
            done = builder.append_basic_block("done")
            cases = [builder.append_basic_block(f"side{number}") for number in matrices]
            choice = builder.switch(side, cases[0])
            for case, (number, matrix) in zip(cases, matrices.items(), strict=True):
                choice.add_case(I64(number), case)
                builder.position_at_end(case)
                places = [
                    [
                        builder.gep(buffer_p, [builder.load(vectors.pointer(row, lines, I64(line)))])
                        for line in range(size)
                    ]
                    for lines, size in ((sources, matrix.shape[1]), (targets, matrix.shape[0]))
                ]

                def run(n: ir.Value, mask: ir.Value | None, matrix: Matrix = matrix, places: Any = places) -> None:
                    inputs = [vectors.load(builder.gep(place, [n]), mask) for place in places[0]]
                    for value, place in zip(_product(builder, matrix, inputs), places[1], strict=True):
                        vectors.store(builder.fadd(value, first, flags=_FLAGS), builder.gep(place, [n]), mask)

                vectors.each(count, run)
                builder.branch(done)
            builder.position_at_end(done)
            return context.get_dummy_value()

        return signature, emit

    return apply


def _product(builder: ir.IRBuilder, matrix: Matrix, inputs: Sequence[ir.Value]) -> list[ir.Value]:
    """The product of a matrix and a vector; what points of opposite sign have in common is computed once."""
    inputs, matrix = list(inputs), matrix.copy()
    pairs = [(k, k + 1) for k in range(1, TILE - 1, 2)]
    if matrix.shape[1] == TILE and not _rows_pair(matrix):
        for a, b in pairs:
            inputs[a], inputs[b] = _sum_and_difference(builder, inputs[a], inputs[b])
            columns = matrix[:, a].copy(), matrix[:, b].copy()
            matrix[:, a], matrix[:, b] = (columns[0] + columns[1]) / 2, (columns[0] - columns[1]) / 2
        return [_sum(builder, row, inputs) for row in matrix]
    outputs = [ir.Constant(inputs[0].type, None)] * TILE
    for k in (0, TILE - 1):
        outputs[k] = _sum(builder, matrix[k], inputs)
    for a, b in pairs:
        even = _sum(builder, (matrix[a] + matrix[b]) / 2, inputs)
        odd = _sum(builder, (matrix[a] - matrix[b]) / 2, inputs)
        outputs[a], outputs[b] = _sum_and_difference(builder, even, odd)
    return outputs


def _sum_and_difference(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    return builder.fadd(a, b, flags=_FLAGS), builder.fsub(a, b, flags=_FLAGS)


def _rows_pair(matrix: Matrix) -> bool:
    """Whether rows of opposite points differ by the sign of every second column only."""
    signs = (-1.0) ** np.arange(matrix.shape[1])
    return len(matrix) == TILE and bool((matrix[1:-1:2] * signs == matrix[2:-1:2]).all())


def _sum(builder: ir.IRBuilder, factors: npt.NDArray[np.float64], values: Sequence[ir.Value]) -> ir.Value:
    """The sum of values times constants, of which those that are 0 or 1 cost nothing."""
    total: ir.Value | None = None
    for factor, value in sorted(zip(factors, values, strict=True), key=lambda term: abs(term[0]) != 1):
        if factor == 0:
            continue
        if abs(factor) == 1:
            if total is None:
                total = value if factor == 1 else builder.fneg(value)
            else:
                total = (builder.fadd if factor == 1 else builder.fsub)(total, value, flags=_FLAGS)
            continue
        constant = ir.Constant(value.type, [ir.Constant(value.type.element, float(factor))] * value.type.count)
        term = builder.fmul(constant, value, flags=_FLAGS)
        total = term if total is None else builder.fadd(term, total, flags=_FLAGS)
    return ir.Constant(values[0].type, None) if total is None else total


inputs_to_points = _mapping({SIDES[0]: OF_INPUTS})
points_to_inputs = _mapping({SIDES[0]: OF_INPUTS.T})
outputs_to_points = _mapping({side: of_outputs(side) for side in SIDES})
points_to_outputs = _mapping({side: of_outputs(side).T for side in SIDES})
weights_to_points = _mapping({side: of_weights(side) for side in SIDES})
points_to_weights = _mapping({side: of_weights(side).T for side in SIDES})
