"""What operators ask of a network, whichever way it was specified: functions on flat vectors that the caller owns.

A network has no state of its own. Its weights are what is trained and exchanged; its statistics (the running means of
a batch normalisation, say) are what a forward pass in training moves, and every node keeps its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol, cast

import numpy as np
import numpy.typing as npt
from pydantic import Discriminator, Tag

from dataflow.errors import ConfigError
from operators.dnn import integers
from operators.dnn.arrays import Vector
from operators.dnn.model import Model
from operators.dnn.phantom import Phantom, PhantomSpec
from operators.dnn.spec import ModelSpec, WeightRange
from operators.dnn.torch_spec import INSTALL_TORCH, TorchSpec

_SPECS = ModelSpec | TorchSpec | PhantomSpec
_OWN_FIELDS = {"factory": "torch", "phantom_weights": "phantom"}


def _kind(spec: Any) -> str:
    fields = spec if isinstance(spec, dict) else vars(spec) if isinstance(spec, _SPECS) else {}
    return next((kind for field, kind in _OWN_FIELDS.items() if field in fields), "layers")


NetworkSpec = Annotated[
    Annotated[ModelSpec, Tag("layers")] | Annotated[TorchSpec, Tag("torch")] | Annotated[PhantomSpec, Tag("phantom")],
    Discriminator(_kind),
]
"""A network as data: layers of ours, a module of the user's, or a phantom, which has a size and nothing else."""


class Network(Protocol):
    """Initialise, differentiate, evaluate and predict. Threads may share a network but never a workspace."""

    @property
    def ranges(self) -> Sequence[WeightRange]:
        """Where each array of weights lies in the vector; they tile it."""

    @property
    def n_weights(self) -> int:
        """Length of the vector of weights."""

    @property
    def n_statistics(self) -> int:
        """Length of the vector of statistics, which may be 0."""

    @property
    def integers(self) -> Sequence[slice]:
        """Where statistics are integers, each slice as `operators.dnn.integers.to_floats` splits them."""

    @property
    def n_classes(self) -> int:
        """Number of classes."""

    @property
    def random(self) -> bool:
        """Whether gradients depend on their seed."""

    def initial(self, rng: np.random.Generator) -> Vector:
        """Initial weights, (n_weights,)."""

    def initial_statistics(self) -> Vector:
        """Statistics before any training, (n_statistics,)."""

    def workspace(self, batch: int) -> Any:
        """Memory for one thread and batches of up to `batch` images, which it knows as ``workspace.batch``."""

    def rehearse(self) -> None:
        """Compute once where a job is submitted, if only that shows whether the network can be trained.

        Raises:
            ConfigError: it cannot.
        """

    def compile(self) -> None:
        """Prepare, so that no training step has to wait."""

    def gradient(
        self,
        weights: Vector,
        images: npt.NDArray[np.float32],
        labels: npt.NDArray[np.int64],
        out: Vector,
        workspace: Any,
        scale: float,
        *,
        statistics: Vector,
        seed: int,
    ) -> tuple[float, int]:
        """Differentiate the loss of a batch by the weights. Equal arguments give bit-identical results on a CPU.

        Args:
            weights: (n_weights,), only read.
            images: (batch, channels, height, width); the batch may be empty.
            labels: (batch,).
            out: (n_weights,), overwritten with scale * the sum over images of d loss_i / d weights.
            workspace: from `workspace`, used by no other thread meanwhile.
            scale: 1 / (images of the whole batch) makes `out` this shard's share of the mean gradient.
            statistics: (n_statistics,), advanced in place; left alone by an empty batch.
            seed: 0 <= seed < 2**63, of the random numbers of dropout and the like.

        Returns:
            The summed loss, unscaled, and how many images were classified correctly.

        Raises:
            ValueError: an array does not fit.
        """

    def evaluate(
        self,
        weights: Vector,
        images: npt.NDArray[np.float32],
        labels: npt.NDArray[np.int64],
        workspace: Any,
        *,
        statistics: Vector,
    ) -> tuple[float, int, npt.NDArray[np.int64]]:
        """Summed loss, number of correct predictions, and the predictions (batch,); statistics are only read."""

    def predict(
        self, weights: Vector, images: npt.NDArray[np.float32], workspace: Any, *, statistics: Vector
    ) -> npt.NDArray[np.float32]:
        """The probability of each class, (batch, n_classes)."""

    def tensors(self, weights: Vector, statistics: Vector) -> dict[str, npt.NDArray[Any]]:
        """All arrays of the network by name, in their own shapes and dtypes."""

    def vectors(self, tensors: Mapping[str, npt.NDArray[Any]]) -> tuple[Vector, Vector]:
        """Weights and statistics from what `tensors` gave.

        Raises:
            ValueError: the tensors are not those of this network.
        """


def build_network(spec: NetworkSpec) -> Network:
    """The network of a specification.

    Raises:
        ConfigError: the user's module cannot be made, or PyTorch is not installed.
    """
    if isinstance(spec, ModelSpec):
        return Model(spec)
    if isinstance(spec, PhantomSpec):
        return Phantom(spec)
    try:
        torch_model = importlib.import_module("operators.dnn.torch_model")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        what = f"{spec.factory} makes a torch.nn.Module, and PyTorch is not installed here"
        raise ConfigError(what, fix=INSTALL_TORCH) from error
    return cast("Network", torch_model.TorchModel(spec))


def mean_statistics(parts: Sequence[Vector], images: Sequence[int], split: Sequence[slice] = ()) -> Vector:
    """The mean of statistics weighted by images; numbers that all parts agree on stay as they are, bit for bit.

    Args:
        parts: (n_statistics,) each, at least one.
        images: how many each part has seen, at least one in all.
        split: where there are integers, see `Network.integers`; their means are exact, and rounded to the nearest.
    """
    first = parts[0]
    if len(parts) == 1 or not first.size:
        return first
    stacked = np.stack(parts)
    mean = np.average(stacked, axis=0, weights=images).astype(np.float32)
    mean = np.where((stacked == first).all(axis=0), first, mean)
    for place in split:
        numbers = np.stack([integers.to_integers(part[place]) for part in parts])
        mean[place] = integers.to_floats(integers.mean(numbers, images))
    return mean
