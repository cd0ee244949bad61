"""Workers whose gradients are small integers, so that every sum is exact whatever its order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from ako_jobs.ako import add_exchange
from dataflow.engine.loading import LoadedNode
from dataflow.graph.logical import LogicalGraph
from dataflow.message import Sharded, Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, EndOfData, Gather, Operator, Sample
from dataflow.ports import In, Out
from dataflow.reports import Rates
from dataflow.state import StateElement, StateKind, Writes
from operators.clocks import Clocks, ClocksState
from operators.cost_model import CostModel
from operators.layout import Layout
from operators.messages import Accumulated, Gradient
from operators.partition import Partition, Rotation, RotationState
from operators.vector_state import VectorState
from operators.window import Window, WindowState


def integer_gradient(node: int, number: int, n_weights: int) -> np.ndarray:
    return _drawn(node, number, n_weights).astype(np.float32)


@lru_cache(maxsize=4096)
def _drawn(node: int, number: int, n_weights: int) -> np.ndarray:
    return np.random.default_rng([node, number]).integers(-8, 9, n_weights, dtype=np.int8)


class Zeros(StateElement):
    """A replica that begins with zeros."""

    kind: ClassVar[StateKind] = StateKind.PARTIAL
    n_weights: int

    def create(self, node: NodeContext) -> VectorState:
        return VectorState(np.zeros(self.n_weights, np.float32))


class IntegerCompute(Operator):
    """Makes `rounds` integer updates and, if `local`, applies each to its replica, within the staleness bound."""

    source = True
    n_weights: int
    rounds: int
    slack: int | None = None
    local: bool = True
    gradients = Out(Gradient)
    replica = Writes()
    clocks = Writes()

    def ready(self, clocks: ClocksState) -> bool:
        return self.slack is None or clocks.made <= clocks.slowest() + self.slack

    def process(self, tick: Tick, replica: VectorState, clocks: ClocksState, node: NodeContext) -> Emissions:
        if tick.step == self.rounds:
            yield EndOfData()
            return
        if self.slack is not None:
            assert clocks.made <= clocks.slowest() + self.slack
        clocks.made += 1
        update = integer_gradient(node.index, clocks.made, self.n_weights)
        if self.local:
            replica.values -= update
        yield self.gradients(Gradient(clocks.made, update, 1))


@dataclass(frozen=True, slots=True)
class Beat(Sharded):
    """A gradient is to be made."""


class Beats(Operator):
    """One for each of `rounds` gradients."""

    source = True
    rounds: int
    beats = Out(Beat)

    def process(self, tick: Tick) -> Emissions:
        yield EndOfData() if tick.step == self.rounds else self.beats(Beat(tick.step, tick.shard, tick.shards))


class IntegerGather(Gather):
    """Makes integer updates as steps, which are what nodes count, and applies each to its own replica."""

    n_weights: int
    slack: int = 4
    beats = In(Beat)
    gradients = Out(Gradient)
    replica = Writes()
    clocks = Writes()

    def ready(self, clocks: ClocksState) -> bool:
        return clocks.made <= clocks.slowest() + self.slack

    def process(self, beat: Beat) -> int:
        return beat.shard

    def merge(self, parts: list[int], replica: VectorState, clocks: ClocksState, node: NodeContext) -> Emissions:
        clocks.made += 1
        update = integer_gradient(node.index, clocks.made, self.n_weights)
        replica.values -= update
        yield self.gradients(Gradient(clocks.made, update, 1))


class RestlessPartition(Partition):
    """Changes the number of partitions, and of gradients in a round, with every gradient and measurement."""

    def process(
        self, accumulated: Accumulated, rotation: RotationState, window: WindowState, rng: np.random.Generator
    ) -> Emissions:
        rotation.change(int(rng.integers(1, 7)), int(rng.integers(1, 6)))
        yield from Partition.process(self, accumulated, rotation, window)

    def on_rates(self, rates: Rates, rotation: RotationState, rng: np.random.Generator) -> Emissions:
        rotation.change(int(rng.integers(1, 90)), int(rng.integers(1, 6)))
        yield Sample("measured_s", rates.seconds)


def integer_job(
    p: int,
    *,
    n_weights: int = 997,
    cells: int = 60,
    rounds: int = 7,
    slack: int | None = None,
    restless: bool = False,
    every: int = 1,
) -> LogicalGraph:
    layout = Layout.of(n_weights, cells=cells)
    cost = CostModel(model_nbytes=4 * n_weights, cells=cells, partitions=p, every=every)
    graph = (
        LogicalGraph(name="integers")
        .with_role("worker")
        .with_state("replica", Zeros(n_weights=n_weights), role="worker")
        .with_state("clocks", Clocks(cells=layout.cells, origins="worker", span=p * every), role="worker")
        .with_operator("compute", IntegerCompute(n_weights=n_weights, rounds=rounds, slack=slack), role="worker")
    )
    graph = add_exchange(
        graph, layout, Rotation(receivers="worker", cost=cost), Window(layout=layout, receivers="worker")
    )
    return graph.replace("partition", RestlessPartition(layout=layout)) if restless else graph


def live_graph(n_weights: int, rounds: int, **cost: Any) -> LogicalGraph:
    """Workers whose steps are integer updates, with p and the gradients of a round chosen while they run."""
    layout = Layout.of(n_weights, cells=256)
    model = CostModel(model_nbytes=4 * n_weights, **cost)
    graph = (
        LogicalGraph(name="live")
        .with_role("worker")
        .with_state("replica", Zeros(n_weights=n_weights), role="worker")
        .with_state("clocks", Clocks(cells=layout.cells, origins="worker", span=model.first(0).span), role="worker")
        .with_operator("beats", Beats(rounds=rounds), role="worker")
        .with_operator("compute", IntegerGather(n_weights=n_weights), role="worker")
        .connect("beats", "compute")
    )
    return add_exchange(
        graph, layout, Rotation(receivers="worker", cost=model), Window(layout=layout, receivers="worker")
    )


@lru_cache(maxsize=64)
def expected(nodes: int, rounds: int, n_weights: int) -> np.ndarray:
    """The sum of all updates; to be read only."""
    total = np.zeros(n_weights, np.float32)
    for node in range(nodes):
        for number in range(1, rounds + 1):
            total -= integer_gradient(node, number, n_weights)
    total.flags.writeable = False
    return total


def assert_exact(nodes: list[LoadedNode], rounds: int, n_weights: int) -> None:
    """Every replica is the exact sum, and every clock says so."""
    want = expected(len(nodes), rounds, n_weights)
    for node in nodes:
        np.testing.assert_array_equal(_values(node.states), want)
        clocks = node.states["clocks"]
        assert isinstance(clocks, ClocksState)
        assert clocks.rejected == 0
        assert clocks.made == rounds


def _values(states: Mapping[str, object]) -> np.ndarray:
    replica = states["replica"]
    assert isinstance(replica, VectorState)
    return replica.values
