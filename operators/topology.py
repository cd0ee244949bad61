"""Trees: who talks to whom in parameter sharing (parameter_sharing_tree.txt, 3.6 and 4)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import networkx as nx
from pydantic import BaseModel, ConfigDict, Field

from dataflow.errors import ConfigError

Edges = tuple[tuple[int, int], ...]

KINDS = ("chain", "star", "twin_masters")
_DIGITS = 9
"""Most of a rank in a file: no job has so many nodes."""

_FORMS = "chain, star, twin_masters, tree(2), or a file with an edge such as 0 1 on each line"


class Topology(BaseModel):
    """A tree over the nodes of a role, by their ranks.

    Args:
        kind: ``chain``: each rank with the next; ``star``: all with rank 0; ``twin_masters``: ranks 0 and 1 with each
            other, and the others dealt out to the two; ``tree``: each with up to `degree` below it; or ``edges``.
        degree: of a ``tree``.
        edges: pairs of ranks, of ``edges``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["chain", "star", "twin_masters", "tree", "edges"] = "chain"
    degree: int = Field(default=2, ge=1)
    edges: Edges = ()

    def of(self, size: int) -> Edges:
        """The edges among so many ranks, each from the lower rank to the higher, ascending.

        Raises:
            ConfigError: the edges given are no tree over these ranks; the message names a cycle, or what is apart.
        """
        match self.kind:
            case "chain":
                return tuple((rank - 1, rank) for rank in range(1, size))
            case "star":
                return tuple((0, rank) for rank in range(1, size))
            case "twin_masters":
                return tuple((0 if rank == 1 else rank % 2, rank) for rank in range(1, size))
            case "tree":
                return tuple(((rank - 1) // self.degree, rank) for rank in range(1, size))
            case "edges":
                require_tree(self.edges, size)
                return tuple(sorted((min(edge), max(edge)) for edge in self.edges))


def parse_topology(text: str) -> Topology:
    """A topology written as ``chain``, ``star``, ``twin_masters``, ``tree(3)`` or as the path of a file.

    A file has an edge per line: two ranks with a space between them; what follows a ``#`` is left out.

    Raises:
        ConfigError: it is none of these, or the file is not as it must be, or has a cycle.
    """
    if text in KINDS:
        return Topology.model_validate({"kind": text})
    if tree := re.fullmatch(r"tree\((\d{1,4})\)", text):
        if not int(tree[1]):
            raise ConfigError(what="every node of a tree has at least one below it", got=text, fix="write tree(2)")
        return Topology(kind="tree", degree=int(tree[1]))
    try:
        path = Path(text).expanduser()
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else None
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a home directory that nobody has
        what = f"the topology's file cannot be read: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(what, got=text, fix=f"use {_FORMS}") from error
    if lines is None:
        raise ConfigError(what="there is no such topology, nor a file of that name", got=text, fix=f"use {_FORMS}")
    return Topology(kind="edges", edges=_parsed(lines, path))


def require_tree(edges: Sequence[tuple[int, int]], size: int) -> None:
    """Nothing, if edges make a tree of ranks 0 to `size` - 1.

    Raises:
        ConfigError: they do not; the message names a cycle, or the ranks that are apart from rank 0.
    """
    graph: nx.Graph[int] = nx.Graph()
    graph.add_edges_from(edges)
    graph.add_nodes_from(range(size))
    unknown = sorted({rank for edge in edges for rank in edge} - set(range(size)))
    if unknown:
        fix = f"there are {size} nodes; name them 0 to {size - 1}"
        raise ConfigError(what="the topology names a node that does not exist", got=unknown[0], fix=fix)
    require_no_cycle(edges)
    apart = [rank for rank in range(size) if not nx.has_path(graph, 0, rank)]
    if apart:
        names = ", ".join(map(str, apart))
        fix = f"connect {apart[0]} with one of the others"
        raise ConfigError(what=f"the topology is not connected: no edges lead from node 0 to {names}", fix=fix)


def require_no_cycle(edges: Sequence[tuple[int, int]]) -> None:
    """Nothing, if there is one way at most from a node to another.

    Raises:
        ConfigError: there are two; the message names the cycle.
    """
    seen: nx.Graph[int] = nx.Graph()
    for one, other in edges:
        seen.add_nodes_from((one, other))
        if one == other or nx.has_path(seen, one, other):
            way = [one] if one == other else nx.shortest_path(seen, one, other)
            cycle = " - ".join(map(str, (*way, one)))
            what = f"the topology has a cycle: {cycle}; updates would be counted again each time they go round"
            raise ConfigError(what, fix=f"leave out one of its edges, such as {one} {other}")
        seen.add_edge(one, other)


@cache
def behind(edges: Edges, node: int) -> Mapping[int, tuple[int, ...]]:
    """By neighbour of `node`, the nodes that are reached through it, itself first, then ascending."""
    graph: nx.Graph[int] = nx.Graph(edges)
    if node not in graph:
        return {}
    neighbours = sorted(graph[node])
    graph.remove_node(node)
    found = {neighbour: nx.node_connected_component(graph, neighbour) for neighbour in neighbours}
    return {neighbour: (neighbour, *sorted(nodes - {neighbour})) for neighbour, nodes in found.items()}


@dataclass(frozen=True, slots=True)
class Bereaved:
    """Those that were neighbours of a node that is dead.

    Args:
        heir: the one that the others are joined to.
        others: these, ascending.
    """

    heir: int
    others: tuple[int, ...]

    def __contains__(self, node: int) -> bool:
        return node == self.heir or node in self.others

    def without(self, node: int) -> tuple[int, ...]:
        """All but one of them."""
        return tuple(each for each in (self.heir, *self.others) if each != node)


def left_of(edges: Edges, dead: frozenset[int]) -> Edges:
    """The tree that is left of one of whose nodes some are dead.

    It is gone through from its lowest node, branch after branch. The first node that is left is the root; each of the
    others is joined to the nearest of those above it that are left, or else to the root. So it does not matter in which
    order they died, and a death changes no edges but those of the dead node.
    """
    if not edges:
        return ()
    above = _above(edges)
    left = [node for node in above if node not in dead]
    found = []
    for node in left[1:]:
        over = above[node]
        while over is not None and over in dead:
            over = above[over]
        other = left[0] if over is None else over
        found.append((min(node, other), max(node, other)))
    return tuple(sorted(found))


def bereaved(edges: Edges, dead: frozenset[int], node: int) -> Bereaved | None:
    """Who was a neighbour of a node as it died, and others were dead already; None if nobody was."""
    near = behind(left_of(edges, dead), node)
    if not near:
        return None
    above = _above(edges)
    order = [each for each in above if each in near or each == node]
    # What is above it comes before it, and only that.
    heir = order[0] if order[0] != node else order[1]
    return Bereaved(heir, tuple(sorted(each for each in near if each != heir)))


@cache
def _above(edges: Edges) -> Mapping[int, int | None]:
    """By node, in the order in which a tree is gone through from its lowest node, the one above it; None: the root."""
    root = min(node for edge in edges for node in edge)
    graph: nx.Graph[int] = nx.Graph(edges)
    found: dict[int, int | None] = {root: None}
    waiting = [(root, each) for each in sorted(graph[root], reverse=True)]
    while waiting:
        over, node = waiting.pop()
        found[node] = over
        waiting += [(node, each) for each in sorted(graph[node], reverse=True) if each != over]
    return found


def _parsed(lines: Sequence[str], path: Path) -> Edges:
    edges: list[tuple[int, int]] = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or not all(word.isdecimal() and len(word) <= _DIGITS for word in words):
            fix = "write an edge as two numbers, such as 0 1"
            raise ConfigError(what="this line of the topology is no edge", got=line, where=f"{path}:{number}", fix=fix)
        edges.append((int(words[0]), int(words[1])))
    require_no_cycle(edges)
    return tuple(edges)
