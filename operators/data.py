"""Data sets as operators see them: a reference that travels in the plan, opened on each node."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from dataflow.errors import DataError


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
        loader: ``module:function`` that returns a `Data`.
        name: its first argument.
        data_dir: its argument ``data_dir``: folder of the files; the loader's default if None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    loader: str
    name: str
    data_dir: str | None = None


@lru_cache(maxsize=2)
def open_data(ref: DataRef) -> Data:
    """The data set; opened once in a process, so that operators share its memory.

    Raises:
        DataError: as the loader says, or the loader cannot be imported.
    """
    module, _, function = ref.loader.partition(":")
    try:
        loader: Any = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise DataError(what=f"the data loader cannot be imported: {error}", got=ref.loader) from error
    return cast("Data", loader(ref.name, ref.data_dir))


def pixels(images: npt.NDArray[np.uint8], scale: float) -> npt.NDArray[np.float32]:
    """Images as float32 in [0, 1]."""
    scaled = images.astype(np.float32)
    scaled *= np.float32(1.0 / scale)
    return scaled
