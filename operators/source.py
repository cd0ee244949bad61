"""Source: this node's share of the training data, shuffled every epoch and cut into mini-batches and shards."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from dataflow.errors import ConfigError
from dataflow.message import Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, EndOfData, Operator
from dataflow.ports import Out
from operators.data import DataRef, open_data
from operators.messages import Batch
from operators.pixels import gathered
from operators.sampling import epoch_order, node_indices, split_validation

Rows = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Share:
    """What a node reads of the data, and the order of the newest epoch.

    Args:
        images, labels: of the data set.
        factor: what makes its pixels lie in [0, 1].
        rows: of the training images that are the node's.
        size: images that it reads in an epoch.
        batch: images of a mini-batch.
        per_epoch: mini-batches of an epoch.
        steps: mini-batches in all.
        nodes: of the role.
        warm_up_steps: mini-batches in which only nodes up to `warm_up_nodes` have images, `warm_up_batch` at most.
        order: the newest epoch that was read, and `rows` in its order.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    factor: np.float32
    rows: Rows
    size: int
    batch: int
    per_epoch: int
    steps: float
    nodes: int
    warm_up_steps: int
    warm_up_nodes: int
    warm_up_batch: int
    order: tuple[int, Rows] = (-1, np.zeros(0, np.int64))

    def shard(self, tick: Tick, node: NodeContext) -> Batch:
        """The shard of the mini-batch that `tick` asks for."""
        epoch, position = divmod(tick.step, self.per_epoch)
        known, order = self.order
        if known != epoch:
            order = self.rows[epoch_order(len(self.rows), node.seed, epoch, node.rank)]
            self.order = (epoch, order)
        first = position * self.batch
        seen = min(first + self.batch, self.size)
        size, readers = seen - first, self.nodes
        if tick.step < self.warm_up_steps:
            size, readers = min(size, self.warm_up_batch), self.warm_up_nodes
        of_all = size * readers
        if node.rank >= readers:
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
            epoch=epoch + seen / self.size,
            of_all=of_all,
        )


class WarmUp(BaseModel):
    """A first part of training with fewer nodes and smaller mini-batches (strom_sparse_sgd.txt 3.3).

    Args:
        nodes: of the role, the first so many, all if None; the mini-batches of the others are empty.
        epochs: how long, to the nearest mini-batch. All nodes go through their data at the pace of later epochs, so
            what is left out of mini-batches is not seen in these.
        batch: images of a mini-batch, the first ones of what it will be later; all if None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    nodes: int | None = Field(default=None, ge=1)
    epochs: float = Field(gt=0)
    batch: int | None = Field(default=None, ge=1)


class Source(Operator):
    """Mini-batches of labelled images. Node i of n owns samples i, i + n, ... of the training part.

    Every node makes the same number of mini-batches per epoch: where shares differ by a sample, a random one is left
    out for the epoch. Shards of one mini-batch differ in size by at most one image and may be empty.

    Args:
        data: the data set.
        batch: images of a mini-batch on one node, over all its compute tasks.
        epochs: passes over the data, to the nearest mini-batch, at least one; endless if None.
        holdout: fraction of the training images kept out, by seed, for validation.
        keep_last: whether an epoch's last, smaller mini-batch is used.
        warm_up: how training begins, if not like the rest.
    """

    source = True
    data: DataRef
    batch: int = Field(default=32, ge=1)
    epochs: float | None = Field(default=None, gt=0)
    holdout: float = Field(default=0.0, ge=0, lt=1)
    keep_last: bool = True
    warm_up: WarmUp | None = None
    batches = Out(Batch)

    _share: _Share = PrivateAttr()

    def open(self, node: NodeContext) -> None:
        """Open the data and find this node's share.

        Raises:
            DataError: the data set cannot be opened.
            ConfigError: there are fewer training images or nodes than are needed, or `holdout` leaves a part empty.
        """
        data, train, warm_up = open_data(self.data), self.training_rows(node.size, node.seed), self.warm_up
        per_epoch = steps_per_epoch(len(train), node.size, self.batch, keep_last=self.keep_last)
        self._share = _Share(
            images=np.ascontiguousarray(data.train_images),
            labels=data.train_labels,
            factor=np.float32(1.0 / data.scale),
            rows=train[node_indices(len(train), node.rank, node.size)],
            size=min(per_epoch * self.batch, len(train) // node.size),
            batch=self.batch,
            per_epoch=per_epoch,
            steps=math.inf if self.epochs is None else max(1, math.floor(self.epochs * per_epoch + 0.5)),
            nodes=node.size,
            warm_up_steps=math.floor(warm_up.epochs * per_epoch + 0.5) if warm_up else 0,
            warm_up_nodes=(warm_up.nodes if warm_up else None) or node.size,
            warm_up_batch=(warm_up.batch if warm_up else None) or self.batch,
        )
        self._share.shard(Tick(0, 0, 1), node)  # compiles what it calls

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
        if self.warm_up and self.warm_up.nodes is not None and self.warm_up.nodes > nodes:
            what = f"{self.warm_up.nodes} nodes cannot begin where there are {nodes}"
            raise ConfigError(what, fix=f"use more nodes, or {nodes} at most in the warm-up")
        return rows

    def process(self, tick: Tick, node: NodeContext) -> Emissions:
        """The shard of the mini-batch that `tick` asks for, or the end."""
        share = self._share
        yield EndOfData() if tick.step >= share.steps else self.batches(share.shard(tick, node))


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


def steps_per_epoch(images: int, nodes: int, batch: int, *, keep_last: bool = True) -> int:
    """Mini-batches that every node makes per epoch; at least 1."""
    share = images // nodes
    return max(1, -(-share // batch) if keep_last else share // batch)
