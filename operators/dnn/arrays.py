"""Flat vectors and the named arrays that they hold, and the check of an array that a network is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from operators.dnn.spec import WeightRange

Vector = npt.NDArray[np.float32]


def views(vector: Vector, ranges: Sequence[WeightRange]) -> dict[str, Vector]:
    """View a vector as the named arrays that `ranges` cut it into, without copying."""
    return {name: vector[start:stop].reshape(shape) for name, start, stop, shape in ranges}


def joined(tensors: Mapping[str, npt.NDArray[Any]], ranges: Sequence[WeightRange]) -> Vector:
    """The vector that `views` would cut into `tensors`; tensors of other names are left out.

    Raises:
        ValueError: a tensor is missing or has another shape.
    """
    for name, _, _, shape in ranges:  # before a vector is made that may have any size
        found = tensors.get(name)
        if found is None or found.shape != tuple(shape):
            what = f"tensor {name} must have shape {tuple(shape)}, got {'none' if found is None else found.shape}"
            raise ValueError(what)
    vector = np.empty(ranges[-1].stop if ranges else 0, np.float32)
    for name, view in views(vector, ranges).items():
        view[...] = tensors[name]
    return vector


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A view of the array through which nobody writes; functions compiled for it take every caller's arrays."""
    view = array.view()
    view.setflags(write=False)
    return view


def require(name: str, array: npt.NDArray[Any], dtype: type, shape: tuple[int, ...]) -> None:
    """Nothing, if the array is what a network can be given.

    Raises:
        ValueError: another shape, dtype or layout.
    """
    if array.shape != shape or array.dtype != dtype:
        msg = f"{name} must be {dtype.__name__} of shape {shape}, got {array.dtype} of shape {array.shape}"
        raise ValueError(msg)
    if not (array.flags.c_contiguous and array.flags.aligned):
        msg = f"{name} must be C-contiguous and aligned: pass np.require({name}, requirements='CA')"
        raise ValueError(msg)
