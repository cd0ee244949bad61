"""The average of a worker's weights over its last gradients, which is what validations see and what is kept.

At a rate that is not small, weights wander about a minimum; their mean lies nearer to it than they do (Polyak &
Juditsky 1992). So validations hold a target sooner, and longer, and the rate need not fall to nothing for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from dataflow.node_context import NodeContext
from dataflow.state import StateElement, StateKind
from operators.dnn.arrays import read_only
from operators.jit import compiled
from operators.messages import Vector
from operators.vector_state import VectorState

_NOTHING = read_only(np.empty(0, np.float32))


class AverageState(VectorState):
    """An average over time, of which later values count more: the weight of one falls by 1/e over `window` others.

    Until so many have come it is their plain mean. `number` is that of the gradient behind the last of them, where
    `operators.follow.Follow` takes them in.

    Args:
        elements: of the average; 0 if nothing is averaged.
    """

    def __init__(self, elements: int) -> None:
        super().__init__(np.zeros(elements, np.float32))
        self._count = self.number = 0

    def follow(self, values: Vector, window: float, *, owed: Vector | None = None) -> None:
        """Take in the next values.

        Args:
            values: (elements,) float32, only read.
            window: how many values the average goes over; with one or less none is taken in, or the average would lack
                what is applied to the weights after the last.
            owed: (elements,) float32, only read: what was subtracted in `values` and is not to count; None: nothing.
        """
        if window <= 1:
            return
        self._count += 1
        share = max(1.0 / self._count, 1.0 / window)
        left = _NOTHING if owed is None else read_only(owed)
        _approach(self.values, read_only(values), left, np.float32(share))

    @classmethod
    def compile(cls) -> None:
        """Compile what `follow` needs, or load it from disk, so that no step waits for it."""
        cls(1).follow(np.zeros(1, np.float32), 2.0)

    def snapshot(self) -> Vector | None:  # type: ignore[override]
        """The average as it is now, read-only; None if nothing was averaged."""
        return super().snapshot() if self._count else None

    def tensors(self) -> dict[str, np.ndarray]:
        """``values``, and ``count`` of those that are in it."""
        return {**super().tensors(), "count": np.array([self._count], np.int64)}

    def kept(self) -> dict[str, np.ndarray]:
        """What `tensors` gives, copied only when somebody writes."""
        return {**self.tensors(), "values": super().snapshot()}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over the average."""
        super().restore(tensors)
        self._count = self.number = int(tensors["count"][0])


@compiled
def _approach(average: Vector, values: Vector, owed: Vector, share: np.float32) -> None:
    if owed.size:
        for i in range(average.size):
            average[i] += share * (values[i] + owed[i] - average[i])
    else:
        for i in range(average.size):
            average[i] += share * (values[i] - average[i])


class Average(StateElement):
    """The average of a worker's replica; each node's own, and of no elements where weights are not averaged.

    Args:
        n_weights: weights of the model.
        averages: whether they are averaged.
    """

    kind: ClassVar[StateKind] = StateKind.LOCAL
    n_weights: int
    averages: bool = True

    @property
    def form(self) -> str:
        """Whether there is an average."""
        return "averaged weights" if self.averages else ""

    def create(self, _node: NodeContext) -> AverageState:
        """Nothing averaged yet."""
        return AverageState(self.n_weights if self.averages else 0)
