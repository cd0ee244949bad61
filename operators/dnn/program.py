"""Compile a network's specification to the program table that the kernels interpret."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from operators.dnn.kernels import batch_norm, conv, dense, elementwise, pool, table, winograd
from operators.dnn.kernels.dot import dot
from operators.dnn.kernels.outer import MAX_ROWS, outer
from operators.dnn.kernels.unit import Unit
from operators.dnn.kernels.winograd_lines import SIDES, TILE
from operators.dnn.kernels.winograd_plan import tile_elements
from operators.dnn.layers import (
    Activation,
    AvgPool,
    BatchNorm,
    Conv,
    Dense,
    Dropout,
    GlobalAvgPool,
    MaxPool,
    Residual,
    Shape,
)
from operators.dnn.memory import Span, pack_spans
from operators.dnn.spec import ModelSpec, Step, statistic_ranges, steps, weight_ranges
from operators.jit import in_any_order

CHUNK = 32
"""Images that go through a network together: what its layers hand on then fits a level-2 cache."""

MAP_PRODUCTS = 8
"""Products of a convolution that take as long as a value at a point of a tile takes to compute, or to take back."""

SAVING = 0.8
"""A convolution by tiles is worth it where it takes less than this part of a direct one's time."""

_CONV = conv.conv_forward, conv.conv_backward
_WINOGRAD = winograd.winograd_forward, winograd.winograd_backward
_DENSE = dense.dense_forward, dense.dense_backward
_MAX_POOL = pool.max_pool_forward, pool.max_pool_backward
_AVG_POOL = pool.avg_pool_forward, pool.avg_pool_backward
_BATCH_NORM = batch_norm.batch_norm_forward, batch_norm.batch_norm_backward
_ACTIVATION = elementwise.activation_forward, elementwise.activation_backward
_DROPOUT = elementwise.dropout_forward, elementwise.dropout_backward
_ADD = elementwise.add_forward, elementwise.add_backward
_TRANSPOSE = elementwise.transpose_forward, elementwise.transpose_backward

_FUNCTIONS = {"relu": table.RELU, "sigmoid": table.SIGMOID, "tanh": table.TANH}

_stride = cast("Callable[[int], int]", cast("Any", table.channel_stride).py_func)


@dataclass(frozen=True)
class Program:
    """A network, laid out for the kernels.

    Args:
        table: (operations, table.COLUMNS) int64.
        elements: of the workspace buffer.
        chunk: images that go through the network together.
    """

    table: npt.NDArray[np.int64]
    elements: int
    chunk: int


@dataclass(frozen=True)
class _Array:
    """What an operation reads or writes: flat arrays have one row and column, spatial ones may have more."""

    shape: Shape
    flat: bool

    def elements(self, batch: int) -> int:
        channels, height, width = self.shape
        return channels * batch if self.flat else channels * _stride(height * width * batch)


@dataclass
class _Operation:
    """A row of the table in the making; `units` run it forward and backward, `sources` and `output` number arrays."""

    units: tuple[Unit, Unit]
    sources: tuple[int, ...]
    output: int
    columns: dict[int, int] = field(default_factory=dict)
    weights: bool = False
    scratch: Callable[[int], int] = lambda _batch: 0
    kept: Callable[[int], int] = lambda _batch: 0
    packed: int = 0


def compile_program(spec: ModelSpec, batch: int, dtype: npt.DTypeLike = np.float32) -> Program:
    """Lay out the workspace of `spec` for calls with up to `batch` images, and compile its operations for `dtype`."""
    flattened = steps(spec)
    # batch normalisation takes the statistics of all images at once
    chunk = batch if any(isinstance(step.layer, BatchNorm) for step in flattened) else CHUNK
    builder = _Builder(spec, flattened)
    rows, elements = _lay_out(builder.operations, builder.arrays, min(batch, chunk))
    units = [*(unit for operation in builder.operations for unit in operation.units), outer, dot]
    in_any_order(*(partial(unit.address, dtype) for unit in units))
    for row, operation in zip(rows, builder.operations, strict=True):
        row[table.FORWARD], row[table.BACKWARD] = (unit.address(dtype) for unit in operation.units)
        row[table.OUTER], row[table.DOT] = outer.address(dtype), dot.address(dtype)
    return Program(rows, elements, chunk)


class _Builder:
    """Turns steps into operations: fuses what can be, and puts transpositions where layouts differ."""

    def __init__(self, spec: ModelSpec, flattened: list[Step]) -> None:
        self.arrays: list[_Array] = []
        self.operations: list[_Operation] = []
        self._steps = flattened
        self._weights = iter([weights.start for weights in weight_ranges(spec)[::2]])
        self._statistics = iter([statistics.start for statistics in statistic_ranges(spec)[::2]])
        self._readers = Counter(source for step in flattened for source in step.sources)
        self._only_reader = {step.sources[0]: number for number, step in enumerate(flattened)}
        # the array that holds each of the steps' arrays, by their number
        self._held = {0: self._array(spec.input)}
        fused: set[int] = set()
        for number, step in enumerate(flattened):
            if number not in fused:
                fused |= self._add(number, step)

    def _array(self, shape: Shape, *, flat: bool | None = None) -> int:
        self.arrays.append(_Array(shape, shape[1:] == (1, 1) if flat is None else flat))
        return len(self.arrays) - 1

    def _add(self, number: int, step: Step) -> set[int]:
        """Append the operation of a step; returns the steps that became part of it."""
        layer = step.layer
        if isinstance(layer, Conv):
            return self._add_conv(number, step, layer)
        if isinstance(layer, Dense):
            return self._add_dense(number, step)
        if isinstance(layer, MaxPool | AvgPool):
            columns = {table.KERNEL: layer.size, table.KERNEL_WIDTH: layer.size, table.STRIDE: layer.step}
            units = _MAX_POOL if isinstance(layer, MaxPool) else _AVG_POOL
            operation = self._spatial(units, number, step, columns)
            if isinstance(layer, MaxPool):
                operation.kept = self.arrays[operation.output].elements
        elif isinstance(layer, GlobalAvgPool):
            columns = {table.KERNEL: step.shape[1], table.KERNEL_WIDTH: step.shape[2], table.STRIDE: 1}
            self._spatial(_AVG_POOL, number, step, columns)
        elif isinstance(layer, BatchNorm):
            columns = {
                table.WEIGHTS: next(self._weights),
                table.STATISTICS: next(self._statistics),
                table.RATE: _bits(layer.momentum),
                table.EPSILON: _bits(layer.epsilon),
            }
            operation = self._spatial(_BATCH_NORM, number, step, columns)
            operation.weights = True
            operation.kept = lambda _batch: 2 * step.shape[0]
        elif isinstance(layer, Activation):
            self._elementwise(_ACTIVATION, number, step, {table.FUNCTION: _FUNCTIONS[layer.function]})
        elif isinstance(layer, Dropout):
            self._elementwise(_DROPOUT, number, step, {table.NUMBER: number, table.RATE: _bits(layer.rate)})
        else:
            assert isinstance(layer, Residual)
            self._elementwise(_ADD, number, step, {})
        return set()

    def _add_conv(self, number: int, step: Step, layer: Conv) -> set[int]:
        if layer.padding == 0 and step.shape[1:] == (layer.kernel, layer.kernel):
            return self._add_dense(number, step)
        filters, height, width = step.output
        function, pool, parts = self._successors(number, pools=True)
        columns = {
            table.WEIGHTS: next(self._weights),
            table.FUNCTION: function,
            table.KERNEL: layer.kernel,
            table.STRIDE: layer.stride,
            table.PADDING: layer.padding,
        }
        last = parts[-1] if parts else number
        tiled = _saves_products(step, layer)
        units = _WINOGRAD if tiled else _CONV
        operation = self._spatial(units, last, step._replace(output=self._steps[last].output), columns)
        operation.columns |= {table.OUT_HEIGHT: height, table.OUT_WIDTH: width}
        if pool is not None:
            _, pool_height, pool_width = self._steps[last].output
            operation.columns |= {
                table.POOL: pool.size,
                table.POOL_STRIDE: pool.step,
                table.POOL_HEIGHT: pool_height,
                table.POOL_WIDTH: pool_width,
            }
            operation.kept = self.arrays[operation.output].elements

        def scratch(batch: int) -> int:
            before_pool = filters * _stride(height * width * batch) if parts else 0
            of_tiles = tile_elements(step.shape, step.output, layer.kernel, layer.padding, batch) if tiled else 0
            return before_pool + of_tiles

        operation.scratch = scratch
        operation.weights = True
        # blocks of weights are filled up to one width
        taps = layer.kernel * (TILE if tiled else layer.kernel)
        operation.packed = (filters + MAX_ROWS) * (step.shape[0] + MAX_ROWS) * taps
        return set(parts)

    def _add_dense(self, number: int, step: Step) -> set[int]:
        source = self._as(self._held[step.sources[0]], flat=True)
        function, _, parts = self._successors(number, pools=False)
        units = step.output[0]
        columns = {table.WEIGHTS: next(self._weights), table.FUNCTION: function}
        last = parts[-1] if parts else number
        operation = _Operation(_DENSE, (source,), self._array(step.output), columns, weights=True)
        operation.scratch = lambda batch: units * batch
        self.operations.append(operation)
        self._held[last + 1] = operation.output
        return set(parts)

    def _successors(self, number: int, *, pools: bool) -> tuple[int, MaxPool | None, list[int]]:
        """The function and the max-pool that can be part of a step, and the numbers of their steps, in order."""
        function, pool, parts = table.IDENTITY, None, list[int]()
        last = number
        while self._readers[last + 1] == 1:
            successor = self._only_reader.get(last + 1, -1)
            layer = self._steps[successor].layer if successor >= 0 else None
            if isinstance(layer, Activation) and function == table.IDENTITY:
                function = _FUNCTIONS[layer.function]
            elif pools and isinstance(layer, MaxPool) and pool is None and layer.step >= layer.size:
                pool = layer
            else:
                break
            parts.append(successor)
            last = successor
        return function, pool, parts

    def _spatial(self, units: tuple[Unit, Unit], number: int, step: Step, columns: dict[int, int]) -> _Operation:
        """Append an operation from a spatial array to one, the output of step `number`."""
        source = self._as(self._held[step.sources[0]], flat=False)
        output = self._array(step.output, flat=False)
        operation = _Operation(units, (source,), output, columns)
        self.operations.append(operation)
        self._held[number + 1] = self._as(output, flat=step.output[1:] == (1, 1))
        return operation

    def _elementwise(self, units: tuple[Unit, Unit], number: int, step: Step, columns: dict[int, int]) -> None:
        sources = tuple(self._held[source] for source in step.sources)
        self._held[number + 1] = self._array(step.output)
        self.operations.append(_Operation(units, sources, self._held[number + 1], columns))

    def _as(self, array: int, *, flat: bool) -> int:
        """The array in the layout asked for; a flat one has all its elements as channels."""
        held = self.arrays[array]
        if held.flat == flat:
            return array
        shape = (math.prod(held.shape), 1, 1) if flat else held.shape
        other = self._array(shape, flat=flat)
        self.operations.append(_Operation(_TRANSPOSE, (array,), other))
        return other


def _saves_products(step: Step, layer: Conv) -> bool:
    """Whether a convolution by tiles takes clearly less time than a direct one, whose only work are products."""
    if layer.stride > 1 or layer.kernel not in SIDES:
        return False
    channels, _, width = step.shape
    filters, height, out_width = step.output
    points = TILE * math.ceil(height / (TILE - layer.kernel + 1))
    products = points * out_width * filters * channels * layer.kernel
    maps = points * (channels * width + filters * out_width) * MAP_PRODUCTS
    return products + maps < SAVING * height * out_width * filters * channels * layer.kernel**2


def _lay_out(operations: list[_Operation], arrays: list[_Array], batch: int) -> tuple[npt.NDArray[np.int64], int]:
    """The table with all offsets, and the number of elements that they need."""
    size = 0

    def reserve(elements: int) -> int:
        nonlocal size
        offset = size
        size += math.ceil(elements / 16) * 16
        return offset

    offsets = [reserve(array.elements(batch)) for array in arrays]
    rows = np.stack([_row(operation, arrays) for operation in operations])
    for row, operation in zip(rows, operations, strict=True):
        row[table.INPUT] = offsets[operation.sources[0]]
        row[table.SECOND] = offsets[operation.sources[-1]]
        row[table.OUTPUT] = offsets[operation.output]
        row[table.KEPT] = reserve(operation.kept(batch))
        row[table.PACKED] = reserve(operation.packed)
        row[table.PACKED_BACK] = reserve(operation.packed)

    # backward goes from the last operation to the first: an array's gradient is needed from that of the last operation
    # that reads it to that of the one that makes it
    last_reader = {source: number for number, operation in enumerate(operations) for source in operation.sources}
    needed: dict[int, Span] = {}
    for number, operation in enumerate(operations):
        if operation.weights or any(source in needed for source in operation.sources):
            until = last_reader.get(operation.output, len(operations))
            needed[operation.output] = Span(
                number, until, math.ceil(arrays[operation.output].elements(batch) / 16) * 16
            )
    places, elements = pack_spans(needed)
    gradients = {array: place + size for array, place in places.items()}
    reserve(elements)

    scratch = max(math.ceil(operation.scratch(batch) / 16) * 16 for operation in operations)
    shares = size + scratch
    written: set[int] = set()
    for row, operation in zip(rows[::-1], operations[::-1], strict=True):
        row[table.SCRATCH] = size
        row[table.OUTPUT_GRADIENT] = gradients.get(operation.output, table.NOWHERE)
        columns = ((table.INPUT_GRADIENT, table.TOTAL), (table.SECOND_GRADIENT, table.SECOND_TOTAL))
        temporary = size + scratch
        for source, (own, total) in zip(operation.sources, columns, strict=False):
            if source not in gradients:
                continue
            if source in written:  # by an operation further on, to whose share this one is added
                row[own], row[total] = temporary, gradients[source]
                temporary += math.ceil(arrays[source].elements(batch) / 16) * 16
            else:
                row[own] = gradients[source]
                written.add(source)
        shares = max(shares, temporary)
    return rows, shares


def _row(operation: _Operation, arrays: list[_Array]) -> npt.NDArray[np.int64]:
    """A row without buffer offsets."""
    row = np.zeros(table.COLUMNS, np.int64)
    source, output = arrays[operation.sources[0]], arrays[operation.output]
    row[table.FUNCTION] = table.IDENTITY
    row[table.CHANNELS : table.CHANNELS + 3] = source.shape
    row[table.OUT_CHANNELS : table.OUT_CHANNELS + 3] = output.shape
    row[table.FLAT] = source.flat
    row[[table.INPUT_GRADIENT, table.SECOND_GRADIENT, table.TOTAL, table.SECOND_TOTAL]] = table.NOWHERE
    for column, value in operation.columns.items():
        row[column] = value
    return row


def _bits(value: float) -> int:
    return int(np.float64(value).view(np.int64))
