"""Element-wise activations: forward in place, backward from the output."""

import math
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from operators.dnn.kernels.jit import intrinsic, kernel
from operators.dnn.kernels.table import IDENTITY, RELU, SIGMOID, Floats


@intrinsic
def maximum(typing, a, b):  # type: ignore[no-untyped-def]
    """The larger of two floats, NaN if one of them is; of zeros of either sign, either.

    From a comparison the compiler would make masked stores, which AMD's processors are slow at.
    """

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        kind = context.get_data_type(a)
        name = f"llvm.maximum.{'f32' if isinstance(kind, ir.FloatType) else 'f64'}"
        declare: Any = cgutils.get_or_insert_function
        function = declare(builder.module, ir.FunctionType(kind, [kind, kind]), name)
        return builder.call(function, arguments, fastmath=("nsz",))

    return a(a, a), emit


@kernel
def activate(function: int, values: Floats) -> None:
    """Replace each x of a one-dimensional array by function(x). NaN stays NaN, under relu as well."""
    if function == IDENTITY:
        return
    zero = values.dtype.type(0)
    one = values.dtype.type(1)
    if function == RELU:
        for t in range(values.size):
            values[t] = maximum(values[t], zero)
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
