"""Logical graphs as text, Mermaid and DOT: every operator by itself, without nodes."""

from __future__ import annotations

from dataflow.graph.drawing import Box, Drawing, Group, dot, flow_order, mermaid, text
from dataflow.graph.logical import LogicalGraph


def as_text(graph: LogicalGraph) -> str:
    """The graph as text: roles with their operators and state elements, then streams."""
    return text(_drawing(graph))


def as_mermaid(graph: LogicalGraph) -> str:
    """The graph as a Mermaid flowchart, which GitHub renders."""
    return mermaid(_drawing(graph))


def as_dot(graph: LogicalGraph) -> str:
    """The graph in Graphviz's language."""
    return dot(_drawing(graph))


def _drawing(graph: LogicalGraph) -> Drawing:
    rank = flow_order(graph)
    operators = sorted(graph.operators, key=lambda operator: rank[operator.id])
    return Drawing(
        title=graph.name,
        graph=graph,
        groups=tuple(
            Group(
                role=role.name,
                title=f"{role.name} x {role.size}",
                boxes=tuple(Box((o.id,), o.pool) for o in operators if o.role == role.name),
            )
            for role in graph.roles
        ),
    )
