"""Joining a job that runs: which places a node may take that has never been in it. Pure functions.

A job has as many places as its plan has nodes. Those that nobody has at the start are vacant: to the others their nodes
have left. Whoever takes a place joins like a node that comes back, as the place's next incarnation.
"""

from __future__ import annotations

from dataflow.engine.membership import Life, Membership


def open_places(nodes: Membership, now: float) -> tuple[int, ...]:
    """Places that are open: those that nobody ever had, and then of nodes that left, were given up or stay away.

    None is once a node has ended: who comes then would have nothing left to do. Nor is that of a node which is never
    started again: what it lacks then, who takes its place lacks as well.
    """
    if nodes.those(Life.ENDED) or not any(nodes[node].running for node in nodes.those(Life.ALIVE)):
        return ()
    away = (node for node in nodes.those(Life.AWAY) if now >= nodes[node].due_s)
    found = (*nodes.those(Life.VACANT), *nodes.those(Life.LEFT), *nodes.those(Life.GONE), *away)
    return tuple(node for node in found if node not in nodes.needed | nodes.irreplaceable)
