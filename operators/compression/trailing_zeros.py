"""The one instruction that the codecs' kernels need and Python has no word for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import extending, types


def _trailing_zeros(_context: Any, _word: Any) -> tuple[Any, Callable[..., Any]]:
    def emit(_context: Any, builder: ir.IRBuilder, _signature: Any, arguments: Any) -> ir.Value:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), emit


trailing_zeros = cast("Callable[[Any], Any]", cast("Any", extending.intrinsic)(_trailing_zeros))
"""How many zeros a uint64 has below its lowest one, as an int64, which can be added to others; 64 if it is zero."""
