"""Test an operator without an engine: give it messages, look at what it yields and at its state.

The harness gives an operator what the engine would: snapshots of the state it declares with `Reads`, the live elements
of what it declares with `Writes`, a generator `rng` with the engine's seed, and its `NodeContext`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dataflow.engine.chain import Given, Member
from dataflow.errors import OperatorError, suggest
from dataflow.graph.specs import describe
from dataflow.message import Message, Sharded, Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Adjustment, Effect, Gather, Operator, random_generator
from dataflow.ports import Emission
from dataflow.reports import Rates
from dataflow.state import State, StateElement


@dataclass
class _Step:
    """The step that a gathering operator is in: its snapshots, and its parts by shard."""

    number: int
    given: Given
    parts: dict[int, Any] = field(default_factory=dict)


class Harness:
    """One operator on one node.

    Args:
        operator: what is tested; it is opened at once.
        node: where it runs.
        states: by the name the operator declares, live state elements or declarations to create them from.
        name: the operator's id, which its random numbers depend on; the class's name in snake_case if left out.

    Raises:
        OperatorError: a declared state element is missing, or one is given that is not declared.
    """

    def __init__(
        self,
        operator: Operator,
        *,
        node: NodeContext | None = None,
        states: Mapping[str, State | StateElement] | None = None,
        name: str = "",
    ) -> None:
        self.operator, self.node = operator, node or NodeContext()
        self.effects: list[Effect] = []
        """Everything yielded so far, in order."""
        self.states = self._made(states or {})
        name = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(operator).__name__).lower()
        spec = describe(name, operator, self.node.role, {state: state for state in self.states})
        self._member = Member(spec, operator, self.node, ())
        self._step: _Step | None = None
        self._count = 0
        operator.open(self.node)

    def send(self, message: Message) -> list[Effect]:
        """Hand the operator a message; what it yields.

        A gathering operator takes it as one shard of a step and yields once the step's last shard has come.

        Args:
            message: for an input port; a `Tick` for a source.

        Raises:
            OperatorError: no input port takes such a message, or the operator raised.
        """
        self._check(message)
        if not isinstance(self.operator, Gather):
            step = message.step if isinstance(message, Sharded) else self._count
            self._count += 1
            return self._run("process", (message,), self._given("process"), step, _shard(message))
        part = self.part(message)
        step_ = self._open(message)
        step_.parts[_shard(message)] = part
        if len(step_.parts) < (message.shards if isinstance(message, Sharded) else 1):
            return []
        return self.merge([step_.parts[shard] for shard in sorted(step_.parts)])

    def part(self, message: Message) -> Any:
        """The part that a gathering operator makes of one shard, on the step's snapshots."""
        self._check(message)
        step = self._open(message)
        rng = self._rng("process", step.number, _shard(message))
        return self._member.call("process", (message,), step.given, rng)

    def merge(self, parts: Sequence[Any]) -> list[Effect]:
        """End a gathering operator's step with the parts of its shards, in shard order; what it yields."""
        step = self._step or _Step(self._count, Given(self._snapshots(), {}))
        self._step, self._count = None, step.number + 1
        return self._run("merge", (parts,), Given(step.given.snapshots, self.states), step.number)

    def ready(self) -> bool:
        """Whether the operator may be started now; true for one that is never held back."""
        return not self._member.has("ready") or self._member.ready(self._given("ready"))

    def end(self) -> list[Effect]:
        """Tell the operator that the last message has come; what it yields."""
        return self._run("on_end", (), self._given("on_end"), self._count)

    def left(self, node: int, *, ended: bool = False) -> list[Effect]:
        """Tell the operator that node number `node` has died, or has ended; what it yields."""
        given = self._given("on_left")
        given.ended = ended
        return self._run("on_left", (node,), given, self._count)

    def joined(self, node: int) -> list[Effect]:
        """Tell the operator that node number `node` is a member again; what it yields."""
        return self._run("on_joined", (node,), self._given("on_joined"), self._count)

    def rates(self, rates: Rates) -> list[Effect]:
        """Tell the operator how fast its node is; what it yields."""
        return self._run("on_rates", (rates,), self._given("on_rates"), self._count)

    def adjust(self, adjustment: Adjustment) -> list[Effect]:
        """Tell the operator that the running job is to be changed; what it yields."""
        return self._run("on_adjust", (adjustment,), self._given("on_adjust"), self._count)

    def timer(self) -> list[Effect]:
        """Tell the operator that its time has come; what it yields."""
        return self._run("on_timer", (), self._given("on_timer"), self._count)

    def emitted(self, port: str) -> list[Any]:
        """The messages emitted so far on an output port.

        Raises:
            OperatorError: the operator has no such port.
        """
        if port not in self._member.ports:
            raise OperatorError(
                what="there is no such output port",
                got=port,
                where=type(self.operator).__name__,
                fix=suggest(port, self._member.ports),
            )
        return [effect.message for effect in self.effects if isinstance(effect, Emission) and effect.port == port]

    def _made(self, states: Mapping[str, State | StateElement]) -> dict[str, State]:
        declared = type(self.operator).accesses()
        for missing in declared.keys() - states.keys():
            what = f"{type(self.operator).__name__} uses a state element that the test does not give"
            raise OperatorError(what, got=missing, fix=f"add it, as in states={{{missing!r}: ...}}")
        for unknown in states.keys() - declared.keys():
            what = f"{type(self.operator).__name__} declares no such state element"
            raise OperatorError(what, got=unknown, fix=suggest(unknown, declared))
        return {
            name: state.create(self.node) if isinstance(state, StateElement) else state
            for name, state in states.items()
        }

    def _check(self, message: Message) -> None:
        operator = type(self.operator)
        kinds = (Tick,) if operator.source else tuple(port.kind for port in operator.inputs().values())
        if not isinstance(message, kinds):
            raise OperatorError(
                what=f"{operator.__name__} takes no {type(message).__name__}",
                fix=f"send one of: {', '.join(kind.__name__ for kind in kinds)}",
            )

    def _open(self, message: Message) -> _Step:
        """The open step of a gathering operator, with its snapshots; a new one if `message` begins it."""
        if self._step is None:
            number = message.step if isinstance(message, Sharded) else self._count
            self._step = _Step(number, Given(self._snapshots(), {}))
        return self._step

    def _snapshots(self) -> dict[str, Any]:
        return {name: state.snapshot() for name, state in self.states.items()}

    def _given(self, hook: str) -> Given:
        """What the engine gives a hook: live elements of what it writes, snapshots of what it reads."""
        uses = self._member.asked.needs(hook)
        return Given({name: self.states[name].snapshot() for name in uses.reads}, self.states)

    def _rng(self, hook: str, step: int, shard: int) -> np.random.Generator:
        name = self._member.name if hook == "process" else f"{self._member.name}.{hook}"
        return random_generator(self.node.seed, name, self.node.index, step, shard)

    def _run(self, hook: str, positional: tuple[Any, ...], given: Given, step: int, shard: int = 0) -> list[Effect]:
        if not self._member.has(hook):
            return []
        effects: list[Effect] = list(self._member.effects(hook, positional, given, self._rng(hook, step, shard)))
        self.effects += effects
        return effects


def _shard(message: Message) -> int:
    return message.shard if isinstance(message, Sharded) else 0
