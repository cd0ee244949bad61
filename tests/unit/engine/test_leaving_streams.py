"""A node that leaves, among nodes that answer each other's questions: nobody's stream to it stays shut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dataflow.engine.memory_driver import MemoryDriver
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.message import Message, Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, EndOfData, Operator
from dataflow.plan.compile import compile_graph
from dataflow.ports import In, Out
from dataflow.reports import OperatorReport

ROUNDS, LEAVER, QUESTIONS = 60, 1, 8
NUMBERS = 300_000
"""Of a question and of its answer: four fill a stream's window."""


@dataclass(frozen=True, slots=True)
class Question(Message):
    origin: int
    numbers: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Answer(Message):
    numbers: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Asked(Message):
    step: int


class Ask(Operator):
    source = True
    sends = True
    questions = Out(Question)
    asked = Out(Asked, reported=True)

    def process(self, tick: Tick, node: NodeContext) -> Emissions:
        if tick.step >= ROUNDS:
            yield EndOfData()
            return
        yield self.asked(Asked(tick.step))
        for _ in range(QUESTIONS):
            yield self.questions(Question(node.index, np.zeros(NUMBERS, np.float32)))


class Reply(Operator):
    pool = "network"
    sends = True
    receives = True
    questions = In(Question)
    answers = Out(Answer)

    def process(self, question: Question) -> Emissions:
        yield self.answers(Answer(question.numbers), to=question.origin)


class Take(Operator):
    pool = "network"
    receives = True
    answers = In(Answer)

    def process(self, answer: Answer) -> Iterator[Any]:
        yield from ()


@pytest.mark.parametrize("seed", range(6))
def test_node_that_leaves_returns_the_credit_of_what_it_no_longer_takes_in(seed: int) -> None:
    """Else those that answer it had no credit left, and took in none of its questions any more; it waited for that."""
    graph = (
        LogicalGraph(name="questions")
        .with_role("worker", "all")
        .with_operator("ask", Ask(), role="worker")
        .with_operator("reply", Reply(), role="worker")
        .with_operator("take", Take(), role="worker")
        .connect("ask.questions", "reply.questions", route=Route.ONE_TO_ALL)
        .connect("reply.answers", "take.answers", route=Route.BY_DESTINATION)
    )
    asked = dict.fromkeys(range(3), 0)

    def on_report(driver: MemoryDriver, node: int, report: OperatorReport) -> None:
        asked[node] += 1
        if (node, asked[node]) == (LEAVER, ROUNDS // 3):
            driver.leave(LEAVER)

    driver = MemoryDriver(compile_graph(graph, 3), order=np.random.default_rng(seed), on_report=on_report)
    driver.execute()
    assert driver.run.buried == {LEAVER}
    assert asked[LEAVER] < ROUNDS
    assert asked[0] == asked[2] == ROUNDS
