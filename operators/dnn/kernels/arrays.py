"""Plain loops over one-dimensional arrays: numba compiles them in a tenth of the time that assigning slices takes."""

from operators.dnn.kernels.jit import kernel
from operators.dnn.kernels.table import Floats


@kernel
def copy(source: Floats, target: Floats) -> None:
    """Write `source` to `target`."""
    for t in range(target.size):
        target[t] = source[t]


@kernel
def fill(target: Floats, value: float) -> None:
    """Write one value to every element."""
    for t in range(target.size):
        target[t] = value


@kernel
def add(source: Floats, target: Floats) -> None:
    """Add `source` to `target`."""
    for t in range(target.size):
        target[t] += source[t]


@kernel
def total(values: Floats) -> float:
    """The sum of all elements."""
    result: float = values.dtype.type(0)
    for t in range(values.size):
        result += values[t]
    return result
