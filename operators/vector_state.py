"""The model on a node: replica, statistics and velocity on workers, a shard on parameter servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from dataflow.node_context import NodeContext
from dataflow.state import State, StateElement, StateKind
from operators.dnn import NetworkSpec
from operators.dnn.arrays import read_only
from operators.layout import Sharding, runs
from operators.messages import Vector
from operators.optimizer import Sgd
from operators.warm_start import WarmStart, initial_statistics, initial_weights


class VectorState(State):
    """A vector that operators read as snapshots and write in place.

    Args:
        values: (elements,) float32.
    """

    def __init__(self, values: Vector) -> None:
        self._take(values)

    @property
    def values(self) -> Vector:
        """The vector, to be written in place and at once: ask again after a snapshot, which would show the write."""
        if self._shared:
            self._take(self._values.copy())
        return self._values

    @values.setter
    def values(self, values: Vector) -> None:
        self._take(values)

    @property
    def current(self) -> Vector:
        """The vector, read-only, for who may write it; looking makes no copy necessary, and later writes show."""
        return self._view

    def subtract(self, update: Vector) -> None:
        """Subtract a whole vector; in one pass with the copy that a snapshot makes necessary."""
        if self._shared:
            self._take(self._values - update)
        else:
            self._values -= update

    def snapshot(self) -> Vector:
        """The vector as it is now, read-only; copied only when somebody writes."""
        self._shared = True
        return self._view

    def tensors(self) -> dict[str, np.ndarray]:
        """``values``."""
        return {"values": self._values}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over `values`."""
        if tensors["values"].shape != self._values.shape or tensors["values"].dtype != self._values.dtype:
            what = f"the vector is {self._values.shape} {self._values.dtype}, got {tensors['values'].shape}"
            raise ValueError(what)
        self.values[:] = tensors["values"]

    def _take(self, values: Vector) -> None:
        """Hold another array, which no snapshot shows yet."""
        self._values, self._view, self._shared = values, read_only(values), False


class Replica(StateElement):
    """A whole model on every node, all equal at the start.

    Args:
        model: the network.
        warm_start: training before the start; none if None.
    """

    kind: ClassVar[StateKind] = StateKind.PARTIAL
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

    def create(self, node: NodeContext) -> VectorState:
        """The initial weights of the cells owned, by the job's seed; zeros elsewhere."""
        initial = initial_weights(self.model, self.warm_start, node.seed)
        values = np.zeros_like(initial)
        for start, stop, owner in runs(self.sharding.owners(node.size)):
            if owner == node.rank:
                where = self.sharding.layout.weights(start, stop)
                values[where] = initial[where]
        return VectorState(values)
