"""Trained models: load what a run has kept and classify images with it."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open

from ako_jobs.jobs import load_job
from dataflow.errors import DataError, in_words
from dataflow.graph.logical import LogicalGraph
from dataflow.operators_api import qualified_name
from operators.data import DataRef, open_data, pixels
from operators.dnn import NetworkSpec, TorchSpec, build_network
from operators.examine import Examine
from operators.messages import Vector
from operators.preprocess import Normalise

MODEL_FILE = "model.safetensors"
"""Name of the weights in a run's folder."""

CONFIG_FILE = "config.json"
"""Name of the configuration in a run's folder."""

_BATCH = 256
_SPECS: TypeAdapter[NetworkSpec] = TypeAdapter(NetworkSpec)


class ModelInput(BaseModel):
    """How images were put to a network when its accuracy was measured.

    Args:
        data: the data set.
        scale: the brightest possible pixel: unsigned bytes are divided by it.
        normalise: what the pixels are normalised with; None if they are not.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    data: DataRef
    scale: float
    normalise: Normalise | None

    @classmethod
    def of(cls, graph: LogicalGraph) -> Self | None:
        """That of the graph's operator that examines models; None if there is none."""
        for operator in graph.operators:
            if operator.kind == qualified_name(Examine):
                examine = Examine.model_validate_json(operator.params)
                scale = open_data(examine.data).scale
                return cls(data=examine.data, scale=scale, normalise=examine.normalise)
        return None


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A trained network.

    Args:
        spec: the network.
        weights: flat, float32.
        statistics: likewise; of length 0 for a network without any.
        input: how images are put to it.
    """

    spec: NetworkSpec
    weights: Vector
    statistics: Vector
    input: ModelInput

    def probabilities(self, images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """The probability of each class, (images, classes).

        Args:
            images: (images, channels, height, width), unsigned bytes or floats in [0, 1].

        Raises:
            DataError: the images have another shape or type, or other values.
        """
        if images.ndim != 4 or images.shape[1:] != self.spec.input:
            what = f"the network takes images of shape (images, {', '.join(map(str, self.spec.input))})"
            raise DataError(what, got=images.shape)
        if images.dtype != np.uint8 and images.dtype.kind != "f":
            raise DataError(what="images are unsigned bytes, or floats in [0, 1]", got=str(images.dtype))
        if images.size and images.dtype != np.uint8 and not (images.min() >= 0 and images.max() <= 1):
            got = f"{images.min():g} to {images.max():g}"
            fix = "divide them by the largest value that a pixel can have"
            raise DataError(what="images of floats are of values in [0, 1]", got=got, fix=fix)
        model, parts = build_network(self.spec), []
        workspace = model.workspace(_BATCH)
        for begin in range(0, len(images), _BATCH):
            batch = images[begin : begin + _BATCH]
            batch = pixels(batch, self.input.scale) if batch.dtype == np.uint8 else batch.astype(np.float32)
            batch = batch if self.input.normalise is None else self.input.normalise.apply(batch)
            batch = np.ascontiguousarray(batch, np.float32)
            parts.append(model.predict(self.weights, batch, workspace, statistics=self.statistics))
        return np.concatenate(parts) if parts else np.empty((0, model.n_classes), np.float32)

    def predict(self, images: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """The most probable class of each image; see `probabilities`."""
        classes: npt.NDArray[np.int64] = self.probabilities(images).argmax(axis=1)
        return classes

    def test(self) -> tuple[int, int]:
        """How many images of its data set's test part it classifies correctly, and how many there are.

        Raises:
            DataError: the data set cannot be read.
        """
        data = open_data(self.input.data)
        right = self.predict(data.test_images) == data.test_labels
        return int(right.sum()), len(right)


def load_model(folder: str | Path, *, job: str = "") -> TrainedModel:
    """The model that a run has kept in `folder`, its ``--out``.

    Args:
        folder: as given to ``--out``.
        job: what `load_job` takes: where a network of the user's own is found. Its code is imported, and nothing is
            ever imported from `folder`.

    Raises:
        DataError: there is none, its files are damaged, or its network is not found.
        ConfigError: the network's code cannot be used.
    """
    folder = Path(folder)
    if job:
        load_job(job)
    spec, tensors = _read_weights(folder / MODEL_FILE)
    if isinstance(spec, TorchSpec) and importlib.util.find_spec(re.split("[.:]", spec.factory)[0]) is None:
        what = f"the network is the user's own, {spec.factory}, which is not found"
        raise DataError(what, where=str(folder), fix="name the job's file: ako predict DIR --job FILE")
    try:
        weights, statistics = build_network(spec).vectors(tensors)
    except ValueError as error:
        what = f"the file's tensors are not those of its network: {error}"
        raise DataError(what, where=str(folder)) from error
    return TrainedModel(spec, weights, statistics, _read_input(folder / CONFIG_FILE))


def predict(folder: str | Path, images: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The classes of images by the model in `folder`; see `TrainedModel.predict`."""
    return load_model(folder).predict(images)


def _read_weights(path: Path) -> tuple[NetworkSpec, dict[str, npt.NDArray[Any]]]:
    if not path.is_file():
        raise DataError(
            what="there is no trained model here", where=str(path), fix="name the folder of `ako run --out`"
        )
    try:
        with safe_open(path, framework="numpy") as file:
            spec = _SPECS.validate_json((file.metadata() or {}).get("model", ""))
            return spec, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValidationError) as error:
        raise DataError(what=f"the file holds no model: {in_words(error)}", where=str(path)) from error


def _read_input(path: Path) -> ModelInput:
    try:
        return ModelInput.model_validate(json.loads(path.read_text())["input"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"the file does not say how images are put to the model: {in_words(error)}"
        raise DataError(what, where=str(path), fix="name the folder of `ako run --out`") from error
