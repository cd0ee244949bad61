"""Placement: which nodes play which role."""

from __future__ import annotations

from dataflow.errors import PlanError
from dataflow.graph.logical import LogicalGraph


def place(graph: LogicalGraph, nodes: int) -> dict[str, tuple[int, ...]]:
    """Node numbers of every role.

    Roles with a fixed size and the one role of size ``rest`` take disjoint runs of nodes, in the graph's order;
    roles of size ``all`` are on every node.

    Args:
        graph: its roles are placed.
        nodes: how many nodes there are.

    Raises:
        PlanError: a size is below 1, or the sizes do not add up to `nodes`.
    """
    if nodes < 1:
        raise PlanError(what="a job needs at least one node", got=nodes, fix="give --nodes 1 or more")
    for role in graph.roles:
        if isinstance(role.size, int) and role.size < 1:
            raise PlanError(what=f"role {role.name!r} has no nodes", got=role.size, fix="give it at least 1")
    fixed = sum(role.size for role in graph.roles if isinstance(role.size, int))
    rests = [role.name for role in graph.roles if role.size == "rest"]
    if len(rests) > 1:
        raise PlanError(
            what="only one role can take the rest of the nodes", got=rests, fix="give the others a number of nodes"
        )
    rest = nodes - fixed
    if rest < (1 if rests else 0):
        sizes = ", ".join(f"{role.name}={role.size}" for role in graph.roles)
        what = f"the roles of {graph.name!r} ({sizes}) need at least {fixed + len(rests)} nodes"
        raise PlanError(what, got=nodes, fix=f"give --nodes {fixed + len(rests)} or more")
    if rest > 0 and not rests and not any(role.size == "all" for role in graph.roles):
        what = f"the roles of {graph.name!r} leave {rest} of {nodes} nodes without work"
        raise PlanError(what, got=nodes, fix=f"give --nodes {fixed}, or make one role's size 'rest'")
    placed: dict[str, tuple[int, ...]] = {}
    first = 0
    for role in graph.roles:
        if role.size == "all":
            placed[role.name] = tuple(range(nodes))
            continue
        size = rest if role.size == "rest" else role.size
        placed[role.name] = tuple(range(first, first + size))
        first += size
    return placed
