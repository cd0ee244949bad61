"""Functions that are compiled on their own, and called by address.

numba compiles and optimises a function anew with everything that calls it: with the large blocks of code that inner
loops are, that takes minutes. A unit is compiled once, when a network first needs it, and kept on disk.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types

from operators.dnn.kernels.jit import FAST_MATH, cache_folder, cached, intrinsic
from operators.dnn.kernels.table import Floats, Row
from operators.jit import compiled_once


class Chunk(NamedTuple):
    """What every operation is given beside its row: the vectors, and the images in hand.

    Args:
        weights, statistics, out: flat; see `operators.dnn.kernels.network`.
        buffer: the flat workspace.
        batch: images in hand.
        image: number of the first of them.
        seed: what dropout drops.
        training: whether a backward pass follows.
    """

    weights: Floats
    statistics: Floats
    out: Floats
    buffer: Floats
    batch: int
    image: int
    seed: int
    training: bool


class Unit:
    """A compiled function without result.

    Its annotations say what it takes: `Floats` an array of one dimension, of any one element type for all of them,
    `Row` one of int64, `int` an int64, and `Chunk` a chunk with the same element type.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self._kinds = [parameter.annotation for parameter in inspect.signature(function).parameters.values()]
        self._compiled: dict[Any, Any] = {}

    def address(self, dtype: npt.DTypeLike) -> int:
        """Where the function for an element type lies; compiles it, or loads it from disk, the first time."""
        element = numba.from_dtype(np.dtype(dtype))
        if element not in self._compiled:
            signature = types.void(*(_type(kind, element) for kind in self._kinds))
            compile_it = numba.cfunc(signature, cache=True, error_model="numpy", fastmath=FAST_MATH)
            with compiled_once(cache_folder(), self._function.__name__, f"-{element}"):
                self._compiled[element] = cached(lambda: compile_it(self._function))
        address: int = self._compiled[element].address
        return address


def _type(kind: Any, element: Any) -> Any:
    """The type numba gives what is annotated with `kind`, where `Floats` has this element type."""
    if kind is Chunk:
        fields = [_type(each, element) for each in Chunk.__annotations__.values()]
        return cast("Any", types.NamedTuple)(fields, Chunk)
    plain = {Row: types.Array(types.int64, 1, "C"), int: types.int64, bool: types.boolean}
    return types.Array(element, 1, "C") if kind is Floats else plain[kind]


@intrinsic
def call(typing, address, arguments):  # type: ignore[no-untyped-def]
    """Call the unit at `address` with a tuple of arguments, which must be what its function takes."""
    signature = types.void(address, arguments)

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        address, packed = values
        passed = []
        for number, kind in enumerate(signature.args[1].types):
            value = builder.extract_value(packed, number)
            passed.append(context.cast(builder, value, kind, types.int64) if isinstance(kind, types.Number) else value)
        function = ir.FunctionType(ir.VoidType(), [value.type for value in passed])
        builder.call(builder.inttoptr(address, function.as_pointer()), passed)
        return context.get_dummy_value()

    return signature, emit
