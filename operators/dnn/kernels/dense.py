"""The fully connected layer: one matrix product forward, two backward."""

import numpy as np

from operators.dnn.kernels.activation import activate, differentiate
from operators.dnn.kernels.jit import kernel
from operators.dnn.kernels.table import (
    CHANNELS,
    FUNCTION,
    HEIGHT,
    INPUT,
    INPUT_GRADIENT,
    OUT_CHANNELS,
    OUTPUT,
    OUTPUT_GRADIENT,
    SCRATCH,
    WEIGHTS,
    WIDTH,
    Floats,
    Row,
    matrix,
)


@kernel
def dense_forward(row: Row, weights: Floats, buffer: Floats, batch: int) -> None:
    """Compute output (units, batch) = function(weight @ input + bias)."""
    inputs = row[CHANNELS] * row[HEIGHT] * row[WIDTH]
    units = row[OUT_CHANNELS]
    bias = row[WEIGHTS] + units * inputs
    tile = matrix(buffer, row[SCRATCH], units, batch)
    np.dot(matrix(weights, row[WEIGHTS], units, inputs), matrix(buffer, row[INPUT], inputs, batch), tile)
    output = matrix(buffer, row[OUTPUT], units, batch)
    for unit in range(units):
        activate(row[FUNCTION], weights[bias + unit], tile[unit], output[unit])


@kernel
def dense_backward(row: Row, weights: Floats, buffer: Floats, out: Floats, batch: int, to_input: bool) -> None:
    """Write the gradient of weight and bias to `out`, and that of the input if `to_input`."""
    inputs = row[CHANNELS] * row[HEIGHT] * row[WIDTH]
    units = row[OUT_CHANNELS]
    bias = row[WEIGHTS] + units * inputs
    output = matrix(buffer, row[OUTPUT], units, batch)
    gradient = matrix(buffer, row[OUTPUT_GRADIENT], units, batch)
    tile = matrix(buffer, row[SCRATCH], units, batch)
    for unit in range(units):
        differentiate(row[FUNCTION], output[unit], gradient[unit], tile[unit])
        out[bias + unit] = tile[unit].sum()
    np.dot(tile, matrix(buffer, row[INPUT], inputs, batch).T, matrix(out, row[WEIGHTS], units, inputs))
    if to_input:
        weight = matrix(weights, row[WEIGHTS], units, inputs)
        np.dot(weight.T, tile, matrix(buffer, row[INPUT_GRADIENT], inputs, batch))
