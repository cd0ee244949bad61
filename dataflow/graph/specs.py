"""What a logical graph is made of, as frozen data: roles, operators, state elements and edges.

The data holds qualified names, JSON and flags only, so a master can check and compile a graph without importing the
classes it names.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from dataflow.errors import GraphError, suggest
from dataflow.graph.routes import Route
from dataflow.message import SCALARS, Message, Sharded
from dataflow.operators_api import Gather, Operator, Pool, declared_at, qualified_name
from dataflow.state import StateKind

RoleSize = int | Literal["rest", "all"]

NAME = r"[a-z][a-z0-9_]{0,63}"
"""What names of roles, state elements and operators look like."""
NAME_RULE = "a lower-case letter followed by at most 63 lower-case letters, digits and _"
SHARDED = qualified_name(Sharded)
"""The type of what gathering operators take, as `OutputSpec.types` has it."""


class HasName(Protocol):
    """What has a name."""

    @property
    def name(self) -> str:
        """What it is called."""


_Named = TypeVar("_Named", bound=HasName)


class Data(BaseModel):
    """Frozen data that refuses fields which it does not have."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Role(Data):
    """A named group of nodes that run the same operators.

    Args:
        name: the role's name.
        size: number of nodes, ``rest`` for those that no other role takes, or ``all``.
    """

    name: str
    size: RoleSize = "all"


class InputSpec(Data):
    """An input port; the fields are those of `dataflow.ports.In`, `type` a qualified name."""

    name: str
    type: str
    capacity: int
    key: str | None = None
    latest: tuple[str, ...] = ()


class OutputSpec(Data):
    """An output port; `types` are the qualified names of its message type and that type's bases."""

    name: str
    types: tuple[str, ...]
    reported: bool = False


class UseSpec(Data):
    """An operator's use of a state element: `name` in the operator, `element` in the graph."""

    name: str
    element: str
    writes: bool


class OperatorSpec(Data):
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
        return named(self.inputs, name, f"input port of {self.id!r}")

    def output(self, name: str) -> OutputSpec:
        """The output port called `name`."""
        return named(self.outputs, name, f"output port of {self.id!r}")


class ElementSpec(Data):
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


class Edge(Data):
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


def describe(name: str, operator: Operator, role: str, bind: dict[str, str]) -> OperatorSpec:
    """The data that a graph keeps of an operator."""
    cls = type(operator)
    accesses = cls.accesses()
    for bound in bind:
        if bound not in accesses:
            raise graph_error(what="bind names no state the operator declares", got=bound, fix=suggest(bound, accesses))
    if "<locals>" in cls.__qualname__:
        raise graph_error(
            what=f"operator class {cls.__name__} is defined inside a function, so no node can find it",
            where=declared_at(cls),
            fix="move the class to the top level of its file",
        )
    for hook in ("process", "merge"):
        if getattr(cls, hook, None) in (Operator.process, Gather.process, Gather.merge):
            raise graph_error(
                what=f"operator class {cls.__name__} does not define {hook}",
                where=declared_at(cls),
                fix=f"define {hook}(self, {'message' if hook == 'process' else 'parts'}), or mend its name",
            )
    for port in cls.outputs().values():
        arrays = [field.name for field in dataclasses.fields(port.kind) if not _is_scalar(field.type)]
        if port.reported and arrays:
            raise graph_error(
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
        where=caller(),
    )


def _is_scalar(annotation: Any) -> bool:
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return {part.strip() for part in text.split("|")} <= {"None", *(kind.__name__ for kind in SCALARS)}


def _lineage(kind: type[Message]) -> tuple[str, ...]:
    return tuple(qualified_name(base) for base in kind.__mro__ if issubclass(base, Message))


def named(items: tuple[_Named, ...], name: str, what: str) -> _Named:
    """The one of `items` that is called `name`; `what` they are, for the error if there is none."""
    for item in items:
        if item.name == name:
            return item
    raise graph_error(what=f"there is no such {what}", got=name, fix=suggest(name, [item.name for item in items]))


def graph_error(what: str, *, got: object = None, where: str = "", fix: str = "") -> GraphError:
    """An error at the line of the user's code that asked for something, unless it says where."""
    return GraphError(what, got=got, where=where or caller(), fix=fix)


def caller() -> str:
    """``file:line`` of the nearest caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("dataflow.", "pydantic")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
