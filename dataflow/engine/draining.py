"""Leaving a job by request: whether a node may, and what becomes of it. No state but that of the nodes.

A node that is asked to leave is one of `NodeLife.leaves_since`. It makes nothing new, sends the others all that it has
begun, and ends; only then it is taken out of the membership, so that the others lose nothing of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from dataflow.engine.coordination import Command, Leave
from dataflow.engine.membership import Life, Membership

DRAINED: Final = "it was drained"
"""Why a node is a member no more that has left by request."""


def leave_with(nodes: Membership, among: Collection[int]) -> list[Command]:
    """Commands that have those of these nodes leave that were asked to, and run."""
    asked = [node for node in among if nodes[node].leaves_since is not None]
    return [Leave(node) for node in asked if nodes[node].life is Life.ALIVE and nodes[node].running]


def count_from_now(nodes: Membership) -> None:
    """The job begins to run: whoever was asked to leave before has given nobody anything yet."""
    for each in nodes.nodes:
        if each.leaves_since is not None:
            each.leaves_since = nodes.epoch


def others_have_stayed(nodes: Membership, node: int) -> bool:
    """Whether anybody who was a member when a node was asked to leave still is, and so has what it has given."""
    since = nodes[node].leaves_since
    staying = (other for other in nodes.those(Life.ALIVE, Life.ENDED) if other != node)
    return since is not None and any(nodes[other].admitted <= since for other in staying)


def objection(
    nodes: Membership,
    node: int,
    names: Sequence[str],
    roles: Mapping[str, Collection[int]],
) -> str:
    """Why a job that has been placed cannot do without a node, and what to do; empty if it can.

    Args:
        nodes: of the job.
        node: which of them is to leave.
        names: of the nodes.
        roles: the nodes of each role.
    """
    each = nodes[node]
    if each.leaves_since is not None or each.life in (Life.GONE, Life.LEFT):
        return ""
    mine = [role for role, members in roles.items() if node in members]
    wait = "wait until the job is over, or cancel it"
    if node in nodes.irreplaceable & nodes.needed:
        return f"a node of its tree cannot leave it: the others would lose what it has added up; {wait}"
    if node in nodes.needed:
        return f"it holds a part of the model as {' and '.join(mine)}, which no other node has; {wait}"
    there = [other for other in nodes.those(Life.ALIVE, Life.ENDED, Life.JOINING) if nodes[other].leaves_since is None]
    if nodes.epoch:  # it runs: those that are being started again may not come, and have nothing yet
        there = [other for other in there if nodes[other].life is not Life.JOINING]
    staying = {other for other in there if other != node}
    for role in mine:
        if not staying.intersection(roles[role]):
            others = [names[each] for each in roles[role] if each != node and nodes[each].life is not Life.VACANT]
            missing = f"; {', '.join(others)} {'is' if len(others) == 1 else 'are'} not there" if others else ""
            return f"it would be left without any {role}{missing}; {wait}"
    if len(staying) < nodes.min_nodes:
        without = f"min_nodes={nodes.min_nodes}, and without it {len(staying)} would be there"
        return f"{without}; attach another node that can take its place, or {wait}"
    return ""
