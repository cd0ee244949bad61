"""Compile a network's specification to the program table that the kernels interpret."""

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from operators.dnn.kernels import table
from operators.dnn.layers import Activation, Conv, Dense, MaxPool, Shape
from operators.dnn.spec import ModelSpec, weight_ranges

_FUNCTIONS = {"relu": table.RELU, "sigmoid": table.SIGMOID, "tanh": table.TANH}
_LINE = 16
"""Elements per cache line of float32: every buffer starts on one."""


def compile_program(spec: ModelSpec, batch: int) -> tuple[npt.NDArray[np.int64], int]:
    """Lay out the workspace of `spec` for up to `batch` images.

    An activation that follows a convolution or a dense layer is part of that layer's row.

    Returns:
        The program, (operations, table.COLUMNS) int64, and the number of elements of the workspace buffer.
    """
    rows = list(_operations(spec))
    program = np.stack(rows)
    size = 0

    def reserve(elements: int) -> int:
        nonlocal size
        offset = size
        size += math.ceil(elements / _LINE) * _LINE
        return offset

    program[0, table.INPUT] = reserve(_elements(program[0], table.CHANNELS) * batch)
    for row, successor in zip(program, [*program[1:], None], strict=True):
        row[table.OUTPUT] = reserve(_elements(row, table.OUT_CHANNELS) * batch)
        if successor is not None:
            successor[table.INPUT] = row[table.OUTPUT]
        if row[table.OPCODE] == table.MAX_POOL:
            row[table.SCRATCH] = reserve(_elements(row, table.OUT_CHANNELS) * batch)

    # gradients alternate between two buffers; tiles are dead once their layer is done, and share one
    largest = max(_elements(row, column) for row in program for column in (table.CHANNELS, table.OUT_CHANNELS))
    gradients = [reserve(largest * batch), reserve(largest * batch)]
    tiles = reserve(max(_tile_elements(row, batch) for row in program))
    for index, row in enumerate(program):
        row[table.INPUT_GRADIENT] = gradients[index % 2]
        row[table.OUTPUT_GRADIENT] = gradients[(index + 1) % 2]
        if row[table.OPCODE] in (table.CONV, table.DENSE):
            row[table.SCRATCH] = tiles
    return program, size


def _operations(spec: ModelSpec) -> Iterator[npt.NDArray[np.int64]]:
    """Rows without buffer offsets."""
    starts = (weights.start for weights in weight_ranges(spec)[::2])
    shapes = list(pairwise(spec.shapes()))
    fused = False
    for index, (layer, (shape, output)) in enumerate(zip(spec.layers, shapes, strict=True)):
        if fused:
            fused = False
            continue
        row = _row(shape, output)
        if isinstance(layer, Conv):
            row[table.OPCODE] = table.CONV
            row[[table.KERNEL, table.STRIDE, table.PADDING]] = layer.kernel, layer.stride, layer.padding
        elif isinstance(layer, MaxPool):
            row[table.OPCODE] = table.MAX_POOL
            row[[table.KERNEL, table.STRIDE]] = layer.size, layer.step
        elif isinstance(layer, Dense):
            row[table.OPCODE] = table.DENSE
        else:
            row[table.OPCODE] = table.ACTIVATION
            row[table.FUNCTION] = _FUNCTIONS[layer.function]
        if isinstance(layer, Conv | Dense):
            row[table.WEIGHTS] = next(starts)
            successor = spec.layers[index + 1] if index + 1 < len(spec.layers) else None
            if isinstance(successor, Activation):
                row[table.FUNCTION] = _FUNCTIONS[successor.function]
                fused = True
        yield row


def _row(shape: Shape, output: Shape) -> npt.NDArray[np.int64]:
    row = np.zeros(table.COLUMNS, np.int64)
    row[table.FUNCTION] = table.IDENTITY
    row[table.CHANNELS : table.CHANNELS + 3] = shape
    row[table.OUT_CHANNELS : table.OUT_CHANNELS + 3] = output
    row[table.WEIGHTS] = -1
    return row


def _elements(row: npt.NDArray[np.int64], column: int) -> int:
    """Elements per image of the shape that starts at `column`."""
    return math.prod(row[column : column + 3].tolist())


def _tile_elements(row: npt.NDArray[np.int64], batch: int) -> int:
    """Scratch elements of one operation's tiles at any batch up to `batch`."""
    units = int(row[table.OUT_CHANNELS])
    if row[table.OPCODE] == table.DENSE:
        return units * batch
    if row[table.OPCODE] != table.CONV:
        return 0
    patch = int(row[table.CHANNELS] * row[table.KERNEL] ** 2)
    columns = table.tile_columns_bound(patch, int(row[table.OUT_HEIGHT]), int(row[table.OUT_WIDTH]) * batch)
    return (patch + units) * columns + units * patch
