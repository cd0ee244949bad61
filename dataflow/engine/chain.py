"""Chains: the operators that run as one task, and how a message goes through them."""

from __future__ import annotations

import dataclasses
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dataflow.engine.events import Outcome
from dataflow.engine.inbox import Left
from dataflow.engine.reports import OperatorReport
from dataflow.errors import AkoError, OperatorError
from dataflow.message import Message, Sharded
from dataflow.node_context import NodeContext
from dataflow.operators_api import (
    Artifact,
    EndOfData,
    Gather,
    Operator,
    Sample,
    declared_at,
    needs,
    random_generator,
)
from dataflow.plan.physical import ChainPlan, PhysicalPlan
from dataflow.ports import Emission
from dataflow.state import State


class Member:
    """One operator of a chain, with what each of its hooks asks for."""

    def __init__(self, name: str, operator: Operator, context: NodeContext, elements: Mapping[str, str]) -> None:
        """Look up an operator's hooks.

        Args:
            name: its id.
            operator: the instance.
            context: where it runs.
            elements: state elements by the name the operator uses for them.
        """
        self.name, self.operator, self.context, self.elements = name, operator, context, elements
        self.asks: dict[str, tuple[str, ...]] = {
            hook: needs(getattr(operator, hook), hook)
            for hook in ("process", "merge", "ready", "on_end", "on_left")
            if hasattr(operator, hook)
        }
        self.writes = {name for name, access in type(operator).accesses().items() if access.writes}
        self.ports = type(operator).outputs()

    def uses(self, hook: str, *, writes: bool) -> set[str]:
        """State elements that a hook writes, or those that it only reads."""
        asked = self.asks.get(hook, ())
        return {self.elements[name] for name in asked if name in self.elements and (name in self.writes) == writes}

    def arguments(self, hook: str, given: Mapping[str, Any], step: int, shard: int) -> dict[str, Any]:
        """Keyword arguments for a hook: state from `given` by element name, `rng`, `node`."""
        arguments: dict[str, Any] = {}
        for name in self.asks[hook]:
            if name in self.elements:
                arguments[name] = given[self.elements[name]]
            elif name == "rng":
                context = self.context
                arguments[name] = random_generator(context.seed, self.name, context.index, step, shard)
            else:
                arguments[name] = self.context
        return arguments


class Chain:
    """The operators of a `ChainPlan` on one node. Calls may run on any thread; they change nothing but live state."""

    def __init__(
        self,
        plan: PhysicalPlan,
        chain: ChainPlan,
        operators: Mapping[str, Operator],
        contexts: Mapping[str, NodeContext],
        states: Mapping[str, State],
    ) -> None:
        """Bind a chain to its operators and state elements on one node."""
        self.plan, self.states = chain, states
        specs = [plan.graph.operator(name) for name in chain.operators]
        self.head, self.last = specs[0], specs[-1]
        self.gather = self.last.gather
        self.members = [
            Member(spec.id, operators[spec.id], contexts[spec.id], {use.name: use.element for use in spec.uses})
            for spec in specs
        ]
        connected = {(edge.source, edge.output) for edge in plan.graph.edges}
        self._connected = [{port for name, port in connected if name == spec.id} for spec in specs]
        process_writes = set().union(*(m.uses("process", writes=True) for m in self.members))
        self.reads = set().union(*(m.uses("process", writes=False) for m in self.members))
        self.writes = set[str]()
        if self.gather:
            merging = self.members[-1]
            self.reads |= process_writes | merging.uses("merge", writes=False)
            self.merge_writes = merging.uses("merge", writes=True)
        else:
            self.writes, self.merge_writes = process_writes, set()
        self.end_writes = set().union(*(m.uses("on_end", writes=True) for m in self.members))
        self.leave_writes = set().union(*(m.uses("on_left", writes=True) for m in self.members))
        self.gates = [member for member in self.members if "ready" in member.asks]
        self.gate_elements = set().union(
            *(m.uses("ready", writes=True) | m.uses("ready", writes=False) for m in self.gates)
        )
        self.minds_leaving = any("on_left" in member.asks for member in self.members)

    def ready(self) -> bool:
        """Whether every `ready` predicate of the chain holds now."""
        return all(
            bool(call(member, "ready", (), member.arguments("ready", self.states, 0, 0))) for member in self.gates
        )

    def process(self, message: Message | Left, given: Mapping[str, Any], step: int) -> Outcome:
        """What handling one message gives.

        Args:
            message: the message, or the mark of a node that has left.
            given: state by element name: snapshots of what is read, live elements of what is written.
            step: number of the step, or of the message in this chain.
        """
        outcome = Outcome()
        if isinstance(message, Left):
            for position, member in enumerate(self.members):
                if "on_left" in member.asks:
                    arguments = member.arguments("on_left", given, step, 0)
                    self._collect(position, "on_left", (message.node,), arguments, given, step, 0, outcome)
            return outcome
        shard = message.shard if isinstance(message, Sharded) else 0
        self._feed(0, message, given, step, shard, outcome)
        return outcome

    def merge(self, parts: Sequence[Any], given: Mapping[str, Any], step: int) -> Outcome:
        """What merging the parts of one step gives."""
        outcome = Outcome()
        position = len(self.members) - 1
        arguments = self.members[position].arguments("merge", given, step, 0)
        self._collect(position, "merge", (parts,), arguments, given, step, 0, outcome)
        return outcome

    def end(self, given: Mapping[str, Any], step: int) -> Outcome:
        """What the operators give after the last message, in chain order."""
        outcome = Outcome()
        for position, member in enumerate(self.members):
            if "on_end" in member.asks:
                arguments = member.arguments("on_end", given, step, 0)
                self._collect(position, "on_end", (), arguments, given, step, 0, outcome)
        return outcome

    def _feed(
        self, position: int, message: Message, given: Mapping[str, Any], step: int, shard: int, outcome: Outcome
    ) -> None:
        member = self.members[position]
        arguments = member.arguments("process", given, step, shard)
        if isinstance(member.operator, Gather):
            outcome.part = call(member, "process", (message,), arguments)
        else:
            self._collect(position, "process", (message,), arguments, given, step, shard, outcome)

    def _collect(
        self,
        position: int,
        hook: str,
        positional: tuple[Any, ...],
        arguments: Mapping[str, Any],
        given: Mapping[str, Any],
        step: int,
        shard: int,
        outcome: Outcome,
    ) -> None:
        """Run a hook and sort its effects into `outcome`, feeding the chain's next operator as they come."""
        member = self.members[position]
        effects = call(member, hook, positional, arguments, listed=True)
        for effect in effects:
            if isinstance(effect, Emission):
                port = member.ports[effect.port]
                if port.reported:
                    outcome.reports.append(_report(member, effect))
                if effect.port not in self._connected[position]:
                    continue
                if position + 1 < len(self.members):
                    self._feed(position + 1, effect.message, given, step, shard, outcome)
                else:
                    outcome.emissions.append((member.name, effect))
            elif isinstance(effect, Sample):
                outcome.samples.append((member.name, effect))
            elif isinstance(effect, Artifact):
                outcome.artifacts.append(effect)
            elif isinstance(effect, EndOfData):
                outcome.end_of_data = True
            else:
                raise OperatorError(
                    what=f"operator {member.name!r} yielded something that is no effect",
                    got=effect,
                    where=_place(member),
                    fix="yield self.<port>(message), Sample(...) or Artifact(...)",
                )


def call(
    member: Member, hook: str, positional: tuple[Any, ...], arguments: Mapping[str, Any], *, listed: bool = False
) -> Any:
    """Call a hook of an operator; whatever it raises becomes an `OperatorError` that names the user's line.

    Args:
        member: the operator.
        hook: which method.
        positional: positional arguments.
        arguments: keyword arguments.
        listed: the hook yields effects: give them as a list.
    """
    method: Callable[..., Any] = getattr(member.operator, hook)
    try:
        result = method(*positional, **arguments)
        return list(result or ()) if listed else result
    except AkoError:
        raise
    except Exception as error:
        raise OperatorError(
            what=f"operator {member.name!r} raised {type(error).__name__}: {error}",
            where=f"node {member.context.name}, {_raised_at(error)}",
            fix="see the job's log for the traceback",
        ) from error


def _report(member: Member, emission: Emission) -> OperatorReport:
    fields = {field.name: getattr(emission.message, field.name) for field in dataclasses.fields(emission.message)}
    for name, value in fields.items():
        if not (value is None or isinstance(value, bool | int | float | str)):
            raise OperatorError(
                what=f"operator {member.name!r} reports {name!r}, which is no plain number or text",
                got=type(value).__name__,
                where=_place(member),
                fix="convert it, as in float(value)",
            )
        if isinstance(value, float) and not math.isfinite(value):
            fields[name] = None
    return OperatorReport(f"{member.name}.{emission.port}", fields)


def _place(member: Member) -> str:
    return f"node {member.context.name}, {declared_at(type(member.operator))}"


def _raised_at(error: BaseException) -> str:
    """``file:line`` of the innermost frame outside installed libraries, else of the innermost frame."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename and "<" not in frame.filename]
    frame = (own or frames)[-1]
    return f"{frame.filename}:{frame.lineno}"
