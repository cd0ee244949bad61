"""Element-wise activations: forward in place, backward from the output."""

import math

from operators.dnn.kernels.jit import kernel
from operators.dnn.kernels.table import IDENTITY, RELU, SIGMOID, Floats


@kernel
def activate(function: int, values: Floats) -> None:
    """Replace each x of a one-dimensional array by function(x). NaN stays NaN, under relu as well."""
    if function == IDENTITY:
        return
    zero = values.dtype.type(0)
    one = values.dtype.type(1)
    if function == RELU:
        for t in range(values.size):
            values[t] = zero if values[t] <= zero else values[t]
    elif function == SIGMOID:
        for t in range(values.size):
            values[t] = one / (one + math.exp(-values[t]))
    else:
        for t in range(values.size):
            values[t] = math.tanh(values[t])


@kernel
def differentiate(function: int, output: Floats, gradient: Floats) -> None:
    """Multiply a gradient by function'(x), where function(x) = output; both are one-dimensional.

    In place: with a target of its own, which might be the gradient, the compiler would not use vectors.
    """
    if function == IDENTITY:
        return
    zero = gradient.dtype.type(0)
    one = gradient.dtype.type(1)
    if function == RELU:
        for t in range(gradient.size):
            gradient[t] = zero if output[t] <= zero else gradient[t]
    elif function == SIGMOID:
        for t in range(gradient.size):
            gradient[t] *= output[t] * (one - output[t])
    else:
        for t in range(gradient.size):
            gradient[t] *= one - output[t] * output[t]
