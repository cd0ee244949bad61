"""Validate: accuracy and loss of a node's replica."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, PrivateAttr

from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, Operator
from dataflow.ports import In, Out
from dataflow.state import Reads
from operators.clocks import ClocksState
from operators.data import DataRef, open_data, pixels
from operators.dnn import Network, NetworkSpec, build_network
from operators.messages import Predictions, Progress, Validation, Vector
from operators.preprocess import Normalise
from operators.sampling import split_validation

_AT_ONCE_NBYTES = 1 << 20
_FEWEST, _MOST = 16, 256


@dataclass(frozen=True)
class _Part:
    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]


class Validate(Operator):
    """Measures the node's model at each progress it is told, on the test images and on those held out of training.

    The statistics are that node's too. A result is labelled with the gradients that are in its weights, which may be
    more than the progress tells of: snapshots are taken between two steps, and the next may have been made by then.

    Where weights are averaged, it is their average that is measured, with the statistics as they are.

    Args:
        model: the network.
        data: the data set.
        holdout: fraction of the training images held out, as in `Source`.
        normalise: what the training batches are normalised with; None if they are not.
        batch: images evaluated at once; None: as many as `at_once` says.
    """

    model: NetworkSpec
    data: DataRef
    holdout: float = 0.0
    normalise: Normalise | None = None
    batch: int | None = Field(default=None, ge=1)
    progress = In(Progress, capacity=64)
    results = Out(Validation, reported=True)
    predictions = Out(Predictions)
    replica = Reads()
    average = Reads()
    statistics = Reads()
    clocks = Reads()

    _model: Network = PrivateAttr()
    _workspaces: deque[Any] = PrivateAttr(default_factory=deque)
    _test: _Part = PrivateAttr()
    _held_out: _Part | None = PrivateAttr(default=None)
    _scale: float = PrivateAttr()
    _at_once: int = PrivateAttr()

    def open(self, node: NodeContext) -> None:
        """Open the data."""
        data = open_data(self.data)
        self._model = build_network(self.model)
        self._model.compile()
        self._test = _Part(data.test_images, data.test_labels)
        self._scale = data.scale
        self._at_once = self.batch or at_once(data.test_images.shape[1:])
        if self.holdout:
            rows = split_validation(len(data.train_images), self.holdout, node.seed)[1]
            self._held_out = _Part(data.train_images[rows], data.train_labels[rows])

    def process(
        self, progress: Progress, replica: Vector, average: Vector | None, statistics: Vector, clocks: ClocksState
    ) -> Emissions:
        """The result of a validation, and what was predicted."""
        weights = replica if average is None else average
        accuracy, loss, predicted = self._evaluate(self._test, weights, statistics)
        held_out = self._evaluate(self._held_out, weights, statistics)[:2] if self._held_out else (None, None)
        images = clocks.images
        yield self.results(
            Validation(
                step=clocks.made,
                images=images,
                epoch=progress.epoch * clocks.made / max(1, progress.step),
                accuracy=accuracy,
                loss=loss,
                validation_accuracy=held_out[0],
                validation_loss=held_out[1],
                training_loss=progress.loss,
                final=progress.final,
            )
        )
        yield self.predictions(Predictions(images, self._test.labels, predicted))

    def _evaluate(self, part: _Part, weights: Vector, statistics: Vector) -> tuple[float, float, npt.NDArray[np.int64]]:
        loss, correct = 0.0, 0
        predicted = []
        workspace = self._workspace()
        for begin in range(0, len(part.labels), self._at_once):
            labels = part.labels[begin : begin + self._at_once]
            images = pixels(part.images[begin : begin + self._at_once], self._scale)
            images = images if self.normalise is None else self.normalise.apply(images)
            more_loss, more_correct, more = self._model.evaluate(
                weights, images, labels, workspace, statistics=statistics
            )
            loss, correct = loss + more_loss, correct + more_correct
            predicted.append(more)
        self._workspaces.append(workspace)
        return correct / len(part.labels), loss / len(part.labels), np.concatenate(predicted)

    def _workspace(self) -> Any:
        """One that nobody uses: validations of a node overlap if it has several compute tasks."""
        try:
            return self._workspaces.pop()
        except IndexError:
            return self._model.workspace(self._at_once)


def at_once(shape: tuple[int, ...]) -> int:
    """How many images of a shape are evaluated at once: few calls for small ones, little memory for large ones."""
    return min(max(_FEWEST, _AT_ONCE_NBYTES // (4 * math.prod(shape))), _MOST)
