"""Codes: bytes that say what to add to a range of weights. Made by `Update.encode`; see docs/compression.md."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dataflow.errors import WireError
from operators.compression.decode import PROBLEMS, walk
from operators.dnn.arrays import read_only
from operators.messages import Vector

Code = npt.NDArray[np.uint8]

_MAX_FLOAT = float(np.finfo(np.float32).max)


def join(codes: Sequence[Code]) -> Code:
    """One code that adds what several codes of one range add, one after the other.

    Raises:
        ValueError: there are none.
    """
    return codes[0] if len(codes) == 1 else np.concatenate(codes)


def add(target: Vector, code: Code, scale: float = 1.0) -> None:
    """Add `scale` times what a code says to a range of weights, in place, all of it or nothing.

    Nothing is allocated. Every receiver rounds alike: the quantum times `scale` first, then the sum, to float32.

    Args:
        target: (weights of the range,) float32, contiguous, to be written.
        code: uint8, from `Update.encode` of this range, or several of them, joined.
        scale: rounded to float32.

    Raises:
        WireError: no range of as many weights has this code.
        ValueError: `scale` is not finite, or an array is of another type.
    """
    if not abs(scale) <= _MAX_FLOAT:
        what = f"the scale must be finite as float32, got {scale}"
        raise ValueError(what)
    fits = target.dtype == np.float32 and target.ndim == 1 and target.flags.c_contiguous and target.flags.writeable
    if not fits or code.dtype != np.uint8 or code.ndim != 1:
        what = (
            f"a code of uint8 is added to contiguous float32 that can be written, got {code.dtype} and {target.dtype}"
        )
        raise ValueError(what)
    code = read_only(np.ascontiguousarray(code))
    factor = np.float32(scale)
    problem, at = walk(code, target, factor, False)
    if problem:
        raise WireError(PROBLEMS[problem], got=f"{code.size} bytes for {target.size} weights", where=f"byte {at}")
    walk(code, target, factor, True)


def compile_add() -> None:
    """Compile what `add` needs, or load it from disk, so that no step waits for it."""
    walk(read_only(np.empty(0, np.uint8)), np.empty(0, np.float32), np.float32(1), True)
