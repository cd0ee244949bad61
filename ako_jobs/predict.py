"""Trained models: load what a run has kept and classify images with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open

from ako_jobs.datasets import LOADER
from ako_jobs.jobs import Job, load_job, user_code
from ako_jobs.own_code import require_own
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
_DTYPES = {"BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64", "F16", "F32", "F64"}
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
    scale: float = Field(gt=0, allow_inf_nan=False)
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
        self._check(images)
        model, parts = build_network(self.spec), []
        workspace = model.workspace(_BATCH)
        for begin in range(0, len(images), _BATCH):
            batch = images[begin : begin + _BATCH]
            batch = pixels(batch, self.input.scale) if batch.dtype == np.uint8 else batch.astype(np.float32)
            batch = batch if self.input.normalise is None else self.input.normalise.apply(batch)
            batch = np.ascontiguousarray(batch, np.float32)
            parts.append(model.predict(self.weights, batch, workspace, statistics=self.statistics))
        return np.concatenate(parts) if parts else np.empty((0, model.n_classes), np.float32)

    def _check(self, images: npt.NDArray[Any]) -> None:
        if images.ndim != 4 or images.shape[1:] != self.spec.input:
            what = f"the network takes images of shape (images, {', '.join(map(str, self.spec.input))})"
            raise DataError(what, got=images.shape)
        if images.dtype != np.uint8 and images.dtype.kind != "f":
            raise DataError(what="images are unsigned bytes, or floats in [0, 1]", got=str(images.dtype))
        if not images.size:
            return
        if images.dtype == np.uint8 and images.max() > self.input.scale:
            what = f"the brightest pixel of {self.input.data.name} is {self.input.scale:g}, and the images have more"
            raise DataError(what, got=int(images.max()), fix=f"scale them to 0 to {self.input.scale:g}, or to [0, 1]")
        if images.dtype != np.uint8 and not (images.min() >= 0 and images.max() <= 1):
            got = f"{images.min():g} to {images.max():g}"
            fix = "divide them by the largest value that a pixel can have"
            raise DataError(what="images of floats are of values in [0, 1]", got=got, fix=fix)

    def predict(self, images: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """The most probable class of each image; see `probabilities`."""
        classes: npt.NDArray[np.int64] = self.probabilities(images).argmax(axis=1)
        return classes

    def test(self) -> tuple[int, int]:
        """How many images of its data set's test part it classifies correctly, and how many there are.

        Raises:
            DataError: the data set cannot be read.
            ConfigError: its loader is the user's own, and failed.
        """
        with user_code(f"the data loader {self.input.data.loader}", None):
            data = open_data(self.input.data)
        right = self.predict(data.test_images) == data.test_labels
        return int(right.sum()), len(right)


def load_model(folder: str | Path, *, job: str = "") -> TrainedModel:
    """The model that a run has kept in `folder`, its ``--out``.

    Args:
        folder: as given to ``--out``.
        job: what `load_job` takes: needed where network, loss or data are the user's own. Its code is imported. Nothing
            is ever imported from `folder`, nor because a file there names it.

    Raises:
        DataError: there is none, its files are damaged, or they name code that is not the job's.
        ConfigError: the job's code cannot be used.
    """
    folder, owner = Path(folder), load_job(job) if job else None
    spec, tensors = _read_weights(folder / MODEL_FILE)
    model_input, settings = _read_config(folder / CONFIG_FILE)
    _check_names(spec, model_input, owner, settings, folder)
    if model_input.normalise is not None and len(model_input.normalise.mean) != spec.input[0]:
        what = f"the network takes images of {spec.input[0]} channels, and they are normalised as if they had others"
        fix = "name the folder of `ako run --out` as it was kept"
        raise DataError(what, got=len(model_input.normalise.mean), where=str(folder / CONFIG_FILE), fix=fix)
    with user_code(f"the network of {folder}", owner.folder if owner else None):
        network = build_network(spec)
    try:
        weights, statistics = network.vectors(tensors)
    except ValueError as error:
        what = f"the file's tensors are not those of its network: {error}"
        raise DataError(what, where=str(folder)) from error
    if not np.isfinite(weights).all():
        what, fix = "the model's weights are not finite", "train it again, with a lower lr"
        raise DataError(what, where=str(folder / MODEL_FILE), fix=fix)
    return TrainedModel(spec, weights, statistics, model_input)


def _check_names(
    spec: NetworkSpec, model_input: ModelInput, job: Job | None, settings: dict[str, Any], folder: Path
) -> None:
    """Refuse names of functions that are not the job's, before anything is called."""
    if isinstance(spec, TorchSpec):
        require_own(spec.factory, "the network", job, settings, folder / MODEL_FILE)
        if spec.loss is not None:
            require_own(spec.loss, "the network's loss", job, settings, folder / MODEL_FILE)
    if model_input.data.loader != LOADER:
        require_own(model_input.data.loader, "the data loader", job, settings, folder / CONFIG_FILE)


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
            names = list(file.keys())
            for name in names:
                if (dtype := file.get_slice(name).get_dtype()) not in _DTYPES:
                    what, fix = f"tensor {name} is of a type that no model has", "name the folder of `ako run --out`"
                    raise DataError(what, got=dtype, where=str(path), fix=fix)
            return spec, {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError, ValidationError) as error:
        raise DataError(what=f"the file holds no model: {in_words(error)}", where=str(path)) from error


def _read_config(path: Path) -> tuple[ModelInput, dict[str, Any]]:
    """How images are put to the model, and the settings of its run."""
    try:
        config = json.loads(path.read_text())
        return ModelInput.model_validate(config["input"]), dict(config.get("config") or {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"the file does not say how images are put to the model: {in_words(error)}"
        raise DataError(what, where=str(path), fix="name the folder of `ako run --out`") from error
