"""Methods, section 4, in the memory driver: every replica ends as the sum of all updates, exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.engine.memory_driver import MemoryDriver
from dataflow.plan.compile import compile_graph
from tests.known_answers.shared import TOPOLOGIES, assert_shared, tree_job

ROUNDS, WEIGHTS = 7, 997


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("consistency", ["eventual", "ssp", "assp"])
@pytest.mark.parametrize("waves", ["neighbours", "root"])
def test_sharing_of_integers_in_memory_is_exact(topology: str, consistency: str, waves: str) -> None:
    slack = None if consistency == "eventual" else 1
    graph = tree_job(topology, slack=slack, consistency=consistency, waves=waves)
    run = MemoryDriver(compile_graph(graph, 4)).execute()
    assert_shared(run.nodes, ROUNDS, WEIGHTS)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_sharing_of_6_less_3_0_and_8_is_11_everywhere(topology: str) -> None:
    graph = tree_job(topology, rounds=1, given=(6, -3, 0, 8))
    run = MemoryDriver(compile_graph(graph, 4)).execute()
    for node in run.nodes:
        np.testing.assert_array_equal(node.states["replica"].tensors()["values"], np.full(WEIGHTS, 11.0))


@settings(max_examples=40, deadline=None)
@given(
    topology=st.sampled_from(TOPOLOGIES),
    nodes=st.integers(1, 6),
    seed=st.integers(0, 2**32 - 1),
    consistency=st.sampled_from(["eventual", "ssp", "assp"]),
    bound=st.integers(0, 5),
    every=st.integers(1, 3),
    waves=st.sampled_from(["neighbours", "root"]),
    period_s=st.sampled_from([0.0, 0.0, 1.0]),
    window=st.sampled_from([1, 9000, 4 << 20]),
)
def test_sharing_in_any_order_is_exact(
    topology: str,
    nodes: int,
    seed: int,
    consistency: str,
    bound: int,
    every: int,
    waves: str,
    window: int,
    period_s: float,
) -> None:
    slack = None if consistency == "eventual" else bound + every - 1
    graph = tree_job(topology, slack=slack, every=every, consistency=consistency, waves=waves, period_s=period_s)
    plan = compile_graph(graph, nodes).model_copy(update={"window_nbytes": window})
    run = MemoryDriver(plan, order=np.random.default_rng(seed)).execute()
    assert_shared(run.nodes, ROUNDS, WEIGHTS)


@settings(max_examples=50, deadline=None)
@given(
    before=st.sampled_from(TOPOLOGIES),
    after=st.sampled_from(TOPOLOGIES),
    nodes=st.integers(1, 7),
    seed=st.integers(0, 2**32 - 1),
    change_after=st.integers(1, 9),
    consistency=st.sampled_from(["eventual", "ssp", "assp"]),
    period_s=st.sampled_from([0.0, 1.0]),
)
def test_sharing_over_a_tree_that_changes_meanwhile_is_exact(
    before: str, after: str, nodes: int, seed: int, change_after: int, consistency: str, period_s: float
) -> None:
    """Each node changes its neighbours at its own gradient, some before others have, and at the latest at its end."""
    slack = None if consistency == "eventual" else 1
    graph = tree_job(
        before, then=after, change_after=change_after, slack=slack, consistency=consistency, period_s=period_s
    )
    run = MemoryDriver(compile_graph(graph, nodes), order=np.random.default_rng(seed)).execute()
    assert_shared(run.nodes, ROUNDS, WEIGHTS)
