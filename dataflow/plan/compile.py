"""Compile a logical graph to a physical plan: place roles, fuse chains."""

from __future__ import annotations

from collections import Counter
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from dataflow.errors import PlanError
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.specs import Edge, OperatorSpec, UseSpec
from dataflow.plan.physical import ChainPlan, NodePlan, PhysicalPlan, check_size
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
        compute_tasks: tasks of each node's compute pool, at least 1.
        network_tasks: tasks of each node's network pool, at least 1.
        seed: root of every random number of the job, at least 0.
        names: the nodes' names, each once; ``node-0`` ... if left out.

    Raises:
        PlanError: the roles do not fit the number of nodes, or a number or name is not as said above.
    """
    check_size(nodes, len(graph.operators))
    for what, number, least in (
        ("compute_tasks", compute_tasks, 1),
        ("network_tasks", network_tasks, 1),
        ("seed", seed, 0),
    ):
        if number < least:
            raise PlanError(what=f"{what} is at least {least}", got=number)
    if names and (len(names) != nodes or len(set(names)) != nodes):
        raise PlanError(what=f"{nodes} nodes need {nodes} different names", got=names, fix="leave the names out")
    roles: list[list[str]] = [[] for _ in range(nodes)]
    for role, members in place(graph, nodes).items():
        for index in members:
            roles[index].append(role)
    return PhysicalPlan(
        graph=graph,
        nodes=tuple(
            NodePlan(
                index=index,
                name=names[index] if names else f"node-{index}",
                roles=tuple(roles[index]),
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

    An edge is fused when all of these hold:

    - it stays on its node;
    - it is the only edge into its target, and the only one out of its source;
    - it joins operators of one pool;
    - neither end gathers: the parts of a step run at the same time, and are merged before anything follows;
    - its target does not send, and its port has neither `key` nor `latest`: those wait in queues of their own;
    - no state element is written by one operator of the chain and read by another: a task's snapshots are taken
      when it starts;
    - its target reads no state element that nothing before it in the chain uses: snapshots would be taken for every
      message, also for those that never come so far.

    A chain that begins with a source and leads to a gathering operator runs in the network pool: what a step needs is
    read while the compute tasks are at the step before.

    Raises:
        PlanError: operators form a cycle on their node.
    """
    into: dict[str, list[Edge]] = {}
    leaving = Counter(edge.source for edge in graph.edges)
    for edge in graph.edges:
        into.setdefault(edge.target, []).append(edge)
    gathering = {operator.id for operator in graph.operators if operator.gather}
    feeding = {edge.source for edge in graph.edges if edge.target in gathering and edge.route is None}
    runs: dict[str, _Run] = {}
    run_of: dict[str, _Run] = {}
    for operator in _upstream_first(graph):
        edges = into.get(operator.id, [])
        alone = len(edges) == 1 and edges[0].route is None and leaving[edges[0].source] == 1
        run = run_of[edges[0].source] if alone else None
        if run is None or not _fusible(run, operator):
            run = runs[operator.id] = _Run([], [])
        run.operators.append(operator)
        run.uses.extend(operator.uses)
        run_of[operator.id] = run
    return tuple(
        ChainPlan(
            operators=tuple(member.id for member in run.operators),
            role=run.operators[0].role,
            pool="network" if run.operators[0].source and run.operators[-1].id in feeding else run.operators[0].pool,
        )
        for run in (runs[operator.id] for operator in graph.operators if operator.id in runs)
    )


class _Run(NamedTuple):
    """Operators that become one task, and their uses of state."""

    operators: list[OperatorSpec]
    uses: list[UseSpec]


def _upstream_first(graph: LogicalGraph) -> list[OperatorSpec]:
    # Not by networkx: job processes import this, and most of them need it for nothing else.
    operators = {operator.id: operator for operator in graph.operators}
    local = TopologicalSorter[str](dict.fromkeys(operators, ()))
    for edge in graph.edges:
        if edge.route is None:
            local.add(edge.target, edge.source)
    try:
        return [operators[name] for name in local.static_order()]
    except CycleError:
        what = f"operators of {graph.name!r} form a cycle that stays on its node"
        raise PlanError(what, fix="check(graph) names it") from None


def _fusible(run: _Run, operator: OperatorSpec) -> bool:
    """Whether `operator`, alone behind the last of `run` on its node, can be run in the same task."""
    last = run.operators[-1]
    queued = operator.sends or any(port.key or port.latest for port in operator.inputs)
    if last.gather or operator.gather or queued or last.pool != operator.pool:
        return False
    return all(_shared(run, use) for use in operator.uses)


def _shared(run: _Run, use: UseSpec) -> bool:
    """Whether a task of `run` can serve one more use of state: as it does already, or for writing only."""
    before = {other.writes for other in run.uses if other.element == use.element}
    return before == {use.writes} or (use.writes and not before)
