"""The course of a node through its data: which epoch it is in, since when, and who shares the data of that epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from dataflow.node_context import NodeContext
from dataflow.state import State, StateElement, StateKind


class CourseState(State):
    """Live course of one node.

    `base` is the node's number of the mini-batch that its source calls 0; `epoch` the newest epoch that was begun, with
    mini-batch `first`; `sharing` the nodes that share its data; `per_epoch` the mini-batches of each of them in it.
    `closed` is set once there are no more.
    """

    def __init__(self) -> None:
        self.base = self.epoch = self.first = 0
        self.per_epoch = 1
        self.sharing: tuple[int, ...] = ()
        self.number = 0
        self.closed = False

    def reached(self, number: int) -> float:
        """Passes over the data that were made by gradient `number`, with fraction."""
        return self.epoch + (number - self.first) / self.per_epoch

    def start(self, number: int, epoch: float) -> None:
        """Go on behind gradient `number`, from where somebody was who had made so many passes over the data.

        Who shares the data is asked again.
        """
        self.base = self.number = number
        self.epoch, self.sharing = max(0, math.floor(epoch)), ()
        self._fraction = max(0.0, epoch - self.epoch)

    def share(self, sharing: Sequence[int], per_epoch: int, position: int) -> None:
        """Divide the data of this epoch among other nodes.

        Args:
            sharing: the nodes.
            per_epoch: mini-batches of each of them.
            position: of the next mini-batch among these.
        """
        self.sharing, self.per_epoch = tuple(sharing), per_epoch
        self.first = self.number - position

    _fraction = 0.0

    @property
    def fraction(self) -> float:
        """The part of the epoch that lies behind the next mini-batch, before it was known how many it has."""
        return (self.number - self.first) / self.per_epoch if self.sharing else self._fraction

    def snapshot(self) -> dict[str, np.ndarray]:
        """The course as arrays."""
        return self.tensors()

    def tensors(self) -> dict[str, np.ndarray]:
        """``course``: number, base, epoch, first and per_epoch; ``sharing``: nodes."""
        numbers = [self.number, self.base, self.epoch, self.first, self.per_epoch]
        return {"course": np.array(numbers, np.int64), "sharing": np.array(self.sharing, np.int64)}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over the course; the source's next mini-batch is the one that was next."""
        self.number, self.base, self.epoch, self.first, self.per_epoch = map(int, tensors["course"])
        self.sharing = tuple(int(node) for node in tensors["sharing"])
        self.closed = False


class Course(StateElement):
    """A course through the data."""

    kind: ClassVar[StateKind] = StateKind.LOCAL

    def create(self, node: NodeContext) -> CourseState:
        """Before the first mini-batch."""
        return CourseState()
