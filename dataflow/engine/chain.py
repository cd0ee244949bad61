"""Chains: the operators that run as one task, and how a message goes through them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import GeneratorType
from typing import Any, NoReturn

import numpy as np

from dataflow.artifact_names import RECORD_FOLDER, RUN_FILES
from dataflow.engine.blame import reraise
from dataflow.engine.events import Outcome
from dataflow.engine.flow import as_set
from dataflow.engine.needs import asked_by, needs_of
from dataflow.errors import OperatorError
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.graph.specs import SHARDED, Edge, OperatorSpec
from dataflow.message import Message, Sharded, field_names
from dataflow.node_context import NodeContext
from dataflow.operators_api import (
    Adjustment,
    Artifact,
    Checkpoint,
    EndOfData,
    Operator,
    Sample,
    declared_at,
    random_generator,
)
from dataflow.plan.physical import ChainPlan, PhysicalPlan
from dataflow.ports import Emission, Out
from dataflow.reports import OperatorReport, Rates
from dataflow.state import State


class Given:
    """What a task was given when it started, by element name.

    Args:
        snapshots: of elements that it reads.
        live: the elements that it writes.
        locks: those that it alone may write.
        ended: whether the node of which it tells operators that it has left was through, and has not died.
    """

    def __init__(
        self,
        snapshots: dict[str, Any],
        live: dict[str, State],
        locks: frozenset[str] = frozenset(),
        *,
        ended: bool = False,
    ) -> None:
        self.snapshots, self.live, self.locks, self.ended = snapshots, live, locks, ended


@dataclass(frozen=True, slots=True)
class Exit:
    """An edge that leaves an operator, and the nodes that it may reach, where the emission names one."""

    edge: Edge
    nodes: frozenset[int] = frozenset()
    by_destination: bool = False
    by_owner: bool = False

    @classmethod
    def of(cls, graph: LogicalGraph, edge: Edge, node: NodeContext) -> Exit:
        """An edge as it leaves `node`."""
        if edge.route is not Route.BY_DESTINATION:
            return cls(edge, by_owner=edge.route is Route.BY_OWNER)
        members = as_set(node.members[graph.operator(edge.target).role])
        itself = not edge.loopback and node.index in members
        return cls(edge, members - {node.index} if itself else members, by_destination=True)


class Member:
    """One operator of a chain, with what each of its hooks asks for and where its emissions may go."""

    def __init__(self, spec: OperatorSpec, operator: Operator, context: NodeContext, exits: Sequence[Exit]) -> None:
        """Look up an operator's hooks.

        Args:
            spec: its entry in the graph.
            operator: the instance.
            context: where it runs.
            exits: where its emissions may go.

        Raises:
            OperatorError: a gathering operator yields in `process`.
        """
        self.name, self.operator, self.context = spec.id, operator, context
        kind: Any = type(operator)
        self.ports = _ports(kind)
        self.exits = {port: [leaving for leaving in exits if leaving.edge.output == port] for port in self.ports}
        self.asked = asked_by(kind, spec.uses)
        self._hooks = {hook: getattr(operator, hook) for hook in self.asked.arguments}
        if spec.gather and inspect.isgeneratorfunction(operator.process):
            self.refuse("is a Gather and yields in process", None, "return the part, and yield in merge")

    def has(self, hook: str) -> bool:
        """Whether the operator defines a hook."""
        return hook in self.asked.arguments

    def call(self, hook: str, positional: tuple[Any, ...], given: Given, rng: np.random.Generator | None) -> Any:
        """What a hook returns; a generator of effects is returned as a list.

        Args:
            hook: its name.
            positional: what it is called with ahead of what it asks for by name.
            given: state elements.
            rng: random numbers; None if it asks for none, or may not.

        Raises:
            AkoError: whatever the operator raised, with its name, node and line.
        """
        arguments: dict[str, Any] = {}
        for name, element, writes in self.asked.arguments[hook]:
            if element is None and name == "rng":
                arguments[name] = rng if rng is not None else self._refuse_rng()
            elif element is None and name == "ended":
                arguments[name] = given.ended
            elif element is None:
                arguments[name] = self.context
            else:
                live = writes and element in given.live
                arguments[name] = given.live[element] if live else given.snapshots[element]
        try:
            result = self._hooks[hook](*positional, **arguments)
            return list(result) if isinstance(result, GeneratorType) else result
        except BaseException as error:  # GeneratorExit, too, and SystemExit
            reraise(error, f"operator {self.name!r}", type(self.operator), self.context.name)

    def effects(
        self, hook: str, positional: tuple[Any, ...], given: Given, rng: np.random.Generator | None
    ) -> Sequence[Any]:
        """The effects of a hook; arguments as for `call`.

        None means that there are none, but not from `process` of an operator with outputs: it has forgotten to yield.

        Raises:
            AkoError: whatever the operator raised, or it returned what is no effects.
        """
        effects = self.call(hook, positional, given, rng)
        if effects is None and (hook != "process" or not self.ports):
            return ()
        if not isinstance(effects, (list, tuple)):
            got = "None" if effects is None else effects
            fix = "yield effects, or `yield from ()` if there are none, or return a list"
            self.refuse(f"returned from {hook} what is no effects", got, fix)
        return effects

    def ready(self, given: Given) -> bool:
        """What the `ready` predicate of an operator that has one says.

        Raises:
            AkoError: it raised, or answered with anything but True or False.
        """
        answer = self.call("ready", (), given, None)
        if not isinstance(answer, bool | np.bool_):
            self.refuse("answered in ready with neither True nor False", type(answer).__name__, "return a bool")
        return bool(answer)

    def _refuse_rng(self) -> NoReturn:
        self.refuse("asks for rng in ready", None, "decide by state; draw numbers in process")

    def refuse(self, what: str, got: object, fix: str) -> NoReturn:
        """Raise an error about what this operator gave.

        Raises:
            OperatorError: always.
        """
        where = f"node {self.context.name}, {declared_at(type(self.operator))}"
        raise OperatorError(what=f"operator {self.name!r} {what}", got=got, where=where, fix=fix)


class Chain:
    """The operators of a `ChainPlan` on one node. Calls may run on any thread; they change nothing but live state."""

    def __init__(
        self,
        plan: PhysicalPlan,
        chain: ChainPlan,
        operators: Mapping[str, Operator],
        contexts: Mapping[str, NodeContext],
    ) -> None:
        """Bind a chain to its operators on one node."""
        graph = plan.graph
        specs = [graph.operator(name) for name in chain.operators]
        self.plan, self.head, self.last = chain, specs[0], specs[-1]
        self.gather = self.last.gather
        # Operators with state see whole steps, or the order of shards would matter; a source is asked for one by one.
        stateful = any(spec.uses for spec in specs if not spec.source)
        self.sharded = _feeds_gather(graph, self.last) and not stateful and _shards(self.head)
        self.members = [
            Member(
                spec,
                operators[spec.id],
                contexts[spec.id],
                [Exit.of(graph, edge, contexts[spec.id]) for edge in graph.edges if edge.source == spec.id],
            )
            for spec in specs
        ]
        self._gates = [member for member in self.members if member.has("ready")]
        self.gated = bool(self._gates)
        self.minds_leaving = any(member.has("on_left") for member in self.members)
        self.minds_joining = any(member.has("on_joined") for member in self.members)
        self.ends_itself = self.members[0].operator.ends_itself
        self.drained = any(member.operator.drained for member in self.members)
        self.minds_rates = any(member.has("on_rates") for member in self.members)
        self.minds_adjusting = any(member.has("on_adjust") for member in self.members)
        self.timer_s = min(
            (member.operator.timer_s for member in self.members if member.has("on_timer") and member.operator.timer_s),
            default=0.0,
        )
        self.needs = needs_of(tuple(member.asked for member in self.members), self.gather)
        # Whether what a step needs is held by the step before it.
        self.repeats = (
            self.gather
            and self.needs.start.all <= self.needs.merge.writes
            and not any(port.latest for port in self.head.inputs)
        )

    def ready(self, given: Given) -> bool:
        """Whether every `ready` predicate of the chain holds for what `needs.gate` asks for.

        Raises:
            AkoError: an operator raised, or answered with anything but True or False.
        """
        return all(member.ready(given) for member in self._gates)

    def process(self, message: Message, given: Given, step: int) -> Outcome:
        """What handling one message gives.

        Args:
            message: the message.
            given: what `needs.process` asks for.
            step: number of the step, or of the message in this chain.
        """
        call = _Call(self, given, step)
        call.enter(message)
        return call.outcome

    def merge(self, parts: Sequence[tuple[int, Any]], given: Given, step: int) -> Outcome:
        """What merging the parts of one step gives; `parts` come with their shard numbers, in any order."""
        call = _Call(self, given, step)
        call.outcome.parts += parts
        self._let_go(given)
        call.merge()
        return call.outcome

    def step(self, message: Message, given: Given, step: int) -> Outcome:
        """What handling the only message of a step and merging its part gives, if it has one."""
        call = _Call(self, given, step)
        call.enter(message)
        if call.outcome.parts:
            self._let_go(given)
            call.merge()
        return call.outcome

    def left(self, node: int, given: Given, step: int) -> Outcome:
        """What the operators give after the last message of a node, in chain order."""
        return self._hook("on_left", (node,), given, step)

    def joined(self, node: int, given: Given, step: int) -> Outcome:
        """What the operators give ahead of the first message of a node that has joined, in chain order."""
        return self._hook("on_joined", (node,), given, step)

    def rates(self, rates: Rates, given: Given, step: int) -> Outcome:
        """What the operators give when their node has measured how fast it is, in chain order."""
        return self._hook("on_rates", (rates,), given, step)

    def adjust(self, adjustment: Adjustment, given: Given, step: int) -> Outcome:
        """What the operators give when the running job is to be changed, in chain order."""
        return self._hook("on_adjust", (adjustment,), given, step)

    def timer(self, given: Given, step: int) -> Outcome:
        """What the operators give when their time has come, in chain order."""
        return self._hook("on_timer", (), given, step)

    def end(self, given: Given, step: int) -> Outcome:
        """What the operators give after the last message of all, in chain order."""
        return self._hook("on_end", (), given, step)

    def _let_go(self, given: Given) -> None:
        """Drop the snapshots that a merge is not given, or it would have to copy what it writes for nobody's sake."""
        for name in self.needs.process_only:
            given.snapshots.pop(name, None)

    def _hook(self, hook: str, positional: tuple[Any, ...], given: Given, step: int) -> Outcome:
        call = _Call(self, given, step)
        for position, member in enumerate(self.members):
            if member.has(hook):
                call.run(position, hook, positional)
        return call.outcome


class _Call:
    """One task's way through a chain: runs hooks, feeds what they emit to the next operator, keeps the rest."""

    def __init__(self, chain: Chain, given: Given, step: int) -> None:
        self.outcome = Outcome()
        self._chain, self._given, self._step = chain, given, step
        self._rngs: dict[tuple[int, str, int, int], np.random.Generator] = {}

    def enter(self, message: Message) -> None:
        """Let the first operator handle a message; one that gathers makes its part."""
        if not self._chain.gather:
            self._feed(0, message)
            return
        step, shard = self._numbers(message)
        # The parts of a step run at the same time, so they only ever see snapshots.
        given = Given(self._given.snapshots, {})
        part = self._chain.members[0].call("process", (message,), given, self._rng(0, "process", step, shard))
        self.outcome.parts.append((shard, part))

    def merge(self) -> None:
        """Merge the parts collected, in shard order."""
        parts = [part for _, part in sorted(self.outcome.parts, key=lambda numbered: numbered[0])]
        self.outcome.parts, self.outcome.merged = [], True
        self.run(0, "merge", (parts,))

    def run(
        self, position: int, hook: str, positional: tuple[Any, ...], step: int | None = None, shard: int = 0
    ) -> None:
        """Run a hook and take in its effects."""
        member = self._chain.members[position]
        step = self._step if step is None else step
        for effect in member.effects(hook, positional, self._given, self._rng(position, hook, step, shard)):
            self._take(position, member, effect)

    def _feed(self, position: int, message: Message) -> None:
        self.run(position, "process", (message,), *self._numbers(message))

    def _numbers(self, message: Message) -> tuple[int, int]:
        """Of the step and the shard that a message belongs to."""
        return (message.step, message.shard) if isinstance(message, Sharded) else (self._step, 0)

    def _take(self, position: int, member: Member, effect: Any) -> None:
        if isinstance(effect, Emission) and effect.port in member.ports:
            self._emitted(position, member, effect)
        elif isinstance(effect, Sample):
            self.outcome.effects.append((member.name, effect))
        elif isinstance(effect, Artifact):
            _check_named(member, effect)
            self.outcome.effects.append((member.name, effect))
        elif isinstance(effect, EndOfData) and member is self._chain.members[0 if member.operator.source else -1]:
            self.outcome.end_of_data = True
        elif isinstance(effect, Checkpoint):
            self.outcome.checkpoint = effect
        else:
            own = "self.<port>(message), Sample(...), Artifact(...) or Checkpoint(...)"
            fix = f"yield {own}; the last of a chain may yield EndOfData()"
            member.refuse("yielded something that is no effect of its own", effect, fix)

    def _emitted(self, position: int, member: Member, emission: Emission) -> None:
        if member.ports[emission.port].reported:
            self.outcome.effects.append((member.name, _report(member, emission)))
        if isinstance(emission.message, Sharded):
            _check_numbered(member, emission.message)
        exits = member.exits[emission.port]
        if exits and position + 1 < len(self._chain.members):
            self._feed(position + 1, emission.message)
            return
        for leaving in exits:
            _check_routed(member, leaving, emission)
        if exits:
            self.outcome.effects.append((member.name, emission))

    def _rng(self, position: int, hook: str, step: int, shard: int) -> np.random.Generator | None:
        """The random numbers of an operator for a step, if it asks for some; its next message goes on drawing them."""
        member = self._chain.members[position]
        if hook not in member.asked.draws:
            return None
        key = (position, hook, step, shard)
        rng = self._rngs.get(key)
        if rng is None:
            name, context = member.name if hook == "process" else f"{member.name}.{hook}", member.context
            rng = self._rngs[key] = random_generator(context.seed, name, context.index, step, shard)
        return rng


@cache
def _ports(kind: type[Operator]) -> Mapping[str, Out[Any]]:
    """Output ports of a class, looked up once for all nodes."""
    return kind.outputs()


def _feeds_gather(graph: LogicalGraph, operator: OperatorSpec) -> bool:
    targets = (edge.target for edge in graph.edges if edge.source == operator.id and edge.route is None)
    return any(graph.operator(target).gather for target in targets)


def _shards(operator: OperatorSpec) -> bool:
    return all(SHARDED in port.types for port in operator.outputs)


def _check_named(member: Member, artifact: Artifact) -> None:
    # Names that differ in case only are one on some file systems.
    first = artifact.name.partition("/")[0].lower()
    if first == RECORD_FOLDER:
        what = f"yielded an Artifact in {RECORD_FOLDER}/, where the record of the run is"
        member.refuse(what, artifact.name, "give it another name")
    if first in RUN_FILES:
        member.refuse("yielded an Artifact of a name that a run's own file has", artifact.name, "give it another name")


def _check_numbered(member: Member, message: Any) -> None:
    # Of any type until it has been looked at: compiled code refuses others where nobody knows whose they are.
    for number in (message.step, message.shard, message.shards):
        if not isinstance(number, int):
            what = f"emits a {type(message).__name__} whose step, shard or shards is no int"
            member.refuse(what, number, "convert it, as in int(step)")


def _check_routed(member: Member, leaving: Exit, emission: Emission) -> None:
    """Refuse an emission that its edge's route cannot place."""
    edge = leaving.edge
    if leaving.by_destination and emission.to not in leaving.nodes:
        known = ", ".join(str(node) for node in sorted(leaving.nodes))
        what = "names no node" if emission.to is None else "names a node that the edge does not reach"
        member.refuse(f"{what} on {edge.name}", emission.to, f"yield self.port(message, to=node), one of: {known}")
    if leaving.by_owner:
        key = getattr(emission.message, edge.key or "", None)
        if not isinstance(key, int | np.integer):
            fix = f"give every message an integer {edge.key!r}"
            member.refuse(f"emits on {edge.name} a message without partition number", key, fix)


def _report(member: Member, emission: Emission) -> OperatorReport:
    message = emission.message
    fields = {name: getattr(message, name) for name in field_names(type(message))}
    for name, value in fields.items():
        if not (value is None or isinstance(value, bool | int | float | str)):
            what = f"reports {name!r}, which is no plain number or text"
            member.refuse(what, type(value).__name__, "convert it, as in float(value)")
        if isinstance(value, float) and not math.isfinite(value):
            fields[name] = None
    return OperatorReport(f"{member.name}.{emission.port}", fields)
