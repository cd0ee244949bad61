"""Trees of nodes that make small integer updates, so that every sum is exact whatever its order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ako_jobs.models import network
from ako_jobs.tree import add_sharing
from dataflow.engine.loading import LoadedNode
from dataflow.graph.logical import LogicalGraph
from dataflow.message import Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, EndOfData
from operators.layout import Layout
from operators.messages import Gradient
from operators.neighbours import Absorb, Push
from operators.share_clocks import ShareClocks, ShareClocksState
from operators.shared_replica import SharedReplica
from operators.shared_replica_state import SharedReplicaState
from operators.topology import parse_topology
from tests.known_answers.integers import IntegerCompute, expected, integer_gradient

TOPOLOGIES = ("chain", "star", "twin_masters", "tree(2)")


class SharedZeros(SharedReplica):
    """A shared replica that begins with zeros."""

    def create(self, node: NodeContext) -> SharedReplicaState:
        return self.begin(np.zeros(self.layout.n_weights, np.float32), node)


class SharedCompute(IntegerCompute):
    """Makes integer updates, each of them an update of the replica's own; `given` by node, or random ones."""

    given: tuple[int, ...] = ()

    def process(  # type: ignore[override]
        self, tick: Tick, replica: SharedReplicaState, clocks: ShareClocksState, node: NodeContext
    ) -> Emissions:
        if tick.step == self.rounds:
            yield EndOfData()
            return
        clocks.made += 1
        update = integer_gradient(node.index, clocks.made, self.n_weights)
        if self.given:
            update[:] = -self.given[node.index]
        replica.descend(update, 1.0, scale=True)
        yield self.gradients(Gradient(clocks.made, update, 1))


def tree_job(
    topology: str,
    *,
    n_weights: int = 997,
    cells: int = 60,
    rounds: int = 7,
    slack: int | None = None,
    every: int = 1,
    given: tuple[int, ...] = (),
    period_s: float = 0.0,
    then: str | None = None,
    change_after: int | None = None,
    **shared: Any,
) -> LogicalGraph:
    layout = Layout.of(n_weights, cells=cells)
    replica = SharedZeros(
        model=network("mlp", "digits", "uniform"),
        topology=parse_topology(topology),
        layout=layout,
        then=None if then is None else parse_topology(then),
        every=every,
        flow="period" if period_s else "newest",
        **shared,
    )
    graph = (
        LogicalGraph(name="integers")
        .with_role("worker")
        .with_state("replica", replica, role="worker")
        .with_state("clocks", ShareClocks(waits=slack is not None), role="worker")
        .with_operator(
            "compute", SharedCompute(n_weights=n_weights, rounds=rounds, slack=slack, given=given), role="worker"
        )
    )
    return add_sharing(graph, Push(every=every, change_after=change_after), Absorb(period_s=period_s))


def assert_shared(nodes: Sequence[LoadedNode], rounds: int, n_weights: int) -> None:
    """Every replica is the exact sum of all updates, and every node knows that nothing is missing."""
    want = expected(len(nodes), rounds, n_weights)
    for node in nodes:
        replica = node.states["replica"]
        assert isinstance(replica, SharedReplicaState)
        np.testing.assert_array_equal(replica.values, want)
        assert replica.sharing.through
        np.testing.assert_array_equal(replica.sharing.counts, [rounds] * len(nodes))
