"""The course of a node through its data: which epoch it is in, since when, and who shares the data of that epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from dataflow.node_context import NodeContext
from dataflow.state import State, StateElement, StateKind

_ROUNDING = 1e-6
"""Of a mini-batch: what passes over the data may lack for being a fraction."""


class CourseState(State):
    """Live course of one node.

    `base` is the node's number of the mini-batch that its source calls 0; `epoch` the newest epoch that was begun, with
    mini-batch `first`; `sharing` the nodes that share its data; `per_epoch` the mini-batches of each of them in it.
    `begun` is set once one was read, and `closed` once there are no more.
    """

    def __init__(self) -> None:
        self.base = self.epoch = self.first = 0
        self.per_epoch = 1
        self.sharing: tuple[int, ...] = ()
        self.number = 0
        self.begun = self.closed = False
        self._passes = math.nan

    def reached(self, number: int) -> float:
        """Passes over the data that were made by gradient `number`, with fraction."""
        return self.epoch + (number - self.first) / self.per_epoch

    def read(self, number: int) -> None:
        """Go on with mini-batch `number`."""
        self.number, self.begun = number, True

    def stop(self) -> None:
        """Note that none follows those that were read; then `number` is how many there were."""
        if not self.closed:
            self.number, self.closed = self.number + self.begun, True

    def start(self, number: int, epoch: float = math.nan) -> None:
        """Go on behind gradient `number`, from where somebody was who had made so many passes over the data.

        Who shares the data is asked again. Where nobody knows of passes, it is as if these had shared from the start.
        """
        self.base = self.number = number
        self.sharing, self._passes, self.begun = (), epoch, False

    def share(self, sharing: Sequence[int], per_epoch: int) -> None:
        """Divide the data of this epoch among other nodes, and go on as far in it as before.

        Args:
            sharing: the nodes.
            per_epoch: mini-batches of each of them.
        """
        if self.sharing:
            passes = self.reached(self.number)
        else:
            passes = self.number / per_epoch if math.isnan(self._passes) else max(0.0, self._passes)
        self.epoch = math.floor(passes)
        position = min(math.floor((passes - self.epoch) * per_epoch + _ROUNDING), per_epoch - 1)
        self.sharing, self.per_epoch, self.first = tuple(sharing), per_epoch, self.number - position

    def tensors(self) -> dict[str, np.ndarray]:
        """``course``: number, base, epoch, first and per_epoch; ``sharing``: nodes."""
        numbers = [self.number, self.base, self.epoch, self.first, self.per_epoch]
        return {"course": np.array(numbers, np.int64), "sharing": np.array(self.sharing, np.int64)}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over the course; the source's next mini-batch is the one that was next."""
        self.number, self.base, self.epoch, self.first, self.per_epoch = map(int, tensors["course"])
        self.sharing = tuple(int(node) for node in tensors["sharing"])
        self.begun = self.closed = False

    def resume(self, tensors: Mapping[str, np.ndarray], node: int, steps: Mapping[int, int]) -> None:
        """Go on behind the last gradient that was made, though mini-batches beyond that had been read."""
        super().resume(tensors, node, steps)
        if tensors:
            self.number = steps.get(node, self.number)
            while self.number < self.first:
                self.epoch, self.first = self.epoch - 1, self.first - self.per_epoch


class Course(StateElement):
    """A course through the data.

    Args:
        batch: images that a node reads at once, in which the course is counted; None if nobody says.
        data: name of the data set.
        holdout: fraction of its training images that is kept out.
    """

    kind: ClassVar[StateKind] = StateKind.LOCAL
    batch: int | None = Field(default=None, ge=1)
    data: str = ""
    holdout: float = Field(default=0.0, ge=0, lt=1)

    @property
    def form(self) -> str:
        """What the course is counted in, and through what it leads."""
        if self.batch is None:
            return ""
        left_out = f" without {self.holdout:g} of it" if self.holdout else ""
        return f"in steps of {self.batch} images of {self.data or 'the data'}{left_out}"

    def create(self, node: NodeContext) -> CourseState:
        """Before the first mini-batch."""
        return CourseState()
