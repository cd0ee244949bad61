"""Physical plans as text, Mermaid and DOT: tasks instead of operators, nodes by name, streams counted."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dataflow.graph.drawing import Box, Drawing, Group, counted, dot, flow_order, mermaid, text
from dataflow.plan.physical import NodePlan, PhysicalPlan


def plan_text(plan: PhysicalPlan) -> str:
    """The plan as text, what ``ako plan`` prints: roles with their tasks and state elements, then streams."""
    return text(_drawing(plan))


def plan_mermaid(plan: PhysicalPlan) -> str:
    """The plan as a Mermaid flowchart, which GitHub renders."""
    return mermaid(_drawing(plan))


def plan_dot(plan: PhysicalPlan) -> str:
    """The plan in Graphviz's language."""
    return dot(_drawing(plan))


def abbreviate(names: Sequence[str]) -> str:
    """Names in a line: runs of three or more numbered ones as ``node-0 .. node-7``, at most eight items."""
    runs: list[list[str]] = []
    for name in names:
        if runs and name == _next(runs[-1][-1]):
            runs[-1].append(name)
        else:
            runs.append([name])
    items = [item for run in runs for item in ([f"{run[0]} .. {run[-1]}"] if len(run) > 2 else run)]
    if len(items) > 8:
        items = [*items[:7], f"... ({len(names)} names)"]
    return ", ".join(items)


def _next(name: str) -> str | None:
    """The name that follows in a numbered run, if this one ends in a number."""
    found = re.fullmatch(r"(.*?)([0-9]+)", name)
    return found and f"{found[1]}{int(found[2]) + 1:0{len(found[2])}d}"


def _drawing(plan: PhysicalPlan) -> Drawing:
    rank = flow_order(plan.graph)
    chains = sorted(plan.chains, key=lambda chain: rank[chain.head])
    members = plan.members()
    groups = []
    for role in plan.graph.roles:
        nodes = [node for node in plan.nodes if role.name in node.roles]
        groups.append(
            Group(
                role=role.name,
                title=f"{role.name} x {len(nodes)}",
                nodes=abbreviate([node.name for node in nodes]),
                tasks=_tasks(nodes),
                boxes=tuple(Box(chain.operators, chain.pool) for chain in chains if chain.role == role.name),
            )
        )
    return Drawing(
        title=f"{plan.graph.name} on {counted(len(plan.nodes), 'node')}",
        graph=plan.graph,
        groups=tuple(groups),
        streams={number: _pairs(*plan.graph.ends(edge, members)) for number, edge in plan.stream_edges().items()},
    )


def _pairs(sources: Sequence[int], targets: Sequence[int]) -> int:
    """Pairs of different nodes, without listing them."""
    return len(sources) * len(targets) - len({*sources} & {*targets})


def _tasks(nodes: Sequence[NodePlan]) -> str:
    """``2 compute tasks, 1 network task each``, or the range where nodes differ."""
    pools = (
        ("compute", {node.compute_tasks for node in nodes}),
        ("network", {node.network_tasks for node in nodes}),
    )
    words = []
    for pool, counts in pools:
        low, high = min(counts), max(counts)
        words.append(counted(low, f"{pool} task") if low == high else f"{low} to {high} {pool} tasks")
    return ", ".join(words) + " each"
