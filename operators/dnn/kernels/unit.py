"""Functions that are compiled on their own, and called by address.

numba compiles and optimises a function anew with everything that calls it: with the large blocks of code that inner
loops are, that takes minutes. A unit is compiled once, when a network first needs it, and kept on disk.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types

from operators.dnn.kernels.jit import FAST_MATH, cached, compiled_once, intrinsic
from operators.dnn.kernels.table import Floats, Row


class Unit:
    """A compiled function without result.

    Its annotations say what it takes: `Floats` an array of one dimension, of any one element type for all of them,
    `Row` one of int64, and `int` or `bool` an int64.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self._kinds = [parameter.annotation for parameter in inspect.signature(function).parameters.values()]
        self._compiled: dict[Any, Any] = {}

    def address(self, dtype: npt.DTypeLike) -> int:
        """Where the function for an element type lies; compiles it, or loads it from disk, the first time."""
        element = numba.from_dtype(np.dtype(dtype))
        if element not in self._compiled:
            kinds = {Floats: types.Array(element, 1, "C"), Row: types.Array(types.int64, 1, "C")}
            signature = types.void(*(kinds.get(kind, types.int64) for kind in self._kinds))
            compile_it = numba.cfunc(signature, cache=True, error_model="numpy", fastmath=FAST_MATH)
            with compiled_once(self._function.__name__, f"-{element}"):
                self._compiled[element] = cached(lambda: compile_it(self._function))
        address: int = self._compiled[element].address
        return address


@intrinsic
def call(typing, address, arguments):  # type: ignore[no-untyped-def]
    """Call the unit at `address` with a tuple of arguments, which must be what its function takes."""
    signature = types.void(address, arguments)

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        address, packed = values
        passed = []
        for number, kind in enumerate(signature.args[1].types):
            value = builder.extract_value(packed, number)
            passed.append(value if isinstance(kind, types.Array) else context.cast(builder, value, kind, types.int64))
        function = ir.FunctionType(ir.VoidType(), [value.type for value in passed])
        builder.call(builder.inttoptr(address, function.as_pointer()), passed)
        return context.get_dummy_value()

    return signature, emit
