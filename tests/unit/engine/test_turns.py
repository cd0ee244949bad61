"""Chains that sleep have nothing to do: an engine that asks every chain each time commands the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_random_graphs import Shape, shapes

from dataflow.engine import memory_driver
from dataflow.engine.events import Command, Event, RunTask, SendMessage
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.engine.node_engine import NodeEngine
from dataflow.plan.compile import compile_graph
from dataflow.plan.physical import PhysicalPlan
from tests.known_answers.integers import integer_job


class AsksEverybody(NodeEngine):
    """An engine that does not believe that a chain sleeps."""

    def _serve_next(self) -> bool:
        self._reserved.clear()
        for state in sorted(self._turns, key=lambda each: each.turn):
            if not self._slots[state.pool] or state.ending:
                continue
            if self._start(state) or self._end(state):
                self._awake.served(state)
                return True
        return False


def commanded(plan: PhysicalPlan, kind: type[NodeEngine], seed: int) -> list[tuple[object, ...]]:
    """What the engines of a run command, whose events come in an order of this seed."""
    trace: list[tuple[object, ...]] = []

    class Traced(kind):  # type: ignore[misc, valid-type]
        def handle(self, event: Event, now: float) -> list[Command]:
            commands: list[Command] = super().handle(event, now)
            for command in commands:
                what = (command.task.chain, command.task.role) if isinstance(command, RunTask) else ()
                what = command.stream if isinstance(command, SendMessage) else what
                trace.append((self._node, type(command).__name__, *what))
            return commands

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_driver, "NodeEngine", Traced)
        MemoryDriver(plan, order=np.random.default_rng(seed)).execute()
    return trace


@settings(max_examples=150, deadline=None)
@given(shape=shapes, seed=st.integers(0, 2**32))
def test_engine_of_any_graph_commands_the_same_if_it_asks_every_chain(shape: Shape, seed: int) -> None:
    plan = shape.plan()
    assert commanded(plan, NodeEngine, seed) == commanded(plan, AsksEverybody, seed)


@settings(max_examples=40, deadline=None)
@given(p=st.integers(1, 4), tasks=st.integers(1, 3), slack=st.sampled_from([0, 1, 4]), seed=st.integers(0, 2**32))
def test_engine_of_training_commands_the_same_if_it_asks_every_chain(p: int, tasks: int, slack: int, seed: int) -> None:
    plan = compile_graph(integer_job(p, slack=slack), 3, compute_tasks=tasks, seed=seed % 1000)
    assert commanded(plan, NodeEngine, seed) == commanded(plan, AsksEverybody, seed)
