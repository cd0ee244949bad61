"""Compile a logical graph to a physical plan: place roles, fuse chains."""

from __future__ import annotations

import networkx as nx

from dataflow.graph.logical import LogicalGraph, OperatorSpec
from dataflow.plan.physical import ChainPlan, NodePlan, PhysicalPlan
from dataflow.plan.placement import place


def compile_graph(
    graph: LogicalGraph,
    nodes: int,
    *,
    compute_tasks: int = 1,
    network_tasks: int = 1,
    seed: int = 0,
    names: tuple[str, ...] = (),
) -> PhysicalPlan:
    """The physical plan of `graph` on `nodes` nodes.

    Args:
        graph: a graph that passed `dataflow.graph.checks.check`.
        nodes: how many nodes.
        compute_tasks: tasks of each node's compute pool.
        network_tasks: tasks of each node's network pool.
        seed: root of every random number of the job.
        names: the nodes' names; ``node-0`` ... if left out.

    Raises:
        PlanError: the roles do not fit the number of nodes.
    """
    placed = place(graph, nodes)
    return PhysicalPlan(
        graph=graph,
        nodes=tuple(
            NodePlan(
                index=index,
                name=names[index] if names else f"node-{index}",
                roles=tuple(role for role, members in placed.items() if index in members),
                compute_tasks=compute_tasks,
                network_tasks=network_tasks,
            )
            for index in range(nodes)
        ),
        chains=chains(graph),
        seed=seed,
    )


def chains(graph: LogicalGraph) -> tuple[ChainPlan, ...]:
    """Runs of operators that become one task each.

    An edge is fused when it stays on its node, is the only one at both its ports, joins operators of one pool, and
    no state element is written by one operator of the chain and read by another: a task's snapshots are taken when
    it starts.
    """
    runs: dict[str, list[OperatorSpec]] = {}
    run_of: dict[str, list[OperatorSpec]] = {}
    for operator in _upstream_first(graph):
        entering = [edge for edge in graph.edges if edge.target == operator.id]
        run = run_of.get(entering[0].source) if len(entering) == 1 and entering[0].route is None else None
        if run is None or not _fusible(graph, run, operator):
            run = runs[operator.id] = []
        run.append(operator)
        run_of[operator.id] = run
    return tuple(
        ChainPlan(operators=tuple(member.id for member in run), role=run[0].role, pool=run[0].pool)
        for run in (runs[operator.id] for operator in graph.operators if operator.id in runs)
    )


def _upstream_first(graph: LogicalGraph) -> list[OperatorSpec]:
    local: nx.DiGraph[str] = nx.DiGraph()
    local.add_nodes_from(operator.id for operator in graph.operators)
    local.add_edges_from((edge.source, edge.target) for edge in graph.edges if edge.route is None)
    return [graph.operator(name) for name in nx.topological_sort(local)]


def _fusible(graph: LogicalGraph, run: list[OperatorSpec], operator: OperatorSpec) -> bool:
    """Whether `operator`, whose one input comes from the last of `run`, can be run in the same task."""
    last = run[-1]
    alone = sum(edge.source == last.id for edge in graph.edges) == 1
    queued = operator.sends or any(port.key or port.latest for port in operator.inputs)
    if last.gather or queued or not alone or last.pool != operator.pool:
        return False
    uses = [use for member in run for use in member.uses]
    if operator.gather and uses:
        return False  # the parts of a step run at the same time
    return all(
        mine.writes == theirs.writes for mine in operator.uses for theirs in uses if mine.element == theirs.element
    )
