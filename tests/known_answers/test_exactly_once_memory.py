"""Methods, section 1: at the end each worker has applied exactly the sum of every other worker's gradients."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.engine.events import Measured
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.plan.compile import compile_graph
from dataflow.reports import Rates
from operators.cost_model import Choice, CostModel
from operators.messages import Accumulated, Offer
from operators.partition import Partition, RotationState
from tests.known_answers.integers import assert_exact, expected, integer_job

ROUNDS, WEIGHTS = 7, 997


class Measuring(MemoryDriver):
    """Has any node hear at any time how fast it is."""

    def _step(self) -> bool:
        assert self._order is not None
        if not self._order.integers(8):
            node = int(self._order.integers(len(self.engines)))
            self._put(("rates", node), node, Measured(Rates(seconds=1.0)))
        return super()._step()


@pytest.mark.parametrize("p", range(1, 7))
def test_exchange_of_integers_in_memory_is_exact(p: int) -> None:
    run = MemoryDriver(compile_graph(integer_job(p), 4)).execute()
    assert_exact(run.nodes, ROUNDS, WEIGHTS)


@settings(max_examples=60, deadline=None)
@given(
    p=st.integers(1, 6),
    nodes=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
    restless=st.booleans(),
    slack=st.sampled_from([None, 0, 1, 5]),
)
def test_exchange_in_any_order_with_any_p_is_exact(
    p: int, nodes: int, seed: int, restless: bool, slack: int | None
) -> None:
    plan = compile_graph(integer_job(p, restless=restless, slack=slack), nodes, seed=seed % 1000)
    run = Measuring(plan, order=np.random.default_rng(seed)).execute()
    assert_exact(run.nodes, ROUNDS, WEIGHTS)


@settings(max_examples=30, deadline=None)
@given(window=st.integers(1, 9000), seed=st.integers(0, 2**32 - 1))
def test_exchange_with_little_credit_sends_longer_intervals_and_is_exact(window: int, seed: int) -> None:
    plan = compile_graph(integer_job(2), 3).model_copy(update={"window_nbytes": window})
    run = MemoryDriver(plan, order=np.random.default_rng(seed)).execute()
    assert_exact(run.nodes, ROUNDS, WEIGHTS)


class PrintedPartition(Partition):
    """The paper's line 9, ``k = i mod p``, which never rotates; and no flush at the end, which the paper has not."""

    def process(self, accumulated: Accumulated, rotation: RotationState) -> object:  # type: ignore[override]
        for receiver in rotation.receivers:
            p, cells = rotation.choice.partitions, self.layout.cells
            k = receiver % p
            yield self.offers(Offer(receiver, cells * k // p, cells * (k + 1) // p))

    def on_end(self) -> object:  # type: ignore[override]
        yield from ()


@pytest.mark.parametrize("p", range(1, 7))
def test_exchange_as_printed_never_delivers_the_other_partitions(p: int) -> None:
    graph = integer_job(p)
    layout = graph.operator("partition")
    graph = graph.replace("partition", PrintedPartition.model_validate_json(layout.params))
    run = MemoryDriver(compile_graph(graph, 4)).execute()
    wrong = [
        not np.array_equal(node.states["replica"].tensors()["values"], expected(4, ROUNDS, WEIGHTS))
        for node in run.nodes
    ]
    assert wrong == [p >= 2] * 4


def test_rotation_at_constant_p_is_i_plus_j_plus_t_mod_p() -> None:
    p, cells, i = 4, 60, 2
    rotation = RotationState(Choice(p, 1), {i: Fraction((i + 1) % p, p)}, CostModel(model_nbytes=1))
    turns = [list(rotation.turn(i, cells)) for _ in range(6)]
    assert turns == [[(15 * ((i + 1 + t) % p), 15 * ((i + 1 + t) % p) + 15)] for t in range(6)]
