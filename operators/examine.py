"""Examine: how well a node's model does on its share of the images that a validation is about."""

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
from operators.messages import Examined, Progress, Share, Vector
from operators.passes import Passes
from operators.preprocess import Normalise
from operators.sampling import split_validation

_AT_ONCE_NBYTES = 1 << 20
_FEWEST, _MOST = 16, 256


@dataclass(frozen=True)
class _Images:
    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    def share(self, place: int, of: int) -> _Images:
        """Those of the sharing node at `place`: one out of so many."""
        return _Images(self.images[place::of], self.labels[place::of])


class Examine(Operator):
    """Classifies this node's share of the test images, and of those held out of training, with the node's own model.

    Nodes that share a validation take every n-th image each: none waits for another, and the others' replicas do not
    grow old meanwhile. What only one node looks at stays there, as `whole`. Where weights are averaged, it is their
    average that is looked at, with the statistics as they are. A result is labelled with the gradients that are in the
    weights, which may be more than there were when it fell due: snapshots are taken between two steps, and the next may
    have been made by then. Nothing is ever said on `over`: whoever it leads to hears when the last has been looked at.

    Args:
        model: the network.
        data: the data set.
        holdout: fraction of the training images held out, as in `Source`.
        normalise: what the training batches are normalised with; None if they are not.
        batch: images evaluated at once; None: as many as `at_once` says.
        passes: how many images are an epoch, where gradients are made by whoever is first: a result is labelled with
            those that servers said had come, if that is more than when it fell due. See `Compute`.
    """

    sends = True
    model: NetworkSpec
    data: DataRef
    holdout: float = 0.0
    normalise: Normalise | None = None
    batch: int | None = Field(default=None, ge=1)
    passes: Passes | None = None
    shares = In(Share, capacity=64)
    examined = Out(Examined)
    whole = Out(Examined)
    over = Out(Progress)
    replica = Reads()
    average = Reads()
    statistics = Reads()
    clocks = Reads()

    _model: Network = PrivateAttr()
    _workspaces: deque[Any] = PrivateAttr(default_factory=deque)
    _test: _Images = PrivateAttr()
    _held_out: _Images | None = PrivateAttr(default=None)
    _scale: float = PrivateAttr()
    _at_once: int = PrivateAttr()

    def open(self, node: NodeContext) -> None:
        """Open the data."""
        data = open_data(self.data)
        self._model = build_network(self.model)
        self._model.compile()
        self._test = _Images(data.test_images, data.test_labels)
        self._scale = data.scale
        self._at_once = self.batch or at_once(data.test_images.shape[1:])
        if self.holdout:
            rows = split_validation(len(data.train_images), self.holdout, node.seed)[1]
            self._held_out = _Images(data.train_images[rows], data.train_labels[rows])

    def process(
        self,
        share: Share,
        replica: Vector,
        average: Vector | None,
        statistics: Vector,
        clocks: ClocksState,
        node: NodeContext,
    ) -> Emissions:
        """What has come of the share."""
        place, of = int(np.searchsorted(share.nodes, node.index)), len(share.nodes)
        weights = replica if average is None else average
        loss, correct, predicted = self._evaluate(self._test.share(place, of), weights, statistics)
        held_out = self._held_out.share(place, of) if self._held_out else None
        held_out_loss, held_out_correct, _ = self._evaluate(held_out, weights, statistics) if held_out else (0.0, 0, ())
        images, epoch = self._advanced(share, clocks)
        port = self.examined if of > 1 else self.whole
        yield port(
            Examined(
                node.index,
                share.turn,
                share.nodes,
                share.final,
                step=clocks.made,
                images=images,
                epoch=epoch,
                training_loss=share.loss,
                loss=loss,
                predicted=predicted,
                correct=correct,
                held_out=len(held_out.labels) if held_out else 0,
                held_out_correct=held_out_correct,
                held_out_loss=held_out_loss,
            )
        )

    def _advanced(self, share: Share, clocks: ClocksState) -> tuple[int, float]:
        """Images and epochs of the whole role that are in the weights."""
        if self.passes is None:
            return clocks.images, share.epoch * clocks.made / max(1, share.step)
        epochs = self.passes.of(clocks.come)
        if share.final and clocks.come:
            return clocks.come, epochs
        return max(clocks.images, clocks.come), max(share.epoch, epochs)  # servers had told of fewer when it fell due

    def _evaluate(
        self, part: _Images, weights: Vector, statistics: Vector
    ) -> tuple[float, int, npt.NDArray[np.unsignedinteger]]:
        """Summed loss, right answers, and all answers."""
        loss, correct = 0.0, 0
        predicted = np.empty(len(part.labels), np.min_scalar_type(self._model.n_classes))
        workspace = self._workspace()
        for begin in range(0, len(part.labels), self._at_once):
            rows = slice(begin, begin + self._at_once)
            images = pixels(part.images[rows], self._scale)
            images = images if self.normalise is None else self.normalise.apply(images)
            labels = np.ascontiguousarray(part.labels[rows])
            more_loss, more_correct, predicted[rows] = self._model.evaluate(
                weights, images, labels, workspace, statistics=statistics
            )
            loss, correct = loss + more_loss, correct + more_correct
        self._workspaces.append(workspace)
        return loss, correct, predicted

    def _workspace(self) -> Any:
        """One that nobody uses: shares of a node overlap if it has several compute tasks."""
        try:
            return self._workspaces.pop()
        except IndexError:
            return self._model.workspace(self._at_once)


def at_once(shape: tuple[int, ...]) -> int:
    """How many images of a shape are evaluated at once: few calls for small ones, little memory for large ones."""
    return min(max(_FEWEST, _AT_ONCE_NBYTES // (4 * math.prod(shape))), _MOST)
