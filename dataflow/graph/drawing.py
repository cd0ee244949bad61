"""Drawings: what a reader sees of a graph or plan, and three ways to write it: text, Mermaid and DOT.

A drawing groups the operators of a graph into boxes (one operator, or the operators of one task) and the boxes into
roles. Edges inside a box are not drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import networkx as nx

from dataflow.graph.logical import LogicalGraph
from dataflow.graph.specs import Edge, ElementSpec


@dataclass(frozen=True, slots=True)
class Box:
    """Operators drawn as one, by id, in order, and the pool they run in."""

    operators: tuple[str, ...]
    pool: str

    @property
    def label(self) -> str:
        """``source + compute``."""
        return " + ".join(self.operators)


@dataclass(frozen=True, slots=True)
class Group:
    """The boxes of one role.

    Args:
        role: its name.
        title: its name and how many nodes play it.
        nodes: the nodes' names, abbreviated; empty if not known.
        tasks: what each node's pools hold; empty if not known.
        boxes: its boxes.
    """

    role: str
    title: str
    boxes: tuple[Box, ...]
    nodes: str = ""
    tasks: str = ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A graph, drawn.

    Args:
        title: what it shows.
        graph: its edges and state elements.
        groups: every role.
        streams: number of streams by the edge's number in the graph; empty if not known.
    """

    title: str
    graph: LogicalGraph
    groups: tuple[Group, ...]
    streams: Mapping[int, int] = field(default_factory=dict)

    def boxes(self) -> dict[str, Box]:
        """The box of every operator."""
        return {name: box for group in self.groups for box in group.boxes for name in box.operators}

    def ids(self) -> dict[Box, str]:
        """A short id of every box."""
        boxes = (box for group in self.groups for box in group.boxes)
        return {box: f"t{number}" for number, box in enumerate(boxes)}

    def local_edges(self) -> Iterator[tuple[Box, Box, Edge]]:
        """Edges between boxes that stay on their node."""
        boxes = self.boxes()
        for edge in self.graph.edges:
            source, target = boxes[edge.source], boxes[edge.target]
            if edge.route is None and source is not target:
                yield source, target, edge

    def stream_edges(self) -> Iterator[tuple[Box, Box, Edge, str]]:
        """Edges that cross nodes, each with its number of streams in words, empty if not known."""
        boxes = self.boxes()
        for number, edge in enumerate(self.graph.edges):
            if edge.route is not None:
                count = counted(self.streams[number], "stream") if number in self.streams else ""
                yield boxes[edge.source], boxes[edge.target], edge, count

    def access(self, box: Box) -> dict[ElementSpec, str]:
        """How a box uses state elements: ``reads``, ``writes`` or ``reads & writes``."""
        uses = [use for name in box.operators for use in self.graph.operator(name).uses]
        found: dict[ElementSpec, str] = {}
        for element in self.graph.elements:
            modes = {use.writes for use in uses if use.element == element.name}
            if modes:
                found[element] = " & ".join(("writes" if mode else "reads") for mode in sorted(modes))
        return found


def flow_order(graph: LogicalGraph) -> dict[str, int]:
    """Rank of every operator in a list that runs along the local edges, else in the graph's order."""
    given = {operator.id: number for number, operator in enumerate(graph.operators)}
    local: nx.DiGraph[str] = nx.DiGraph()
    local.add_nodes_from(given)
    local.add_edges_from((edge.source, edge.target) for edge in graph.edges if edge.route is None)
    if not nx.is_directed_acyclic_graph(local):
        return given
    return {name: rank for rank, name in enumerate(nx.lexicographical_topological_sort(local, given.__getitem__))}


def counted(count: int, noun: str) -> str:
    """``1 stream``, ``56 streams``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def text(drawing: Drawing) -> str:
    """The drawing as aligned lines, ending in a newline."""
    lines = [drawing.title]
    after: dict[Box, list[str]] = {}
    for source, target, _ in drawing.local_edges():
        after.setdefault(source, []).append(target.operators[0])
    for group in drawing.groups:
        nodes = f" ({group.nodes})" if group.nodes else ""
        lines += ["", group.title + nodes + (f", {group.tasks}" if group.tasks else "")]
        lines += _table(
            (
                f"[{box.label}]" + (f" -> {', '.join(dict.fromkeys(after[box]))}" if box in after else ""),
                box.pool,
                _uses(drawing.access(box)),
            )
            for box in group.boxes
        )
        lines += _table(
            (f"state {element.name}", str(element.kind), _users(drawing.graph, element))
            for element in drawing.graph.elements
            if element.role == group.role
        )
    streams = [
        (
            f"{edge.source}.{edge.output} ===> {edge.target}.{edge.input}",
            _route(edge),
            f"{drawing.graph.operator(edge.source).role} -> {drawing.graph.operator(edge.target).role}",
            count,
        )
        for _, _, edge, count in drawing.stream_edges()
    ]
    if streams:
        lines += ["", "streams", *_table(streams)]
    return "\n".join(lines) + "\n"


def mermaid(drawing: Drawing) -> str:
    """The drawing as a Mermaid flowchart: thick arrows are streams, dotted ones state access."""
    ids, elements = drawing.ids(), _element_ids(drawing.graph)
    lines = ["flowchart LR"]
    for number, group in enumerate(drawing.groups):
        lines.append(f'  subgraph r{number}["{_mermaid_label(group.title, group.nodes)}"]')
        lines += [f'    {ids[box]}["{_mermaid_label(box.label, f"{box.pool} pool")}"]' for box in group.boxes]
        lines += [
            f'    {elements[element]}[("{_mermaid_label(element.name, element.kind)}")]'
            for element in drawing.graph.elements
            if element.role == group.role
        ]
        lines.append("  end")
    for source, target, edge in drawing.local_edges():
        lines.append(f'  {ids[source]} -->|"{_mermaid_label(_type(drawing.graph, edge))}"| {ids[target]}')
    for source, target, edge, count in drawing.stream_edges():
        lines.append(f'  {ids[source]} ==>|"{_mermaid_label(_route(edge), count)}"| {ids[target]}')
    for box, id_ in ids.items():
        for element, verb in drawing.access(box).items():
            start, end = (elements[element], id_) if verb == "reads" else (id_, elements[element])
            lines.append(f"  {start} {'<-.->' if '&' in verb else '-.->'} {end}")
    return "\n".join(lines) + "\n"


def dot(drawing: Drawing) -> str:
    """The drawing in Graphviz's language: thick arrows are streams, dotted ones state access."""
    ids, elements = drawing.ids(), _element_ids(drawing.graph)
    lines = [f"digraph {_dot_label(drawing.title)} {{", "  rankdir=LR;", "  node [shape=box];"]
    for number, group in enumerate(drawing.groups):
        lines += [f"  subgraph cluster_{number} {{", f"    label={_dot_label(group.title, group.nodes)};"]
        lines += [f"    {ids[box]} [label={_dot_label(box.label, f'{box.pool} pool')}];" for box in group.boxes]
        lines += [
            f"    {elements[element]} [label={_dot_label(element.name, element.kind)}, shape=cylinder];"
            for element in drawing.graph.elements
            if element.role == group.role
        ]
        lines.append("  }")
    for source, target, edge in drawing.local_edges():
        lines.append(f"  {ids[source]} -> {ids[target]} [label={_dot_label(_type(drawing.graph, edge))}];")
    for source, target, edge, count in drawing.stream_edges():
        lines.append(f"  {ids[source]} -> {ids[target]} [label={_dot_label(_route(edge), count)}, penwidth=3];")
    for box, id_ in ids.items():
        for element, verb in drawing.access(box).items():
            start, end = (elements[element], id_) if verb == "reads" else (id_, elements[element])
            lines.append(f"  {start} -> {end} [style=dotted{', dir=both' if '&' in verb else ''}];")
    return "\n".join((*lines, "}")) + "\n"


def _table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  " + "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    ]


def _uses(access: Mapping[ElementSpec, str]) -> str:
    """``reads & writes model (partial), clocks (local); reads epoch (local)``."""
    by_verb: dict[str, list[str]] = {}
    for element, verb in access.items():
        by_verb.setdefault(verb, []).append(f"{element.name} ({element.kind})")
    return "; ".join(f"{verb} {', '.join(names)}" for verb, names in by_verb.items())


def _users(graph: LogicalGraph, element: ElementSpec) -> str:
    """``written by compute, apply; read by validate``."""
    rank, parts = flow_order(graph), []
    for writes, verb in ((True, "written by"), (False, "read by")):
        users = (o.id for o in graph.operators if any((u.element, u.writes) == (element.name, writes) for u in o.uses))
        names = sorted(users, key=rank.__getitem__)
        parts += [f"{verb} {', '.join(names)}"] if names else []
    return "; ".join(parts)


def _element_ids(graph: LogicalGraph) -> dict[ElementSpec, str]:
    return {element: f"e{number}" for number, element in enumerate(graph.elements)}


def _route(edge: Edge) -> str:
    key = f" ({edge.key})" if edge.key else ""
    return f"{edge.route}{key}" + (" + self" if edge.loopback else "")


def _type(graph: LogicalGraph, edge: Edge) -> str:
    return graph.operator(edge.source).output(edge.output).types[0].rpartition(":")[2]


def _mermaid_label(*rows: str) -> str:
    """Rows of a quoted label. Mermaid writes special characters as ``#name;`` or ``#code;``."""
    special: dict[str, str | int | None] = {
        "#": "#35;",
        "&": "#amp;",
        '"': "#quot;",
        "<": "#lt;",
        ">": "#gt;",
        "`": "#96;",
        "\n": " ",
    }
    return "<br/>".join(row.translate(str.maketrans(special)) for row in rows if row)


def _dot_label(*rows: str) -> str:
    escaped = (row.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") for row in rows if row)
    return '"' + "\\n".join(escaped) + '"'
