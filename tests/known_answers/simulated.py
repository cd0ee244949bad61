"""Runs graphs in the simulator, with the times of their tasks given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dataflow.graph.logical import LogicalGraph
from dataflow.observe.events import JobEvent
from dataflow.plan.job import JobSpec, StopRules
from dataflow.sim.costs import TaskKind
from dataflow.sim.faults import parse_fault
from dataflow.sim.model import ClusterModel
from dataflow.sim.run import SimRun
from dataflow.sim.simulator import Simulator

STEP_S = 0.01

ROLES = {"message": 0.1, "step": 1.0, "shard": 1.0, "merge": 0.1}
"""Shares of `STEP_S` that tasks take."""


def simulator(
    graph: LogicalGraph,
    nodes: int,
    *,
    seed: int = 0,
    faults: tuple[str, ...] = (),
    min_nodes: int = 1,
    max_nodes: int | None = None,
    record: bool = False,
    on_event: Callable[[JobEvent], None] = lambda event: None,
    **model: Any,
) -> Simulator:
    """A simulator in which every task takes time, gamma-distributed unless `model` says otherwise."""
    means = {
        TaskKind(operator.id, role, first): share * STEP_S
        for operator in graph.operators
        for role, share in ROLES.items()
        for first in (True, False)
    }
    cluster = ClusterModel(faults=tuple(map(parse_fault, faults)), **{"compute": "gamma", **model})
    spec = JobSpec(
        name="test",
        graph=graph,
        nodes=nodes,
        seed=seed,
        stop=StopRules(),
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        record=record,
    )
    return Simulator(spec, cluster, means, on_event)


def simulate(graph: LogicalGraph, nodes: int, **how: Any) -> SimRun:
    """The finished run of a graph; see `simulator`."""
    run = simulator(graph, nodes, **how).run()
    assert run.state == "FINISHED", run.reason
    return run
