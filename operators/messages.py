"""The messages that DNN operators exchange."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from dataflow.message import Message, Sharded, field_names

Vector = npt.NDArray[np.float32]
Code = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Batch(Sharded):
    """One shard of a mini-batch.

    Args:
        images: (images, channels, height, width) float32.
        labels: (images,) int64.
        size: images in the whole mini-batch, over all its shards.
        epoch_before: passes over its data that the node has made before this mini-batch, with fraction.
        epoch: passes over its data that the node has made once this mini-batch is done, with fraction.
        of_all: images in the mini-batches of this step of all nodes of the role.
        readers: nodes that have images in this step, the first ones of the role; 0: no stage of a warm-up says so.
    """

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    size: int
    epoch_before: float
    epoch: float
    of_all: int
    readers: int = 0

    def with_images(self, images: npt.NDArray[np.float32]) -> Self:
        """This shard with other images of the same number.

        Raises:
            ValueError: there are more or fewer of them.
        """
        if len(images) != len(self.labels):
            what = f"{len(images)} images in the place of {len(self.labels)}: make a Batch with their labels instead"
            raise ValueError(what)
        kind = type(self)
        return kind(**{name: getattr(self, name) for name in field_names(kind)} | {"images": images})


@dataclass(frozen=True, slots=True)
class Gradient(Message):
    """What one mini-batch teaches, as a vector over the model.

    Args:
        number: the node's gradients are numbered from 1.
        values: (weights,) float32; gradient, or gradient times learning rate where peers exchange updates.
        images: in the mini-batch.
        rate: that learning rate, or the one that the gradient is to have.
    """

    number: int
    values: Vector
    images: int
    rate: float = 1.0


@dataclass(frozen=True, slots=True)
class Accumulated(Message):
    """The window holds gradient `number`."""

    number: int


@dataclass(frozen=True, slots=True)
class Offer(Message):
    """Node `to` is due what the window holds for cells `start` to `stop`; summed once there is credit for it.

    Args:
        to: number of the receiving node.
        start, stop: cells of the model's `Layout`.
    """

    to: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Fragment(Message):
    """The sum of the gradients numbered (low, high] of node `origin`, over cells `start` to `stop`.

    Args:
        origin: number of the node that computed them.
        start, stop: cells of the model's `Layout`.
        low, high: gradient numbers; `low` is excluded, `high` included.
        span: gradients that `origin` computes at most until every cell has been sent again.
        skips: gradients before `low` may be missing for good.
        values: (weights of the cells,) float32; or uint8, what a codec made of them.
        images: in the mini-batches of these gradients; 0 where nobody counts.
    """

    origin: int
    start: int
    stop: int
    low: int
    high: int
    span: int
    skips: bool
    values: Vector | Code
    images: int = 0


@dataclass(frozen=True, slots=True)
class Weights(Message):
    """A server's weights of cells `start` to `stop`, once node `to`'s gradient number `clock` was applied.

    Args:
        to: number of the worker's node.
        origin: number of the server's node.
        start, stop: cells of the model's `Layout`.
        clock: number of the last of the worker's gradients in these weights.
        values: (weights of the cells,) float32; or uint8, what a codec made of their change since the answer before.
        lag, gap, normalised_gap: of that gradient; see `operators.staleness`. None where that is not known.
        of_all: gradients of all workers that have come for these cells; 0 where nobody counts.
        images: in the mini-batches of those that are in these weights; 0 where nobody counts.
    """

    to: int
    origin: int
    start: int
    stop: int
    clock: int
    values: Vector | Code
    lag: int | None = None
    gap: float | None = None
    normalised_gap: float | None = None
    of_all: int = 0
    images: int = 0


@dataclass(frozen=True, slots=True)
class Enough(Message):
    """A node need make no more gradients: all that were asked for have been taken in, whoever made them."""


@dataclass(frozen=True, slots=True)
class Progress(Message):
    """A node has done a step.

    Args:
        step: gradients computed by the node.
        images: images that the whole role has seen by then, at equal pace.
        epoch: passes over the training data, with fraction.
        loss: mean loss of the node's last mini-batch.
        final: nothing follows; all updates that reach the node are applied.
        readers: of the step; see `Batch`.
    """

    step: int
    images: int
    epoch: float
    loss: float
    final: bool = False
    readers: int = 0


@dataclass(frozen=True, slots=True)
class Share(Message):
    """A node's share of a validation is due.

    Args:
        turn: number of the validation, alike on all nodes that share it.
        nodes: (nodes,) int64, those nodes, in order.
        step, epoch, loss, final: of the `Progress` at which it is.
    """

    turn: int
    nodes: npt.NDArray[np.int64]
    step: int
    epoch: float
    loss: float
    final: bool = False


@dataclass(frozen=True, slots=True)
class Examined(Message):
    """What has come of a node's share of a validation.

    Args:
        origin: number of the node.
        turn, nodes, final: see `Share`.
        step, images, epoch: how far the node's weights were; see `Validation`.
        training_loss: mean loss of the mini-batch after which it was due.
        loss: sum over the node's test images.
        predicted: (test images of the node,) unsigned integers: the classes that the model says.
        correct: how many of them are right.
        held_out: images that were held out of training, and that the node looked at.
        held_out_correct, held_out_loss: of these, how many are right, and the sum of their loss.
    """

    origin: int
    turn: int
    nodes: npt.NDArray[np.int64]
    final: bool
    step: int
    images: int
    epoch: float
    training_loss: float
    loss: float
    predicted: npt.NDArray[np.unsignedinteger]
    correct: int
    held_out: int
    held_out_correct: int
    held_out_loss: float


@dataclass(frozen=True, slots=True)
class Validation(Message):
    """Result of a validation.

    Args:
        step: gradients that a node had computed when its weights were what they are; of several nodes the mean.
        images: images that the whole role had seen by then, at equal pace; of several nodes the mean.
        epoch: passes over the training data by then.
        tested: test images that were looked at: all, unless a node that shared the validation has died or lags behind.
        accuracy, loss: on the test images; accuracy in [0, 1].
        validation_accuracy, validation_loss: on the images held out of training; None if none are.
        training_loss: mean loss of the mini-batch after which it was due.
        final: the weights change no more, and are those that are kept as the model.
    """

    step: int
    images: int
    epoch: float
    tested: int
    accuracy: float
    loss: float
    validation_accuracy: float | None
    validation_loss: float | None
    training_loss: float
    final: bool = False


@dataclass(frozen=True, slots=True)
class Predictions(Message):
    """What the model says about every test image.

    Args:
        images: images seen by the whole role when it said so.
        labels: (images,) int64, what they are.
        predicted: (images,) int64, what the model says.
    """

    images: int
    labels: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.int64]


def _nothing() -> npt.NDArray[np.int64]:
    return np.zeros(0, np.int64)


WordKind = Literal["welcome", "lend", "begin", "begun", "late", "settled", "through"]


@dataclass(frozen=True, slots=True)
class Word(Message):
    """What nodes tell each other when one joins, or is through; see `operators.roll`.

    Args:
        kind: what is told.
        origin, to: numbers of the nodes that say and hear it.
        turn: number of the welcome or of the loan that it is about.
        number: of a gradient.
        images: that the whole role has seen by then.
        epoch: passes over the data that the origin had made by then, with fraction.
        span: gradients that the origin computes at most until every cell is sent again.
        origins: (k,) int64, nodes.
        applied: (k,) int64, a gradient number for each of them; or (cells,), one for each cell.
    """

    kind: WordKind
    origin: int
    to: int
    turn: int = 0
    number: int = 0
    images: int = 0
    epoch: float = 0.0
    span: int = 0
    origins: npt.NDArray[np.int64] = field(default_factory=_nothing)
    applied: npt.NDArray[np.int64] = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True)
class Piece(Message):
    """A part of the model that a node lends to one that joins; the last one says what is applied to it.

    Args:
        origin, to: numbers of the nodes that lend and take it.
        turn: number of the loan.
        element: ``replica``, ``statistics``, or ``clocks`` of the last one.
        start: place of `values` in the element.
        values: float32.
        number: the last of the origin's own gradients in the replica that others are sent.
        images: that the whole role has seen by then.
        origins: (k,) int64, nodes of which gradients are applied.
        last: (k,) int64, the last gradient that each of them makes, or -1.
        applied: (k, cells) int64, up to which gradient of each they are.
    """

    origin: int
    to: int
    turn: int
    element: str
    start: int
    values: Vector
    number: int = 0
    images: int = 0
    origins: npt.NDArray[np.int64] = field(default_factory=_nothing)
    last: npt.NDArray[np.int64] = field(default_factory=_nothing)
    applied: npt.NDArray[np.int64] = field(default_factory=_nothing)
