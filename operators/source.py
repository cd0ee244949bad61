"""Source: this node's share of the training data, shuffled every epoch and cut into mini-batches and shards."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from pydantic import Field, PrivateAttr

from dataflow.errors import ConfigError
from dataflow.message import Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, EndOfData, Operator
from dataflow.ports import Out
from operators.data import Data, DataRef, open_data, pixels
from operators.messages import Batch
from operators.sampling import epoch_order, node_indices, split_validation


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
    """

    source = True
    data: DataRef
    batch: int = Field(default=32, ge=1)
    epochs: float | None = Field(default=None, gt=0)
    holdout: float = Field(default=0.0, ge=0, lt=1)
    keep_last: bool = True
    batches = Out(Batch)

    _data: Data = PrivateAttr()
    _rows: npt.NDArray[np.int64] = PrivateAttr()
    _per_epoch: int = PrivateAttr()
    _steps: int | None = PrivateAttr()
    _share: int = PrivateAttr()
    _order: tuple[int, npt.NDArray[np.int64]] = PrivateAttr(default=(-1, np.zeros(0, np.int64)))

    def open(self, node: NodeContext) -> None:
        """Open the data and find this node's share.

        Raises:
            DataError: the data set cannot be opened.
            ConfigError: there are fewer training images than nodes, or `holdout` leaves a part empty.
        """
        self._data = open_data(self.data)
        train = self.training_rows(node.size, node.seed)
        self._rows = train[node_indices(len(train), node.rank, node.size)]
        self._share = len(train) // node.size
        self._per_epoch = steps_per_epoch(len(train), node.size, self.batch, keep_last=self.keep_last)
        self._steps = None if self.epochs is None else max(1, math.floor(self.epochs * self._per_epoch + 0.5))

    def training_rows(self, nodes: int, seed: int) -> npt.NDArray[np.int64]:
        """Rows of the images that so many nodes share.

        Raises:
            DataError: the data set cannot be opened.
            ConfigError: there are fewer training images than nodes, or `holdout` leaves a part empty.
        """
        rows = training_rows(len(open_data(self.data).train_images), self.holdout, seed)
        if len(rows) < nodes:
            what = f"every node needs a training image, and {nodes} nodes share {len(rows)}"
            raise ConfigError(what, fix="use fewer nodes or a smaller holdout")
        return rows

    def process(self, tick: Tick, node: NodeContext) -> Emissions:
        """The shard of the mini-batch that `tick` asks for, or the end."""
        if self._steps is not None and tick.step >= self._steps:
            yield EndOfData()
            return
        epoch, position = divmod(tick.step, self._per_epoch)
        order = self._epoch_order(epoch, node)
        seen = min((position + 1) * self.batch, self._share)
        rows = order[position * self.batch : seen]
        begin, end = (len(rows) * (tick.shard + more) // tick.shards for more in (0, 1))
        mine = self._rows[rows[begin:end]]
        yield self.batches(
            Batch(
                step=tick.step,
                shard=tick.shard,
                shards=tick.shards,
                images=pixels(self._data.train_images[mine], self._data.scale),
                labels=self._data.train_labels[mine],
                size=len(rows),
                epoch=epoch + seen / min(self._per_epoch * self.batch, self._share),
            )
        )

    def _epoch_order(self, epoch: int, node: NodeContext) -> npt.NDArray[np.int64]:
        known, order = self._order
        if known != epoch:
            order = epoch_order(len(self._rows), node.seed, epoch, node.rank)
            self._order = (epoch, order)
        return order


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
