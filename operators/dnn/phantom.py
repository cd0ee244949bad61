"""A network that computes nothing and weighs as much as is wanted: for studies of the network between nodes.

Its vector is short. Each of its weights stands for `scale` weights, and messages are counted accordingly: see
`LogicalGraph.tensor_scale`. Only simulations can count like that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, PositiveInt

from operators.dnn.arrays import Vector
from operators.dnn.spec import WeightRange

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

_WEIGHTS = 256
"""Weights of a phantom at least, so that its vector can be divided like a real one."""


class PhantomSpec(BaseModel):
    """A phantom of `phantom_weights` weights, each of which stands for `scale`, that tells `classes` classes apart.

    `input` is the shape of its images, (channels, height, width).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    phantom_weights: PositiveInt
    scale: PositiveInt
    classes: PositiveInt
    input: tuple[PositiveInt, PositiveInt, PositiveInt] = (1, 1, 1)

    @classmethod
    def like(cls, weights: int, classes: int) -> Self:
        """The phantom of a network of so many weights; up to 1 in 256 heavier."""
        scale = max(1, weights // _WEIGHTS)
        return cls(phantom_weights=-(-weights // scale), scale=scale, classes=classes)


@dataclass(frozen=True, slots=True)
class _Workspace:
    batch: int


class Phantom:
    """A `Network` whose gradients are zero, whose loss is zero and which takes every image for class 0."""

    random = False
    n_statistics = 0
    integers: tuple[slice, ...] = ()

    def __init__(self, spec: PhantomSpec) -> None:
        self.n_weights, self.n_classes = spec.phantom_weights, spec.classes
        self.ranges = (WeightRange("phantom.weight", 0, spec.phantom_weights, (spec.phantom_weights,)),)

    def initial(self, rng: np.random.Generator) -> Vector:
        """Zeros."""
        return np.zeros(self.n_weights, np.float32)

    def initial_statistics(self) -> Vector:
        """None."""
        return np.zeros(0, np.float32)

    def rehearse(self) -> None:
        """Nothing can fail."""

    def compile(self) -> None:
        """Nothing is compiled."""

    def workspace(self, batch: int) -> _Workspace:
        """Nothing but its size."""
        return _Workspace(batch)

    def gradient(
        self,
        weights: Vector,
        images: Images,
        labels: Labels,
        out: Vector,
        workspace: Any,
        scale: float,
        *,
        statistics: Vector,
        seed: int,
    ) -> tuple[float, int]:
        """Zeros."""
        out[:] = 0
        return 0.0, 0

    def evaluate(
        self, weights: Vector, images: Images, labels: Labels, workspace: Any, *, statistics: Vector
    ) -> tuple[float, int, Labels]:
        """No loss, and class 0 for every image."""
        return 0.0, int(np.count_nonzero(labels == 0)), np.zeros(len(labels), np.int64)

    def predict(self, weights: Vector, images: Images, workspace: Any, *, statistics: Vector) -> Images:
        """Certainty of class 0."""
        probabilities = np.zeros((len(images), self.n_classes), np.float32)
        probabilities[:, 0] = 1
        return probabilities

    def tensors(self, weights: Vector, statistics: Vector) -> dict[str, npt.NDArray[Any]]:
        """The short vector."""
        return {self.ranges[0].name: weights.copy()}

    def vectors(self, tensors: Mapping[str, npt.NDArray[Any]]) -> tuple[Vector, Vector]:
        """The short vector again.

        Raises:
            ValueError: it is not there.
        """
        if set(tensors) != {self.ranges[0].name}:
            message = f"the tensors of a phantom are {self.ranges[0].name}, got {', '.join(tensors)}"
            raise ValueError(message)
        return tensors[self.ranges[0].name].astype(np.float32), self.initial_statistics()
