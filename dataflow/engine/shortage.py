"""Why a job cannot go on with the nodes that are left, and which node is the cause. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dataflow.engine.membership import Life, Membership


def nobody_left(nodes: Membership, names: Sequence[str], causes: Mapping[int, str]) -> tuple[str, int] | None:
    """That all nodes of a job that has begun have died, for people, and which did so last; None if they have not.

    What was learnt is gone with them, but for checkpoints. So it is if those alone have ended that were there for
    others: they end, too, when of these some have left by request and the last one dies; and if those alone have ended
    that have left the last work to one that has died in it. Arguments as for `shortage`.
    """
    ended, served = {node for node in nodes.those(Life.ENDED) if not nodes[node].has_left_it}, nodes.served()
    is_through = ended & served if served else ended
    if not nodes.epoch or nodes.those(Life.ALIVE) or is_through or not causes:
        return None
    last, cause = list(causes.items())[-1]
    if any(nodes[node].has_left_it for node in nodes.those(Life.ENDED)):
        return f"node {names[last]} died in the last work of the job, which the others had left to it: {cause}", last
    return f"all its nodes have died, the last of them node {names[last]}: {cause}", last


def shortage(nodes: Membership, names: Sequence[str], causes: Mapping[int, str], now: float) -> tuple[str, int] | None:
    """Why a job some of whose nodes are left cannot go on, for people, and the node that is the cause; None if it can.

    The cause is the node that died last, and no node that has left by request: that had been looked at before.

    Args:
        nodes: of the job.
        names: of the nodes.
        causes: why each dead node died; that which died last comes last.
        now: seconds on the clock of the coordinator.
    """
    lacking = nodes.lacks(now)
    if not lacking:
        return None
    order = [node for node in causes if node in lacking]
    node = max(order, key=lambda node: (nodes[node].life is not Life.LEFT, order.index(node)))
    held = "; what it held is nowhere else: ako resume goes on from a checkpoint"
    lost = held if node in nodes.irreplaceable & nodes.needed else ""
    return f"node {names[node]}{nodes.tried(node)}: {causes[node]}{lost}", node
