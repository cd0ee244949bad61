"""The model on a node: replica, statistics and velocity on workers, a shard on parameter servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from sys import getrefcount
from typing import ClassVar

import numpy as np

from dataflow.node_context import NodeContext
from dataflow.state import State, StateElement, StateKind
from operators.dnn import NetworkSpec
from operators.dnn.arrays import read_only
from operators.jit import compiled
from operators.layout import Sharding, runs
from operators.messages import Vector
from operators.optimizer import Sgd
from operators.warm_start import WarmStart, initial_statistics, initial_weights


class VectorState(State):
    """A vector that operators read as snapshots and write in place.

    A write copies the vector only while somebody holds a snapshot, or an array that was cut from one: that is known
    by the numbers of references to the array and to its read-only view, as in `numpy.ndarray.resize`.

    Args:
        values: (elements,) float32.
    """

    def __init__(self, values: Vector) -> None:
        self._take(values)

    @property
    def values(self) -> Vector:
        """The vector, to be written in place and at once: ask again after a snapshot, which would show the write."""
        if self._is_looked_at():
            self._take(self._values.copy())
        return self._values

    @values.setter
    def values(self, values: Vector) -> None:
        self._take(values)

    @property
    def current(self) -> Vector:
        """The vector, read-only, for who may write it; looking makes no copy necessary, and later writes show."""
        return self._view

    def descend(self, direction: Vector, rate: float, *, scale: bool) -> None:
        """Subtract `rate` times a whole direction, in one pass.

        Args:
            direction: (elements,) float32; overwritten with what was subtracted if `scale`, else only read.
            rate: rounded to float32.
            scale: see `direction`.
        """
        _descend(self.values, direction, np.float32(rate), scale)

    @classmethod
    def compile(cls) -> None:
        """Compile what `descend` needs, or load it from disk, so that no step waits for it."""
        cls(np.zeros(1, np.float32)).descend(np.zeros(1, np.float32), 1.0, scale=True)

    def snapshot(self) -> Vector:
        """The vector as it is now, read-only; copied only when somebody writes."""
        self._shared = True
        return self._view

    def tensors(self) -> dict[str, np.ndarray]:
        """``values``."""
        return {"values": self._values}

    def kept(self) -> dict[str, np.ndarray]:
        """``values``, copied only when somebody writes."""
        return {"values": self.snapshot()}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over `values`."""
        if tensors["values"].shape != self._values.shape or tensors["values"].dtype != self._values.dtype:
            what = f"the vector is {self._values.shape} {self._values.dtype}, got {tensors['values'].shape}"
            raise ValueError(what)
        self.values[:] = tensors["values"]

    def _take(self, values: Vector) -> None:
        """Hold another array, which no snapshot shows yet."""
        if values.base is not None:  # what is cut from a view refers to the array behind it, where it is not counted
            values = values.copy()
        self._values, self._view, self._shared = values, read_only(values), False

    def _is_looked_at(self) -> bool:
        """Whether somebody may hold a snapshot that shows the array."""
        self._shared = self._shared and self._references() > _OWN
        return self._shared

    def _references(self) -> int:
        """How many references there are to the array, or to views of it, and to the view that is the snapshot."""
        return getrefcount(self._values) + getrefcount(self._view)


class ShardState(VectorState):
    """The part of a vector that a node owns; the rest is zero.

    Args:
        values: see `VectorState`.
        own: where the part lies.
    """

    def __init__(self, values: Vector, own: Sequence[slice]) -> None:
        super().__init__(values)
        self._own = tuple(own)

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over the part of `values` that the node owns."""
        super().restore(tensors)
        whole = self.values.copy()
        self.values[:] = 0
        for where in self._own:
            self.values[where] = whole[where]


_OWN = VectorState(np.zeros(1, np.float32))._references()
"""References of a vector of which nobody holds a snapshot."""


@compiled
def _descend(weights: Vector, direction: Vector, rate: np.float32, scale: bool) -> None:
    if scale:
        for i in range(weights.size):
            direction[i] *= rate
            weights[i] -= direction[i]
    else:
        for i in range(weights.size):
            weights[i] -= rate * direction[i]


class Replica(StateElement):
    """A whole model on every node, all equal at the start.

    Args:
        model: the network.
        warm_start: training before the start; none if None.
    """

    kind: ClassVar[StateKind] = StateKind.PARTIAL
    anybodys: ClassVar[bool] = True
    model: NetworkSpec
    warm_start: WarmStart | None = None

    def create(self, node: NodeContext) -> VectorState:
        """The initial weights, by the job's seed."""
        return VectorState(initial_weights(self.model, self.warm_start, node.seed).copy())


class Statistics(StateElement):
    """What training moves besides the weights, such as running means of batch normalisation; each node's own.

    Args:
        model: the network.
        warm_start: training before the start; none if None.
    """

    kind: ClassVar[StateKind] = StateKind.LOCAL
    anybodys: ClassVar[bool] = True
    model: NetworkSpec
    warm_start: WarmStart | None = None

    def create(self, node: NodeContext) -> VectorState:
        """The statistics that every node begins with."""
        return VectorState(initial_statistics(self.model, self.warm_start, node.seed).copy())


class Velocity(StateElement):
    """The velocity of a worker's optimizer: zero at the start, and of no elements where there is no momentum.

    Args:
        n_weights: weights of the model.
        optimizer: whose velocity it is.
    """

    kind: ClassVar[StateKind] = StateKind.LOCAL
    n_weights: int
    optimizer: Sgd = Sgd()

    @property
    def form(self) -> str:
        """Whose velocity it is."""
        return self.optimizer.form

    def create(self, node: NodeContext) -> VectorState:
        """No velocity yet."""
        return VectorState(self.optimizer.velocity(self.n_weights))


class Shard(StateElement):
    """The cells of a model that this node owns; the memory of the others is never touched.

    Args:
        model: the network.
        sharding: its division over the nodes of the element's role.
        warm_start: training before the start; none if None.
    """

    kind: ClassVar[StateKind] = StateKind.PARTITIONED
    model: NetworkSpec
    sharding: Sharding
    warm_start: WarmStart | None = None

    def create(self, node: NodeContext) -> ShardState:
        """The initial weights of the cells owned, by the job's seed; zeros elsewhere."""
        initial = initial_weights(self.model, self.warm_start, node.seed)
        values, owned = np.zeros_like(initial), runs(self.sharding.owners(node.size))
        own = [self.sharding.layout.weights(start, stop) for start, stop, owner in owned if owner == node.rank]
        for where in own:
            values[where] = initial[where]
        return ShardState(values, own)
