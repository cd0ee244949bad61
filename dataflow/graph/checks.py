"""Checks of a logical graph: everything that is wrong with it, in one error.

The checks read the graph's data only: they import none of the classes it names, so that a master can run them on a
graph that came as JSON. Each check gives its problems in graph order.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import chain, islice

from dataflow.errors import GraphError, suggest
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.graph.specs import NAME, NAME_RULE, SHARDED, Edge, InputSpec, OperatorSpec, OutputSpec

MAX_PROBLEMS = 100
"""Problems listed at most, so that a large broken graph costs a bounded time and text."""

Ends = list[tuple[Edge, OperatorSpec, OperatorSpec]]
"""Every edge with its source and target."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a graph.

    Args:
        what: what is wrong, with operator ids, ports and types.
        where: ``file:line`` of the user's code, one per operator concerned; empty where no line is to blame.
        fix: what the user can do about it.
    """

    what: str
    where: str = ""
    fix: str = ""

    def __str__(self) -> str:
        return self.what + (f" at {self.where}" if self.where else "") + (f"; {self.fix}" if self.fix else "")


def check(graph: LogicalGraph) -> None:
    """Nothing, if the graph can be compiled and run.

    Raises:
        GraphError: with every problem of the graph, numbered.
    """
    found = problems(graph)
    if len(found) == 1:
        raise GraphError(what=f"graph {graph.name!r}: {found[0].what}", where=found[0].where, fix=found[0].fix)
    if found:
        listed = "".join(f"\n  {number}. {problem}" for number, problem in enumerate(found, start=1))
        raise GraphError(what=f"graph {graph.name!r} has {len(found)} problems:{listed}")


def problems(graph: LogicalGraph) -> tuple[Problem, ...]:
    """Everything that is wrong with the graph, up to `MAX_PROBLEMS`; empty if it can be compiled and run."""
    broken = tuple(islice(chain(_names(graph), _references(graph)), MAX_PROBLEMS))
    if broken:
        return broken  # the other checks look operators, ports and roles up by name
    ends = _ends(graph)
    checks = (
        _roles(graph),
        _ports(graph),
        _types(ends),
        _states(graph),
        _crossings(graph, ends),
        _routes(graph, ends),
        _reach(graph),
        _cycles(graph),
    )
    return tuple(islice(chain.from_iterable(checks), MAX_PROBLEMS))


def _ends(graph: LogicalGraph) -> Ends:
    operators = {operator.id: operator for operator in graph.operators}
    return [(edge, operators[edge.source], operators[edge.target]) for edge in graph.edges]


def _names(graph: LogicalGraph) -> Iterator[Problem]:
    """Names that are malformed or given twice; the builder refuses them, JSON may hold them."""
    if not graph.name.isprintable() or not 1 <= len(graph.name) <= 100:
        yield Problem(f"the graph's name {graph.name[:100]!r} is not 1 to 100 printable characters")
    yield from _unique((role.name for role in graph.roles), "role")
    yield from _unique((element.name for element in graph.elements), "state element")
    yield from _unique((operator.id for operator in graph.operators), "operator")
    for operator in graph.operators:
        for what, names in (
            ("input port", [port.name for port in operator.inputs]),
            ("output port", [port.name for port in operator.outputs]),
            ("state access", [use.name for use in operator.uses]),
        ):
            for name, count in Counter(names).items():
                if not name.isidentifier():
                    yield Problem(f"{what} {name!r} of {operator.id!r} is not a Python name", operator.where)
                if count > 1:
                    yield Problem(f"{operator.id!r} has {count} {what}s called {name!r}", operator.where)


def _unique(names: Iterable[str], what: str) -> Iterator[Problem]:
    for name, count in Counter(names).items():
        if not re.fullmatch(NAME, name):
            yield Problem(f"{what} name {name[:100]!r} is not {NAME_RULE}")
        if count > 1:
            yield Problem(f"{count} {what}s are called {name!r}", fix="give each a name of its own")


def _references(graph: LogicalGraph) -> Iterator[Problem]:
    """Names that name nothing: roles of operators and elements, ends of edges."""
    roles = [role.name for role in graph.roles]
    operators = {operator.id: operator for operator in graph.operators}
    for name, role, where in (
        *((f"operator {operator.id!r}", operator.role, operator.where) for operator in graph.operators),
        *((f"state element {element.name!r}", element.role, element.where) for element in graph.elements),
    ):
        if role not in roles:
            yield Problem(f"{name} is of role {role!r}, which the graph lacks", where, suggest(role, roles))
    for edge in graph.edges:
        source, target = operators.get(edge.source), operators.get(edge.target)
        for end, operator in ((edge.source, source), (edge.target, target)):
            if operator is None:
                yield Problem(f"edge {edge.name} names no operator with {end!r}", fix=suggest(end, operators))
        if source is not None:
            yield from _known_port(edge, source, edge.output, source.outputs, "output")
        if target is not None:
            yield from _known_port(edge, target, edge.input, target.inputs, "input")


def _known_port(
    edge: Edge, operator: OperatorSpec, name: str, ports: tuple[InputSpec | OutputSpec, ...], kind: str
) -> Iterator[Problem]:
    known = [port.name for port in ports]
    if name not in known:
        what = f"edge {edge.name} names no {kind} port of {operator.id!r} with {name!r}"
        yield Problem(what, operator.where, suggest(name, known))


def _roles(graph: LogicalGraph) -> Iterator[Problem]:
    if not graph.roles:
        yield Problem("the graph has no roles", fix="begin with with_role")
    for role in graph.roles:
        if isinstance(role.size, int) and role.size < 1:
            yield Problem(f"role {role.name!r} has size {role.size}", fix="give it at least one node, 'rest' or 'all'")
        if not any(operator.role == role.name for operator in graph.operators):
            yield Problem(f"role {role.name!r} has no operators", fix="add one with with_operator, or drop the role")
    rests = [role.name for role in graph.roles if role.size == "rest"]
    if len(rests) > 1:
        yield Problem(f"roles {_ids(rests)} all take the rest of the nodes", fix="leave 'rest' to one of them")


def _ports(graph: LogicalGraph) -> Iterator[Problem]:
    """Each operator's ports by themselves: how many there are, and whether something arrives."""
    entered = {(edge.target, edge.input) for edge in graph.edges}
    offers: dict[str, list[tuple[str, str]]] = {}
    for operator in graph.operators:
        for out in operator.outputs:
            for type_name in out.types:
                offers.setdefault(type_name, []).append((operator.id, out.name))
    for operator in graph.operators:
        name, where = repr(operator.id), operator.where
        if operator.source and operator.inputs:
            ports = _ids(port.name for port in operator.inputs)
            yield Problem(f"source {name} has input ports ({ports})", where, "drop them, or the source = True")
        if operator.gather and len(operator.inputs) != 1:
            what = f"gather operator {name} has {len(operator.inputs)} input ports"
            yield Problem(what, where, "a Gather has exactly one: the parts of a step arrive there")
        elif not operator.source and not operator.inputs:
            yield Problem(f"operator {name} has no input port", where, "declare one, or source = True")
        for port in operator.inputs:
            if port.capacity < 1:
                yield Problem(f"input {operator.id}.{port.name} has capacity {port.capacity}", where, "give 1 or more")
            if (operator.id, port.name) not in entered and not operator.source:
                what = f"input {operator.id}.{port.name} ({_short(port.type)}) is not connected"
                yield Problem(
                    what, where, _offer([f"{o}.{out}" for o, out in offers.get(port.type, ()) if o != operator.id])
                )


def _offer(fitting: list[str]) -> str:
    if not fitting:
        return "connect it; no output has that type"
    return f"connect it; outputs of that type: {_ids(fitting[:8])}" + (", ..." if len(fitting) > 8 else "")


def _types(ends: Ends) -> Iterator[Problem]:
    for edge, source, target in ends:
        types, wanted = source.output(edge.output).types, target.input(edge.input).type
        emitted = types[0] if types else "nothing"
        where = _lines(source, target)
        if wanted not in types:
            alike = _short(emitted) == _short(wanted)
            sent, taken = (emitted, wanted) if alike else (_short(emitted), _short(wanted))
            what = f"edge {edge.name} joins different types: {source.id} emits {sent}, {target.id} accepts {taken}"
            yield Problem(what, where, f"put an operator between them that takes {sent} and emits {taken}")
        elif target.gather and SHARDED not in types:
            what = f"gather operator {target.id!r} is sent {_short(emitted)}, which carries no shard number"
            yield Problem(what, where, f"derive {_short(emitted)} from dataflow.message.Sharded")


def _states(graph: LogicalGraph) -> Iterator[Problem]:
    elements = {element.name: element for element in graph.elements}
    for operator in graph.operators:
        for use in operator.uses:
            verb = "writes" if use.writes else "reads"
            element = elements.get(use.element)
            if element is None:
                what = f"operator {operator.id!r} {verb} state element {use.element!r}, which the graph lacks"
                known = suggest(use.element, elements) if elements else "the graph has none"
                yield Problem(what, operator.where, f"add it with with_state, or bind={{{use.name!r}: ...}}; {known}")
            elif element.role != operator.role:
                what = (
                    f"operator {operator.id!r} of role {operator.role!r} {verb} state element {use.element!r} "
                    f"of role {element.role!r}: state is not shared across nodes"
                )
                where = ", ".join(filter(None, (operator.where, element.where)))
                fix = f"give role {operator.role!r} an element of its own, or send messages to {element.role!r}"
                yield Problem(what, where, fix)


def _crossings(graph: LogicalGraph, ends: Ends) -> Iterator[Problem]:
    """Edges that cross nodes and operators that say they do must agree.

    Those that do may have other ports for what stays on their node.
    """
    crossing = [edge for edge in graph.edges if edge.route is not None]
    outputs, inputs = ({(e.source, e.output) for e in crossing}, {(e.target, e.input) for e in crossing})
    senders, targets = ({name for name, _ in ports} for ports in (outputs, inputs))
    for edge, source, target in ends:
        where = _lines(source, target)
        if edge.route is None and source.role != target.role:
            what = f"edge {edge.name} joins role {source.role!r} to role {target.role!r} without a route"
            yield Problem(what, where, "connect with route=, as in route=Route.ONE_TO_ALL")
        elif edge.route is None:
            sends = source.sends and (source.id not in senders or (source.id, edge.output) in outputs)
            receives = target.receives and (target.id not in targets or (target.id, edge.input) in inputs)
            if sends or receives:
                which = f"{source.id!r} sends" if sends else f"{target.id!r} receives"
                what = f"edge {edge.name} has no route, but {which}"
                yield Problem(what, where, "connect with route=, or use operators that stay on their node")
        elif not (source.sends and target.receives):
            lacks = [
                f"{operator.id!r} does not {verb}"
                for operator, verb, has in ((source, "send", source.sends), (target, "receive", target.receives))
                if not has
            ]
            what = f"edge {edge.name} crosses nodes ({edge.route}), but {' and '.join(lacks)}"
            yield Problem(what, where, "put a Send before and a Receive behind the crossing")
    left = {edge.source for edge in graph.edges}
    for operator in graph.operators:
        if operator.sends and operator.id not in left:
            what = f"operator {operator.id!r} sends, but no edge leaves it"
            yield Problem(what, operator.where, "connect it to a receiving operator with route=, or remove it")


def _routes(graph: LogicalGraph, ends: Ends) -> Iterator[Problem]:
    """Each edge's route, loopback and key by themselves."""
    sizes = {role.name: role.size for role in graph.roles}
    joins = Counter((edge.source, edge.output, edge.target, edge.input) for edge in graph.edges)
    for edge, source, target in ends:
        where = _lines(source, target)
        if joins.pop((edge.source, edge.output, edge.target, edge.input), 1) > 1:
            yield Problem(f"several edges {edge.name}", where, "connect the two ports once")
        if edge.route is Route.BY_OWNER and not edge.key:
            what = f"by-owner edge {edge.name} has no key"
            yield Problem(what, where, "name the message's field that holds the partition number: key=...")
        elif edge.key and edge.route is not Route.BY_OWNER:
            what = f"edge {edge.name} has key {edge.key!r}, but is not by-owner"
            yield Problem(what, where, "drop the key, or connect with route=Route.BY_OWNER")
        if edge.loopback and edge.route is None:
            yield Problem(f"edge {edge.name} loops back without a route", where, "drop loopback=True, or add route=")
        shared = source.role == target.role or "all" in (sizes[source.role], sizes[target.role])
        if edge.route in (Route.BY_OWNER, Route.ALL_TO_ONE) and shared and not edge.loopback:
            what = f"{edge.route} edge {edge.name} leaves out its sender, which may be the one to receive"
            yield Problem(what, where, "connect with loopback=True")


def _reach(graph: LogicalGraph) -> Iterator[Problem]:
    sources = [operator.id for operator in graph.operators if operator.source]
    if not sources:
        yield Problem("the graph has no source: nothing would ever run", fix="add an operator with source = True")
        return
    targets = defaultdict[str, list[str]](list)
    for edge in graph.edges:
        targets[edge.source].append(edge.target)
    reached, waiting = set(sources), list(sources)
    while waiting:
        found = [target for target in targets[waiting.pop()] if target not in reached]
        reached.update(found)
        waiting += found
    lost = [operator for operator in graph.operators if operator.id not in reached]
    if lost:
        names = _ids(operator.id for operator in lost)
        what = f"no source leads to {names}"
        yield Problem(what, _lines(*lost), f"connect from a source ({_ids(sources)}), or remove what is not used")


def _cycles(graph: LogicalGraph) -> Iterator[Problem]:
    """Cycles of local edges that share no operator; cycles over streams are what training is made of."""
    # networkx takes a fifth of a second to import, and every start of a job imports this module.
    operators = {operator.id: operator for operator in graph.operators}
    places = {name: place for place, name in enumerate(operators)}
    edges = [(edge.source, edge.target) for edge in graph.edges if edge.route is None]
    edges.sort(key=lambda edge: places[edge[0]])
    while knot := _cycle(edges):
        first = knot.index(min(knot, key=places.__getitem__))
        cycle, gone = [*knot[first:], *knot[:first]], set(knot)
        what = f"the cycle {' -> '.join((*cycle, cycle[0]))} stays on its node: it would wait for itself"
        where = _lines(*(operators[name] for name in cycle))
        yield Problem(what, where, "let it cross nodes by send and receive, or keep what goes round in a state element")
        edges = [edge for edge in edges if not gone.intersection(edge)]


def _cycle(edges: Iterable[tuple[str, str]]) -> list[str]:
    """A cycle of these edges, each operator once; empty if there is none."""
    order = TopologicalSorter[str]()
    for source, target in edges:
        order.add(target, source)
    try:
        order.prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle[:-1]
    return []


def _short(type_name: str) -> str:
    return type_name.rpartition(":")[2]


def _ids(names: Iterable[str]) -> str:
    return ", ".join(names)


def _lines(*operators: OperatorSpec) -> str:
    return ", ".join(dict.fromkeys(operator.where for operator in operators if operator.where))
