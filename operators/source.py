"""Source: this node's share of the training data, shuffled every epoch and cut into mini-batches and shards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, PrivateAttr

from dataflow.errors import ConfigError, OperatorError
from dataflow.message import Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, EndOfData, Operator
from dataflow.ports import Out
from dataflow.state import Reads, Writes
from operators.course import CourseState
from operators.data import DataRef, open_data
from operators.messages import Batch
from operators.passes import steps_per_epoch
from operators.pixels import gathered
from operators.roll import Present
from operators.sampling import epoch_order, node_indices, split_validation
from operators.warm_up import WarmUp, of_step

FUTILE = 10
"""Who has read so many times the mini-batches that it would take to make all gradients alone makes hardly any."""

FEW = 1000
"""Fewer mini-batches than these are read in vain before anybody can be told that there are enough."""

Rows = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Share:
    """What a node reads of the data, and the order of the newest epoch.

    Args:
        images, labels: of the data set.
        factor: what makes its pixels lie in [0, 1].
        rows: of the training images that are the node's.
        rank: of the node among those that share.
        size: images that it reads in an epoch.
        batch: images of a mini-batch.
        per_epoch: mini-batches of an epoch.
        sharing: the nodes that share the data.
        stages: how training begins, if not like the rest.
        order: the newest epoch that was read, and `rows` in its order.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    factor: np.float32
    rows: Rows
    rank: int
    size: int
    batch: int
    per_epoch: int
    sharing: tuple[int, ...]
    stages: tuple[WarmUp, ...]
    order: tuple[int, Rows] = (-1, np.zeros(0, np.int64))

    def shard(self, tick: Tick, epoch: int, position: int, seed: int) -> Batch:
        """The shard that `tick` asks for of a node's mini-batch.

        Args:
            tick: says which shard.
            epoch: of the mini-batch.
            position: of it, in the epoch.
            seed: of the job.
        """
        known, order = self.order
        if known != epoch:
            order = self.rows[epoch_order(len(self.rows), seed, epoch, self.rank)]
            self.order = (epoch, order)
        first = position * self.batch
        seen = min(first + self.batch, self.size)
        size, readers = seen - first, len(self.sharing)
        stage = of_step(self.stages, epoch * self.per_epoch + position, self.per_epoch) if self.stages else None
        if stage is not None:
            size, readers = min(size, stage.batch or size), min(readers, stage.nodes or readers)
        of_all = size * readers
        if self.rank >= readers:
            size = 0
        begin, end = (first + size * (tick.shard + more) // tick.shards for more in (0, 1))
        mine = order[begin:end]
        return Batch(
            step=tick.step,
            shard=tick.shard,
            shards=tick.shards,
            images=gathered(self.images, mine, self.factor),
            labels=self.labels[mine],
            size=size,
            epoch_before=epoch + first / self.size,
            epoch=epoch + seen / self.size,
            of_all=of_all,
            readers=readers if stage else 0,
        )


class Source(Operator):
    """Mini-batches of labelled images. Node i of n owns samples i, i + n, ... of the training part.

    Every node makes the same number of mini-batches per epoch: where shares differ by a sample, a random one is left
    out for the epoch. Shards of one mini-batch differ in size by at most one image and may be empty.

    The data of nodes that die, and of those that come back, are divided anew among those that are there, each at its
    own pace. In the epoch in which a node comes back it reads from its share for the later ones.

    Args:
        data: the data set.
        batch: images of a mini-batch on one node, over all its compute tasks.
        epochs: passes over the data, to the nearest mini-batch, at least one; if None, until no more is needed.
        needed: without epochs, how many the gradients of all nodes make together; None: nobody knows.
        holdout: fraction of the training images kept out, by seed, for validation.
        keep_last: whether an epoch's last, smaller mini-batch is used.
        warm_up: stages with which training begins, one after the other, if it does not begin like the rest.
        redivide: whether data are divided anew at the next epoch, or now: then some are not read in this one, or twice.
    """

    source = True
    data: DataRef
    batch: int = Field(default=32, ge=1)
    epochs: float | None = Field(default=None, gt=0)
    needed: float | None = Field(default=None, gt=0)
    holdout: float = Field(default=0.0, ge=0, lt=1)
    keep_last: bool = True
    warm_up: tuple[WarmUp, ...] = ()
    redivide: Literal["epoch", "now"] = "epoch"
    batches = Out(Batch)
    roll = Reads()
    course = Writes()

    _share: _Share = PrivateAttr()
    _since: int = PrivateAttr(default=0)

    def open(self, node: NodeContext) -> None:
        """Open the data and find this node's share.

        Raises:
            DataError: the data set cannot be opened.
            ConfigError: there are fewer training images or nodes than are needed, or `holdout` leaves a part empty.
        """
        self.training_rows(node.size, node.seed)
        self._share = self._cut(node.members[node.role], node)
        self._share.shard(Tick(0, 0, 1), 0, 0, node.seed)  # compiles what it calls

    def training_rows(self, nodes: int, seed: int) -> npt.NDArray[np.int64]:
        """Rows of the images that so many nodes share.

        Raises:
            DataError: the data set cannot be opened.
            ConfigError: there are fewer training images or nodes than are needed, or `holdout` leaves a part empty.
        """
        rows = training_rows(len(open_data(self.data).train_images), self.holdout, seed)
        if len(rows) < nodes:
            what = f"every node needs a training image, and {nodes} nodes share {len(rows)}"
            raise ConfigError(what, fix="use fewer nodes or a smaller holdout")
        first = max((stage.nodes or 0 for stage in self.warm_up), default=0)
        if first > nodes:
            what = f"{first} nodes cannot begin where there are {nodes}"
            raise ConfigError(what, fix=f"use more nodes, or {nodes} at most in the warm-up")
        return rows

    def ready(self, roll: Present) -> bool:
        """Whether the node has caught up with the others, or need not."""
        return roll.settled or roll.idle

    def process(self, tick: Tick, roll: Present, course: CourseState, node: NodeContext) -> Emissions:
        """The shard of the mini-batch that `tick` asks for, or the end.

        Raises:
            OperatorError: so many were read that hardly any can have become a gradient.
        """
        if not tick.shard:
            if roll.idle:
                course.closed = True
            else:
                self._go_on(course.base + tick.step, roll, course, node)
        if course.closed:
            yield EndOfData()
            return
        position = course.number - course.first
        yield self.batches(self._share.shard(tick, course.epoch, position, node.seed))

    def on_end(self, course: CourseState) -> Emissions:
        """Nothing more is read, even where this source has been stopped."""
        course.stop()
        yield from ()

    def _go_on(self, number: int, roll: Present, course: CourseState, node: NodeContext) -> None:
        """Take the course to mini-batch `number`."""
        if not course.begun:
            self._since = number  # of a job that goes on, there are gradients of those before
        course.read(number)
        members = node.members[node.role]
        ended = course.sharing and number - course.first >= course.per_epoch
        if ended or not course.sharing or (self.redivide == "now" and roll.of(members) != course.sharing):
            sharing = roll.of(members)
            if sharing != self._share.sharing:
                self._share = self._cut(sharing, node)
            course.share(sharing, self._share.per_epoch)
        elif self._share.sharing != course.sharing:
            self._share = self._cut(course.sharing, node)
        if self.epochs is not None:
            steps = max(1, math.floor(self.epochs * course.per_epoch + 0.5))
            course.closed = course.epoch * course.per_epoch + number - course.first >= steps
        elif self.needed is not None:
            read, alone = number - self._since, self.needed * len(members) * course.per_epoch
            if read > FUTILE * max(FEW, alone):
                what = f"{read} mini-batches were read, and there are still too few gradients"
                fix = "look at the operators between source and compute: they drop nearly all mini-batches"
                raise OperatorError(what, fix=fix)

    def _cut(self, sharing: tuple[int, ...], node: NodeContext) -> _Share:
        """This node's share of the data among those that share it."""
        data = open_data(self.data)
        train = training_rows(len(data.train_images), self.holdout, node.seed)
        nodes, rank = len(sharing), sharing.index(node.index)
        per_epoch = steps_per_epoch(len(train), nodes, self.batch, keep_last=self.keep_last)
        return _Share(
            images=np.ascontiguousarray(data.train_images),
            labels=data.train_labels,
            factor=np.float32(1.0 / data.scale),
            rows=train[node_indices(len(train), rank, nodes)],
            rank=rank,
            size=min(per_epoch * self.batch, len(train) // nodes),
            batch=self.batch,
            per_epoch=per_epoch,
            sharing=sharing,
            stages=self.warm_up,
        )


def training_rows(images: int, holdout: float, seed: int) -> npt.NDArray[np.int64]:
    """Rows of the training images that are trained on.

    Raises:
        ConfigError: `holdout` leaves no images to train on, or none to validate on.
    """
    if not holdout:
        return np.arange(images)
    try:
        return split_validation(images, holdout, seed)[0]
    except ValueError as error:
        raise ConfigError(what=str(error), fix="use holdout=0 to keep no images out") from error
