"""The decorator of the codecs' kernels, and the one instruction that they need and Python has no word for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import extending, types

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Compile a function that gives up the interpreter, and keep the result on disk.

    Without fast math: every receiver rounds as the sender did. numba's cache notices a change of the file that holds a
    function, not of what it calls in others, so kernels that call each other share a file.
    """
    return cast("F", numba.njit(nogil=True, error_model="numpy", cache=True)(function))


def _trailing_zeros(_context: Any, _word: Any) -> tuple[Any, Callable[..., Any]]:
    def emit(_context: Any, builder: ir.IRBuilder, _signature: Any, arguments: Any) -> ir.Value:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), emit


trailing_zeros = cast("Callable[[Any], Any]", cast("Any", extending.intrinsic)(_trailing_zeros))
"""How many zeros a uint64 has below its lowest one; 64 if it is zero."""
