"""Make the operators and state elements of one node from a plan: the only place that imports what plans name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from dataflow.engine.blame import reraise
from dataflow.errors import OperatorError, PlanError, in_words
from dataflow.graph.specs import ElementSpec, OperatorSpec
from dataflow.message import Message
from dataflow.node_context import NodeContext
from dataflow.operators_api import Operator
from dataflow.plan.physical import PhysicalPlan
from dataflow.state import State, StateElement

Members = Mapping[str, tuple[int, ...]]
"""Node numbers of every role, in rank order."""


@dataclass(frozen=True)
class LoadedNode:
    """A node's share of a plan, made real.

    Args:
        members: of every role.
        operators: operator instances by id.
        states: live state elements by name.
        contexts: where each operator runs, by its id.
        positions: by chain, the number of the step that it begins with, if that is not 0.
    """

    members: Members
    operators: Mapping[str, Operator]
    states: Mapping[str, State]
    contexts: Mapping[str, NodeContext]
    positions: Mapping[str, int] = field(default_factory=dict)

    def open(self) -> None:
        """Let every operator prepare: open its data, compile its kernels.

        Raises:
            AkoError: as the operators say, or an `OperatorError` for whatever else they raise.
        """
        for name, operator in self.operators.items():
            context = self.contexts[name]
            try:
                operator.open(context)
            except BaseException as error:  # SystemExit, too
                reraise(error, f"operator {name!r}", type(operator), context.name)


def load_node(plan: PhysicalPlan, node: int, *, incarnation: int = 0) -> LoadedNode:
    """Import and make the operators and state elements of node number `node`.

    Raises:
        PlanError: a qualified name cannot be imported or is not what the plan says.
        AkoError: an operator refuses its parameters, or a state element cannot be made.
    """
    return _Loader(plan).node(node, incarnation)


def load_nodes(plan: PhysicalPlan) -> list[LoadedNode]:
    """All nodes of a plan, for a process that runs them all; errors as of `load_node`."""
    loader = _Loader(plan)
    return [loader.node(node.index) for node in plan.nodes]


class _Loader:
    """Makes nodes; what their operators and state elements have in common is read from the plan once."""

    def __init__(self, plan: PhysicalPlan) -> None:
        self._plan, self._members = plan, plan.members()
        self._elements: dict[str, StateElement] = {}
        self._operators: dict[str, Operator] = {}

    def node(self, node: int, incarnation: int = 0) -> LoadedNode:
        """A node."""
        plan, roles = self._plan, self._plan.nodes[node].roles
        contexts = {
            role: NodeContext(
                index=node,
                name=plan.nodes[node].name,
                role=role,
                members=self._members,
                tasks=plan.nodes[node].compute_tasks,
                seed=plan.seed,
                incarnation=incarnation,
                vacant=frozenset(plan.vacant),
            )
            for role in roles
        }
        operators = [spec for spec in plan.graph.operators if spec.role in roles]
        elements = [spec for spec in plan.graph.elements if spec.role in roles]
        return LoadedNode(
            members=self._members,
            operators={spec.id: self._operator(spec) for spec in operators},
            states={spec.name: self._state(spec, contexts[spec.role]) for spec in elements},
            contexts={spec.id: contexts[spec.role] for spec in operators},
        )

    def _operator(self, spec: OperatorSpec) -> Operator:
        """An operator of a node's own, since operators keep caches."""
        known = self._operators.get(spec.id)
        if known is None:
            known = self._operators[spec.id] = _make(spec.kind, spec.params, Operator, spec.id)
        return type(known).model_validate(dict(known))

    def _state(self, spec: ElementSpec, context: NodeContext) -> State:
        known = self._elements.get(spec.name)
        if known is None:
            known = self._elements[spec.name] = _make(spec.factory, spec.params, StateElement, spec.name)
        try:
            return known.create(context)
        except Exception as error:
            reraise(error, f"state element {spec.name!r}", type(known), context.name)


def message_types(plan: PhysicalPlan) -> dict[int, type[Message]]:
    """The message type of every edge that crosses nodes, by edge number."""
    return {
        number: resolve(plan.graph.operator(edge.source).output(edge.output).types[0], Message)
        for number, edge in plan.stream_edges().items()
    }


def resolve(name: str, base: type[Any]) -> Any:
    """The class that a qualified name ``module:Class`` stands for.

    Raises:
        PlanError: there is none, or it does not derive from `base`.
    """
    module_name, _, class_name = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in class_name.split("."):
            found = getattr(found, part)
    except Exception as error:
        what = f"{name} cannot be imported: {type(error).__name__}: {in_words(error)}"
        raise PlanError(
            what, fix="put the module into the job file's folder, install it on every node, or set PYTHONPATH there"
        ) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        what = f"{name} is not a kind of {base.__name__}"
        raise PlanError(what)
    return found


def _make(kind: str, params: str, base: type[Any], name: str) -> Any:
    try:
        return resolve(kind, base).model_validate_json(params)
    except ValidationError as error:
        what = f"{name!r} refuses its parameters: {in_words(error)}"
        raise OperatorError(what, where=kind) from error
