"""Data sets as operators see them: a reference that travels in the plan, opened on each node."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from dataflow.errors import DataError
from operators.named import Named


class Data(Protocol):
    """Labelled images: uint8 (n, channels, height, width) and int64 (n,); ``pixels / scale`` lie in [0, 1]."""

    @property
    def train_images(self) -> npt.NDArray[np.uint8]: ...  # noqa: D102
    @property
    def train_labels(self) -> npt.NDArray[np.int64]: ...  # noqa: D102
    @property
    def test_images(self) -> npt.NDArray[np.uint8]: ...  # noqa: D102
    @property
    def test_labels(self) -> npt.NDArray[np.int64]: ...  # noqa: D102
    @property
    def n_classes(self) -> int: ...  # noqa: D102
    @property
    def scale(self) -> float: ...  # noqa: D102


class DataRef(BaseModel):
    """How to open a data set on any node.

    Args:
        loader: function that returns a `Data`, or its name ``module:function``.
        name: its first argument.
        data_dir: its second one: folder of the files; the loader's default if None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    loader: Named
    name: str
    data_dir: str | None = None


@lru_cache(maxsize=2)
def open_data(ref: DataRef) -> Data:
    """The data set; opened once in a process, so that operators share its memory.

    Raises:
        DataError: as the loader says, or the loader cannot be imported; a label is no class, or a pixel no number.
    """
    module, _, function = ref.loader.partition(":")
    try:
        loader: Any = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        fix = "have it in a file that travels with the job, or where Python finds it; `ako predict` takes --job FILE"
        raise DataError(what=f"the data loader cannot be imported: {error}", got=ref.loader, fix=fix) from error
    data = cast("Data", loader(ref.name, ref.data_dir))
    _check(data.train_images, data.train_labels, data.n_classes, f"data {ref.name!r}, training part")
    _check(data.test_images, data.test_labels, data.n_classes, f"data {ref.name!r}, test part")
    return data


def pixels(images: npt.NDArray[np.uint8], scale: float) -> npt.NDArray[np.float32]:
    """Images as float32 in [0, 1]."""
    scaled = images.astype(np.float32)
    scaled *= np.float32(1.0 / scale)
    return scaled


def _check(images: npt.NDArray[Any], labels: npt.NDArray[np.int64], n_classes: int, where: str) -> None:
    """Refuse rows that no gradient can be computed of; a loader of the user's own may give floats.

    Raises:
        DataError: a label is no class, or a pixel no number.
    """
    wrong = np.flatnonzero((labels < 0) | (labels >= n_classes))
    if wrong.size:
        what, fix = f"the label of row {wrong[0]} must be 0 to {n_classes - 1}", "mend the row, or leave it out"
        raise DataError(what, got=int(labels[wrong[0]]), where=where, fix=fix)
    if images.dtype.kind != "f":
        return
    for row, image in enumerate(images):
        if not np.isfinite(image).all():
            what, fix = f"row {row} has pixels that are not finite", "mend the row, or leave it out"
            raise DataError(what, where=where, fix=fix)
