"""Logical graphs: how one is built of roles, operators, state elements and edges, and changed.

Building a graph starts nothing and every method returns a new graph.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, Field

from dataflow.errors import suggest
from dataflow.graph.routes import Route
from dataflow.graph.specs import (
    NAME,
    NAME_RULE,
    Data,
    Edge,
    ElementSpec,
    HasName,
    OperatorSpec,
    Role,
    RoleSize,
    caller,
    describe,
    graph_error,
    named,
)
from dataflow.operators_api import Operator, qualified_name
from dataflow.state import StateElement


class LogicalGraph(Data):
    """A dataflow graph. Start from ``LogicalGraph(name=...)`` and add to it; every method returns a new graph.

    Args:
        tensor_scale: every array in a message counts for one so many times as large. Only a simulation can do that.
    """

    name: str
    roles: tuple[Role, ...] = ()
    elements: tuple[ElementSpec, ...] = ()
    operators: tuple[OperatorSpec, ...] = ()
    edges: tuple[Edge, ...] = ()
    tensor_scale: int = Field(default=1, ge=1)

    def with_tensor_scale(self, scale: int) -> Self:
        """This graph, in whose messages every array counts for one `scale` times as large; for simulations."""
        return self._with(tensor_scale=scale)

    def with_role(self, name: str, size: RoleSize = "all") -> Self:
        """This graph with one more role."""
        _check_new(name, [role.name for role in self.roles], "role")
        if size not in ("rest", "all") and (not isinstance(size, int) or size < 1):
            raise graph_error(what=f"the size of role {name!r} is a number of nodes from 1, 'rest' or 'all'", got=size)
        return self._with(roles=(*self.roles, Role(name=name, size=size)))

    def with_state(self, name: str, element: StateElement, *, role: str) -> Self:
        """This graph with one more state element, held by every node of `role`."""
        _check_new(name, [known.name for known in self.elements], "state element")
        self._role(role)
        spec = ElementSpec(
            name=name,
            role=role,
            kind=element.kind,
            factory=qualified_name(type(element)),
            params=element.model_dump_json(),
            rebuilt=element.rebuilt,
            form=element.form,
            grows=element.grows,
            where=caller(),
        )
        return self._with(elements=(*self.elements, spec))

    def with_operator(self, name: str, operator: Operator, *, role: str, bind: dict[str, str] | None = None) -> Self:
        """This graph with one more operator, not yet connected.

        Args:
            name: its id.
            operator: the operator with its parameters.
            role: the role whose nodes run it.
            bind: state elements to use under the operator's own names, where they differ.
        """
        _check_new(name, [known.id for known in self.operators], "operator")
        self._role(role)
        return self._with(operators=(*self.operators, describe(name, operator, role, bind or {})))

    def connect(
        self, source: str, target: str, *, route: Route | None = None, loopback: bool = False, key: str | None = None
    ) -> Self:
        """This graph with one more edge.

        Args:
            source: ``operator`` or ``operator.port``; the port may be left out where there is one.
            target: likewise.
            route: how receivers are picked, where the edge crosses nodes.
            loopback: the sending node is among the receivers.
            key: field of the message that holds the partition number, for a by-owner route.
        """
        out_id, out_port = self._output(source)
        in_id, in_port = self._input(target)
        if route is not None and route not in list(Route):
            raise graph_error(
                what="there is no such route", got=route, fix=suggest(str(route), [known.value for known in Route])
            )
        edge = Edge(
            source=out_id, output=out_port, target=in_id, input=in_port, route=route, loopback=loopback, key=key
        )
        if edge in self.edges:
            raise graph_error(what="the edge exists already", got=edge.name)
        return self._with(edges=(*self.edges, edge))

    def insert_after(self, place: str, operator: Operator, *, name: str = "") -> Self:
        """This graph with `operator` spliced behind an output port: what left `place` goes through it.

        Args:
            place: ``operator`` or ``operator.port``; its edges stay on their node.
            operator: must have one input and one output port.
            name: its id; the class's name in snake_case if left out.
        """
        source, port = self._output(place)
        cut = [edge for edge in self.edges if (edge.source, edge.output) == (source, port)]
        return self._splice(cut, operator, name, place=f"{source}.{port}", role=self.operator(source).role)

    def insert_before(self, place: str, operator: Operator, *, name: str = "") -> Self:
        """This graph with `operator` spliced before an input port: what reached `place` goes through it.

        Args:
            place: ``operator`` or ``operator.port``; its edges stay on their node.
            operator: must have one input and one output port.
            name: its id; the class's name in snake_case if left out.
        """
        target, port = self._input(place)
        cut = [edge for edge in self.edges if (edge.target, edge.input) == (target, port)]
        return self._splice(cut, operator, name, place=f"{target}.{port}", role=self.operator(target).role)

    def replace(self, name: str, operator: Operator, *, bind: dict[str, str] | None = None) -> Self:
        """This graph with another operator in the place of `name`; its edges are kept, by port name."""
        old = self.operator(name)
        new = describe(name, operator, old.role, bind or {})
        for edge in self.edges:
            if edge.source == name:
                new.output(edge.output)
            if edge.target == name:
                new.input(edge.input)
        return self._with(operators=tuple(new if known.id == name else known for known in self.operators))

    def remove(self, name: str) -> Self:
        """This graph without an operator; its neighbours are joined where it had one input and one output.

        Edges of an operator with no output or no input go with it.
        """
        operator = self.operator(name)
        into = [edge for edge in self.edges if edge.target == name != edge.source]
        out = [edge for edge in self.edges if edge.source == name != edge.target]
        joined: list[Edge] = []
        if into and out:
            if len(operator.inputs) != 1 or len(operator.outputs) != 1:
                raise graph_error(
                    what="an operator with several ports cannot be removed from between others",
                    got=name,
                    fix="replace it, or build the graph without it",
                )
            if any(edge.route for edge in into) and any(edge.route for edge in out):
                raise graph_error(
                    what="an operator between two edges that cross nodes cannot be removed: two routes do not join",
                    got=name,
                    fix="replace it, or build the graph without it",
                )
            joined = [
                first.model_copy(update={"target": second.target, "input": second.input})
                if second.route is None
                else second.model_copy(update={"source": first.source, "output": first.output})
                for first in into
                for second in out
            ]
        kept = [edge for edge in self.edges if name not in (edge.source, edge.target)]
        return self._with(
            operators=tuple(known for known in self.operators if known.id != name),
            edges=tuple(dict.fromkeys((*kept, *joined))),
        )

    def operator(self, name: str) -> OperatorSpec:
        """The operator with this id."""
        for operator in self.operators:
            if operator.id == name:
                return operator
        raise graph_error(what="there is no such operator", got=name, fix=suggest(name, [o.id for o in self.operators]))

    def ends(self, edge: Edge, members: Mapping[str, tuple[int, ...]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The nodes that messages on an edge can come from, and those that they can be for, in rank order.

        Args:
            edge: the edge.
            members: nodes by role, in rank order.
        """
        sources, targets = members[self.operator(edge.source).role], members[self.operator(edge.target).role]
        return (
            sources[:1] if edge.route is Route.FIRST_TO_ALL else sources,
            targets[:1] if edge.route is Route.ALL_TO_ONE else targets,
        )

    def _with(self, **changes: Any) -> Self:
        return self.model_copy(update=changes)

    def _role(self, name: str) -> Role:
        return named(self.roles, name, "role")

    def _output(self, place: str) -> tuple[str, str]:
        name, _, port = place.partition(".")
        return name, _port(self.operator(name).outputs, port, f"output port of {name!r}")

    def _input(self, place: str) -> tuple[str, str]:
        name, _, port = place.partition(".")
        return name, _port(self.operator(name).inputs, port, f"input port of {name!r}")

    def _splice(self, cut: list[Edge], operator: Operator, name: str, *, place: str, role: str) -> Self:
        if not cut:
            raise graph_error(what="nothing is connected there", got=place, fix="connect the two with connect")
        for edge in cut:
            if edge.route is not None:
                raise graph_error(
                    what=f"the edge {edge.name} crosses nodes: nothing fits between sending and receiving",
                    fix=f"use insert_before({edge.source!r}, ...) or insert_after({edge.target!r}, ...)",
                )
        cls = type(operator)
        if len(cls.inputs()) != 1 or len(cls.outputs()) != 1:
            raise graph_error(
                what=f"{cls.__name__} has {len(cls.inputs())} inputs and {len(cls.outputs())} outputs",
                fix="insert an operator with one of each, or use with_operator and connect",
            )
        name = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        graph = self.with_operator(name, operator, role=role)
        added = graph.operator(name)
        before = [edge.model_copy(update={"target": name, "input": added.inputs[0].name}) for edge in cut]
        after = [edge.model_copy(update={"source": name, "output": added.outputs[0].name}) for edge in cut]
        kept = [edge for edge in self.edges if edge not in cut]
        return graph._with(edges=(*kept, *dict.fromkeys((*before, *after))))


def canonical_json(data: BaseModel) -> str:
    """The one JSON text of a graph or plan: keys sorted, no spaces; what hashes are taken of.

    The `where` of operators and state elements is left out: machines may hold the same job file at different paths.
    """
    return json.dumps(_without_where(data.model_dump(mode="json")), sort_keys=True, separators=(",", ":"))


def _without_where(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_where(item) for key, item in value.items() if key != "where"}
    if isinstance(value, list):
        return [_without_where(item) for item in value]
    return value


def _port(ports: tuple[HasName, ...], name: str, what: str) -> str:
    if name:
        named(ports, name, what)
        return name
    if len(ports) == 1:
        return ports[0].name
    names = ", ".join(port.name for port in ports) or "none"
    raise graph_error(what=f"which {what}?", fix=f"write operator.port; ports: {names}")


def _check_new(name: str, known: list[str], what: str) -> None:
    if not re.fullmatch(NAME, name):
        raise graph_error(what=f"the name of a role, state element or operator is {NAME_RULE}", got=name)
    if name in known:
        raise graph_error(what=f"another {what} has that name already", got=name, fix="give another name")
