"""Changing a tree while its nodes share parameters: a connected region is replaced, the rest goes on (3.3).

The model is the sum of all x, so it is kept if the nodes that take a region's place have as much in their x together.
Nodes of the region begin again with what they have as x, and tell nobody anything before they have heard what lies on
the other sides; a node outside goes on believing what it was told until its new neighbour has spoken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import networkx as nx
import numpy as np

from operators.contribution import Total, together
from operators.share import Sharing
from operators.topology import Edges, behind


def region(before: Edges, after: Edges) -> frozenset[int]:
    """The smallest connected part of a tree that must be replaced to make another of it; empty if they are equal.

    A node that has one neighbour in the part before, and one after, is not of it: to this node, one has taken the
    other's place.

    Args:
        before: edges of the tree as it is.
        after: edges of the tree as it is to be.
    """
    old: nx.Graph[int] = nx.Graph(before)
    new: nx.Graph[int] = nx.Graph(after)
    changed = {node for edge in set(before) ^ set(after) for node in edge}
    inside = changed & set(old)
    if inside:
        start = min(inside)
        inside = {node for other in inside for node in nx.shortest_path(old, start, other)}
    part, spared = inside | changed, set[int]()
    for node in sorted(inside & set(new)):
        near = [{other for other in graph[node] if other in part} for graph in (old, new)]
        if all(len(others) == 1 and not others & spared for others in near) and len(inside) - len(spared) > 1:
            spared.add(node)
    return frozenset(inside - spared)


def replace(
    sharings: Mapping[int, Sharing], before: Edges, after: Edges, *, heir: int, epoch: int, n_counts: int
) -> dict[int, Sharing]:
    """What the nodes of a tree are once a part of it has been replaced; those outside the region are changed in place.

    Args:
        sharings: by node, of the tree as it was.
        before: edges of the tree as it was.
        after: edges of the tree as it is to be.
        heir: the node of `after` that takes over x of nodes that are not in it.
        epoch: of the edges that the region has then: higher than any before.
        n_counts: nodes that updates are counted of.
    """
    retired = region(before, after)
    nodes = {node for edge in after for node in edge}
    joined = (retired & nodes) | (nodes - sharings.keys())
    owns = {node: sharings[node].own for node in retired}
    left = {node: sharing for node, sharing in sharings.items() if node not in retired}
    for node, sharing in left.items():
        _turn(sharing, retired, joined, behind(after, node), epoch)
    values = next(iter(sharings.values())).own.values
    nothing = Total(np.zeros_like(values), np.zeros(n_counts, np.int64))
    for node in joined:
        kept = [owns[node]] if node in owns else []
        inherited = _orphans(owns, nodes) if node == heir else []
        own = together([nothing, *kept, *inherited])
        left[node] = Sharing(node, behind(after, node), own, epoch=epoch, heard=False)
    return left


def rewire(sharing: Sharing, before: Edges, after: Edges, *, epoch: int) -> None:
    """What one node does when the edges among the same nodes are changed; each can do it at a moment of its own.

    Args:
        sharing: the node's.
        before: edges of the tree as it is.
        after: edges of the tree as it is to be.
        epoch: of the edges that are changed: higher than any before.
    """
    retired, now = region(before, after), behind(after, sharing.node)
    if sharing.node in retired:
        sharing.begin_again(now, epoch=epoch)
    else:
        _turn(sharing, retired, retired, now, epoch)


def _turn(
    sharing: Sharing,
    retired: Collection[int],
    joined: Collection[int],
    now: Mapping[int, tuple[int, ...]],
    epoch: int,
) -> None:
    """Have a node outside the region talk to the one that has come to be its neighbour there."""
    for neighbour in [each for each in now if each in joined]:
        gone = next((each for each in sharing.sides if each in retired and each not in now), neighbour)
        sharing.meet(neighbour, now[neighbour], epoch=epoch, instead_of=gone)
    sharing.redraw(now)


def _orphans(owns: Mapping[int, Total], nodes: Collection[int]) -> Iterable[Total]:
    return [total for node, total in owns.items() if node not in nodes]
