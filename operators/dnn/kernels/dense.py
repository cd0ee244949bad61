"""The fully connected layer on flat arrays (image, feature): every weight is read once a pass, where it lies."""

import numpy as np

from operators.dnn.kernels.activation import activate, differentiate
from operators.dnn.kernels.arrays import add, copy, fill
from operators.dnn.kernels.outer import START_TARGET, START_ZERO
from operators.dnn.kernels.table import (
    CHANNELS,
    DOT,
    FUNCTION,
    INPUT,
    INPUT_GRADIENT,
    NOWHERE,
    OUT_CHANNELS,
    OUTER,
    OUTPUT,
    OUTPUT_GRADIENT,
    SCRATCH,
    WEIGHTS,
    Row,
)
from operators.dnn.kernels.unit import Chunk, Unit, call

TILE_INPUTS = 1024
"""Features that a pass goes over at once: those of a block of images stay in the level-2 cache."""

TILE_UNITS = 16
"""Units whose weights a pass to the input goes over at once: as many streams as memory is read ahead for."""


@Unit
def dense_forward(row: Row, chunk: Chunk) -> None:
    """Compute output (batch, units) = function(input @ weight.T + bias)."""
    weights, buffer, batch = chunk.weights, chunk.buffer, chunk.batch
    inputs, units = row[CHANNELS], row[OUT_CHANNELS]
    bias = weights[row[WEIGHTS] + units * inputs : row[WEIGHTS] + units * inputs + units]
    output = buffer[row[OUTPUT] : row[OUTPUT] + batch * units]
    for n in range(batch):
        copy(bias, output[n * units : (n + 1) * units])
    groups = np.zeros(2, np.int64)
    for begin in range(0, inputs, TILE_INPUTS):
        size = min(TILE_INPUTS, inputs - begin)
        call(row[DOT], (
            buffer, row[OUTPUT], 1, units,
            weights, row[WEIGHTS] + begin, inputs, 0, buffer, row[INPUT] + begin, inputs, 0,
            groups, 1, 1, size, units, batch,
        ))  # fmt: skip
    activate(row[FUNCTION], output)


@Unit
def dense_backward(row: Row, chunk: Chunk) -> None:
    """Write the gradient of weight and bias to `out`, or add it, and write that of the input if anything needs it."""
    weights, out, buffer, batch = chunk.weights, chunk.out, chunk.buffer, chunk.batch
    inputs, units = row[CHANNELS], row[OUT_CHANNELS]
    delta = buffer[row[OUTPUT_GRADIENT] : row[OUTPUT_GRADIENT] + batch * units]
    differentiate(row[FUNCTION], buffer[row[OUTPUT] : row[OUTPUT] + batch * units], delta)
    begin = row[WEIGHTS] + units * inputs
    bias = out[begin : begin + units]
    if chunk.image == 0:
        fill(bias, 0)
    for n in range(batch):
        add(delta[n * units : (n + 1) * units], bias)
    taps = np.zeros(2, np.int64)
    for begin in range(0, inputs, TILE_INPUTS):
        call(row[OUTER], (
            out, row[WEIGHTS] + begin, inputs,
            buffer, row[OUTPUT_GRADIENT], 0, units, buffer, row[INPUT] + begin, inputs,
            taps, 1, batch, out, 0, START_TARGET if chunk.image else START_ZERO, units,
            min(TILE_INPUTS, inputs - begin),
        ))  # fmt: skip
    if row[INPUT_GRADIENT] == NOWHERE:
        return
    by_unit = buffer[row[SCRATCH] : row[SCRATCH] + units * batch]
    for n in range(batch):
        for unit in range(units):
            by_unit[unit * batch + n] = delta[n * units + unit]
    for begin in range(0, inputs, TILE_INPUTS):
        size = min(TILE_INPUTS, inputs - begin)
        for unit in range(0, units, TILE_UNITS):
            call(row[OUTER], (
                buffer, row[INPUT_GRADIENT] + begin, inputs,
                buffer, row[SCRATCH] + unit * batch, 0, batch, weights, row[WEIGHTS] + unit * inputs + begin, inputs,
                taps, 1, min(TILE_UNITS, units - unit), weights, 0, START_TARGET if unit else START_ZERO, batch, size,
            ))  # fmt: skip
