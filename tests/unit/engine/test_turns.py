"""Chains that sleep have nothing to do."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from test_random_graphs import Shape, shapes

from dataflow.engine.events import Command, Event
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.engine.node_engine import NodeEngine
from dataflow.plan.compile import compile_graph
from dataflow.plan.physical import PhysicalPlan
from tests.known_answers.integers import integer_job


class Watched:
    """An engine that is asked, after every event, whether a chain that sleeps could start or end after all."""

    def __init__(self, engine: NodeEngine) -> None:
        self._engine = engine
        self.sleepers = 0

    def handle(self, event: Event, now: float) -> list[Command]:
        engine = self._engine
        commands = engine.handle(event, now)
        starter = engine._starter
        for state in engine._turns.chains:
            if state.awake or not starter._slots[state.pool] or state.ending:
                continue
            self.sleepers += 1
            starter._elements.begin_turn()
            assert not starter._start(state), f"{state.chain.plan.head} sleeps through what it could start"
            assert not starter._end(state), f"{state.chain.plan.head} sleeps through its end"
        return commands


def watch(plan: PhysicalPlan, seed: int) -> int:
    """Run a plan, whose events come in an order of this seed; how often a chain was seen to sleep."""
    driver = MemoryDriver(plan, order=np.random.default_rng(seed))
    watched = [Watched(engine) for engine in driver.engines]
    driver.engines = watched  # type: ignore[assignment]
    driver.execute()
    return sum(engine.sleepers for engine in watched)


@settings(max_examples=150, deadline=None)
@given(shape=shapes, seed=st.integers(0, 2**32))
def test_chains_of_any_graph_that_sleep_have_nothing_to_start(shape: Shape, seed: int) -> None:
    watch(shape.plan(), seed)


@settings(max_examples=40, deadline=None)
@given(p=st.integers(1, 4), tasks=st.integers(1, 3), slack=st.sampled_from([0, 1, 4]), seed=st.integers(0, 2**32))
def test_chains_of_training_that_sleep_have_nothing_to_start(p: int, tasks: int, slack: int, seed: int) -> None:
    plan = compile_graph(integer_job(p, slack=slack), 3, compute_tasks=tasks, seed=seed % 1000)
    assert watch(plan, seed) > 0
