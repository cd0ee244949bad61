"""Logical graphs: roles, operators, state elements and edges, as frozen data.

Building a graph starts nothing and every method returns a new graph. The data holds qualified names, JSON and flags
only, so a master can check and compile a graph without importing the classes it names.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from typing import Any, Literal, Protocol, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from dataflow.errors import GraphError, suggest
from dataflow.graph.routes import Route
from dataflow.message import SCALARS, Message, Sharded
from dataflow.operators_api import Gather, Operator, Pool, declared_at, qualified_name
from dataflow.state import StateElement, StateKind

RoleSize = int | Literal["rest", "all"]

NAME = r"[a-z][a-z0-9_]{0,63}"
"""What names of roles, state elements and operators look like."""
NAME_RULE = "a lower-case letter followed by at most 63 lower-case letters, digits and _"
SHARDED = qualified_name(Sharded)
"""The type of what gathering operators take, as `OutputSpec.types` has it."""


class _HasName(Protocol):
    @property
    def name(self) -> str: ...


_Named = TypeVar("_Named", bound=_HasName)


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Role(_Data):
    """A named group of nodes that run the same operators.

    Args:
        name: the role's name.
        size: number of nodes, ``rest`` for those that no other role takes, or ``all``.
    """

    name: str
    size: RoleSize = "all"


class InputSpec(_Data):
    """An input port; the fields are those of `dataflow.ports.In`, `type` a qualified name."""

    name: str
    type: str
    capacity: int
    key: str | None = None
    latest: tuple[str, ...] = ()


class OutputSpec(_Data):
    """An output port; `types` are the qualified names of its message type and that type's bases."""

    name: str
    types: tuple[str, ...]
    reported: bool = False


class UseSpec(_Data):
    """An operator's use of a state element: `name` in the operator, `element` in the graph."""

    name: str
    element: str
    writes: bool


class OperatorSpec(_Data):
    """One operator of the graph.

    Args:
        id: its name in the graph; stable, it appears in errors, metrics and plots.
        role: the role whose nodes run it.
        kind: qualified name of its class.
        params: its fields, as JSON text.
        pool: the task pool it runs in.
        source, sends, receives, gather, catches_up: see `dataflow.operators_api.Operator` and `Gather`. Graphs that
            were kept before there was `catches_up` do not say, and are taken for such as catch up.
        adjusts: it can be told to change something while the job runs; see `dataflow.operators_api.Adjustment`.
        inputs, outputs, uses: ports and state access.
        where: ``file:line`` of the user's code that added it.
    """

    id: str
    role: str
    kind: str
    params: str
    pool: Pool
    source: bool = False
    sends: bool = False
    receives: bool = False
    gather: bool = False
    adjusts: bool = False
    catches_up: bool = True
    inputs: tuple[InputSpec, ...] = ()
    outputs: tuple[OutputSpec, ...] = ()
    uses: tuple[UseSpec, ...] = ()
    where: str = ""

    def input(self, name: str) -> InputSpec:
        """The input port called `name`."""
        return _named(self.inputs, name, f"input port of {self.id!r}")

    def output(self, name: str) -> OutputSpec:
        """The output port called `name`."""
        return _named(self.outputs, name, f"output port of {self.id!r}")


class ElementSpec(_Data):
    """One state element: `factory` is the qualified name of its `StateElement`, `params` its fields as JSON text.

    `rebuilt`: those that are left make good what a node that dies held of it; `grows`: a node may join them. `form`:
    what its arrays mean, see `StateElement`.
    """

    name: str
    role: str
    kind: StateKind
    factory: str
    params: str
    rebuilt: bool = False
    form: str = ""
    grows: bool = False
    where: str = ""


class Edge(_Data):
    """From an output port to an input port.

    Args:
        source, output: operator id and port that messages leave.
        target, input: operator id and port that they enter.
        route: how receivers are picked, for an edge that crosses nodes; else None.
        loopback: the sending node is among the receivers.
        key: field of the message that holds the partition number, for a by-owner route.
    """

    source: str
    output: str
    target: str
    input: str
    route: Route | None = None
    loopback: bool = False
    key: str | None = None

    @property
    def name(self) -> str:
        """``source.output -> target.input``."""
        return f"{self.source}.{self.output} -> {self.target}.{self.input}"


class LogicalGraph(_Data):
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
            raise _error(what=f"the size of role {name!r} is a number of nodes from 1, 'rest' or 'all'", got=size)
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
            where=_caller(),
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
            raise _error(
                what="there is no such route", got=route, fix=suggest(str(route), [known.value for known in Route])
            )
        edge = Edge(
            source=out_id, output=out_port, target=in_id, input=in_port, route=route, loopback=loopback, key=key
        )
        if edge in self.edges:
            raise _error(what="the edge exists already", got=edge.name)
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
                raise _error(
                    what="an operator with several ports cannot be removed from between others",
                    got=name,
                    fix="replace it, or build the graph without it",
                )
            if any(edge.route for edge in into) and any(edge.route for edge in out):
                raise _error(
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
        raise _error(what="there is no such operator", got=name, fix=suggest(name, [o.id for o in self.operators]))

    def _with(self, **changes: Any) -> Self:
        return self.model_copy(update=changes)

    def _role(self, name: str) -> Role:
        return _named(self.roles, name, "role")

    def _output(self, place: str) -> tuple[str, str]:
        name, _, port = place.partition(".")
        return name, _port(self.operator(name).outputs, port, f"output port of {name!r}")

    def _input(self, place: str) -> tuple[str, str]:
        name, _, port = place.partition(".")
        return name, _port(self.operator(name).inputs, port, f"input port of {name!r}")

    def _splice(self, cut: list[Edge], operator: Operator, name: str, *, place: str, role: str) -> Self:
        if not cut:
            raise _error(what="nothing is connected there", got=place, fix="connect the two with connect")
        for edge in cut:
            if edge.route is not None:
                raise _error(
                    what=f"the edge {edge.name} crosses nodes: nothing fits between sending and receiving",
                    fix=f"use insert_before({edge.source!r}, ...) or insert_after({edge.target!r}, ...)",
                )
        cls = type(operator)
        if len(cls.inputs()) != 1 or len(cls.outputs()) != 1:
            raise _error(
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


def describe(name: str, operator: Operator, role: str, bind: dict[str, str]) -> OperatorSpec:
    """The data that a graph keeps of an operator."""
    cls = type(operator)
    accesses = cls.accesses()
    for bound in bind:
        if bound not in accesses:
            raise _error(what="bind names no state the operator declares", got=bound, fix=suggest(bound, accesses))
    if "<locals>" in cls.__qualname__:
        raise _error(
            what=f"operator class {cls.__name__} is defined inside a function, so no node can find it",
            where=declared_at(cls),
            fix="move the class to the top level of its file",
        )
    for hook in ("process", "merge"):
        if getattr(cls, hook, None) in (Operator.process, Gather.process, Gather.merge):
            raise _error(
                what=f"operator class {cls.__name__} does not define {hook}",
                where=declared_at(cls),
                fix=f"define {hook}(self, {'message' if hook == 'process' else 'parts'}), or mend its name",
            )
    for port in cls.outputs().values():
        arrays = [field.name for field in dataclasses.fields(port.kind) if not _is_scalar(field.type)]
        if port.reported and arrays:
            raise _error(
                what=f"output {cls.__name__}.{port.name} is reported, but {port.kind.__name__} has fields that are not "
                f"bool, int, float, str or None: {', '.join(arrays)}",
                where=declared_at(cls),
                fix="report a message of scalars",
            )
    return OperatorSpec(
        id=name,
        role=role,
        kind=qualified_name(cls),
        params=operator.model_dump_json(),
        pool=cls.pool,
        source=cls.source,
        sends=cls.sends,
        receives=cls.receives,
        gather=issubclass(cls, Gather),
        adjusts=hasattr(cls, "on_adjust"),
        catches_up=cls.catches_up,
        inputs=tuple(
            InputSpec(
                name=port.name,
                type=qualified_name(port.kind),
                capacity=port.capacity,
                key=port.key,
                latest=port.latest,
            )
            for port in cls.inputs().values()
        ),
        outputs=tuple(
            OutputSpec(name=port.name, types=_lineage(port.kind), reported=port.reported)
            for port in cls.outputs().values()
        ),
        uses=tuple(
            UseSpec(name=access.name, element=bind.get(access.name, access.element), writes=access.writes)
            for access in accesses.values()
        ),
        where=_caller(),
    )


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


def _is_scalar(annotation: Any) -> bool:
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return {part.strip() for part in text.split("|")} <= {"None", *(kind.__name__ for kind in SCALARS)}


def _lineage(kind: type[Message]) -> tuple[str, ...]:
    return tuple(qualified_name(base) for base in kind.__mro__ if issubclass(base, Message))


def _named(items: tuple[_Named, ...], name: str, what: str) -> _Named:
    for item in items:
        if item.name == name:
            return item
    raise _error(what=f"there is no such {what}", got=name, fix=suggest(name, [item.name for item in items]))


def _port(ports: tuple[_HasName, ...], name: str, what: str) -> str:
    if name:
        _named(ports, name, what)
        return name
    if len(ports) == 1:
        return ports[0].name
    names = ", ".join(port.name for port in ports) or "none"
    raise _error(what=f"which {what}?", fix=f"write operator.port; ports: {names}")


def _check_new(name: str, known: list[str], what: str) -> None:
    if not re.fullmatch(NAME, name):
        raise _error(what=f"the name of a role, state element or operator is {NAME_RULE}", got=name)
    if name in known:
        raise _error(what=f"another {what} has that name already", got=name, fix="give another name")


def _error(what: str, *, got: object = None, where: str = "", fix: str = "") -> GraphError:
    return GraphError(what, got=got, where=where or _caller(), fix=fix)


def _caller() -> str:
    """``file:line`` of the nearest caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("dataflow.", "pydantic")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
