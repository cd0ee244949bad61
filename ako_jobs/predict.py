"""Trained models: load what a run has kept and classify images with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open

from dataflow.errors import DataError
from dataflow.graph.logical import LogicalGraph
from dataflow.operators_api import qualified_name
from operators.data import DataRef, open_data, pixels
from operators.dnn import Model, ModelSpec
from operators.messages import Vector
from operators.preprocess import Normalise
from operators.validate import Validate

MODEL_FILE = "model.safetensors"
"""Name of the weights in a run's folder."""

CONFIG_FILE = "config.json"
"""Name of the configuration in a run's folder."""

_BATCH = 256


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
        """That of the graph's validate operator; None if there is none."""
        for operator in graph.operators:
            if operator.kind == qualified_name(Validate):
                validate = Validate.model_validate_json(operator.params)
                scale = open_data(validate.data).scale
                return cls(data=validate.data, scale=scale, normalise=validate.normalise)
        return None


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A trained network.

    Args:
        spec: the network.
        weights: flat, float32.
        input: how images are put to it.
    """

    spec: ModelSpec
    weights: Vector
    input: ModelInput

    def probabilities(self, images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """The probability of each class, (images, classes).

        Args:
            images: (images, channels, height, width), unsigned bytes or floats in [0, 1].

        Raises:
            DataError: the images have another shape or type.
        """
        if images.ndim != 4 or images.shape[1:] != self.spec.input:
            what = f"the network takes images of shape (images, {', '.join(map(str, self.spec.input))})"
            raise DataError(what, got=images.shape)
        if images.dtype != np.uint8 and images.dtype.kind != "f":
            raise DataError(what="images are unsigned bytes, or floats in [0, 1]", got=str(images.dtype))
        model, parts = Model(self.spec), []
        workspace = model.workspace(_BATCH)
        for begin in range(0, len(images), _BATCH):
            batch = images[begin : begin + _BATCH]
            batch = pixels(batch, self.input.scale) if batch.dtype == np.uint8 else batch.astype(np.float32)
            batch = batch if self.input.normalise is None else self.input.normalise.apply(batch)
            parts.append(model.predict(self.weights, np.ascontiguousarray(batch, np.float32), workspace))
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


def load_model(folder: str | Path) -> TrainedModel:
    """The model that a run has kept in `folder`, its ``--out``.

    Raises:
        DataError: there is none, or its files are damaged.
    """
    folder = Path(folder)
    spec, tensors = _read_weights(folder / MODEL_FILE)
    ranges = Model(spec).ranges
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes != {each.name: each.shape for each in ranges}:
        raise DataError(what="the file's tensors are not those of its network", got=shapes, where=str(folder))
    weights = np.concatenate([tensors[each.name].ravel() for each in ranges]).astype(np.float32)
    return TrainedModel(spec, weights, _read_input(folder / CONFIG_FILE))


def predict(folder: str | Path, images: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The classes of images by the model in `folder`; see `TrainedModel.predict`."""
    return load_model(folder).predict(images)


def _read_weights(path: Path) -> tuple[ModelSpec, dict[str, npt.NDArray[Any]]]:
    if not path.is_file():
        raise DataError(
            what="there is no trained model here", where=str(path), fix="name the folder of `ako run --out`"
        )
    try:
        with safe_open(path, framework="numpy") as file:
            spec = ModelSpec.model_validate_json((file.metadata() or {}).get("model", ""))
            return spec, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValidationError) as error:
        raise DataError(what=f"the file holds no model: {error}", where=str(path)) from error


def _read_input(path: Path) -> ModelInput:
    try:
        return ModelInput.model_validate(json.loads(path.read_text())["input"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"the file does not say how images are put to the model: {error}"
        raise DataError(what, where=str(path), fix="name the folder of `ako run --out`") from error
