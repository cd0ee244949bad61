"""Element-wise activations, forward with a bias and backward from the output."""

import math

from operators.dnn.kernels.jit import kernel
from operators.dnn.kernels.table import (
    CHANNELS,
    FUNCTION,
    HEIGHT,
    INPUT,
    INPUT_GRADIENT,
    OUTPUT,
    OUTPUT_GRADIENT,
    RELU,
    SIGMOID,
    TANH,
    WIDTH,
    Floats,
    Row,
)


@kernel
def activate(function: int, bias: float, source: Floats, target: Floats) -> None:
    """Write function(source + bias) to `target`; both are one-dimensional. NaN stays NaN, under relu as well."""
    zero = target.dtype.type(0)
    one = target.dtype.type(1)
    if function == RELU:
        for t in range(target.size):
            value = source[t] + bias
            target[t] = zero if value <= zero else value
    elif function == SIGMOID:
        for t in range(target.size):
            target[t] = one / (one + math.exp(-(source[t] + bias)))
    elif function == TANH:
        for t in range(target.size):
            target[t] = math.tanh(source[t] + bias)
    else:
        for t in range(target.size):
            target[t] = source[t] + bias


@kernel
def differentiate(function: int, output: Floats, gradient: Floats, target: Floats) -> None:
    """Write gradient * function'(x) to `target`, where function(x) = output; all are one-dimensional."""
    zero = target.dtype.type(0)
    one = target.dtype.type(1)
    if function == RELU:
        for t in range(target.size):
            target[t] = zero if output[t] <= zero else gradient[t]
    elif function == SIGMOID:
        for t in range(target.size):
            target[t] = gradient[t] * output[t] * (one - output[t])
    elif function == TANH:
        for t in range(target.size):
            target[t] = gradient[t] * (one - output[t] * output[t])
    else:
        for t in range(target.size):
            target[t] = gradient[t]


@kernel
def activation_forward(row: Row, buffer: Floats, batch: int) -> None:
    """Apply a stand-alone activation."""
    size = row[CHANNELS] * row[HEIGHT] * row[WIDTH] * batch
    source = buffer[row[INPUT] : row[INPUT] + size]
    activate(row[FUNCTION], buffer.dtype.type(0), source, buffer[row[OUTPUT] : row[OUTPUT] + size])


@kernel
def activation_backward(row: Row, buffer: Floats, batch: int) -> None:
    """Propagate the gradient through a stand-alone activation."""
    size = row[CHANNELS] * row[HEIGHT] * row[WIDTH] * batch
    output = buffer[row[OUTPUT] : row[OUTPUT] + size]
    gradient = buffer[row[OUTPUT_GRADIENT] : row[OUTPUT_GRADIENT] + size]
    differentiate(row[FUNCTION], output, gradient, buffer[row[INPUT_GRADIENT] : row[INPUT_GRADIENT] + size])
