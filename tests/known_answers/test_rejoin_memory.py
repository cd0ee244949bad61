"""Decision 0025: whoever dies and comes back, and whenever, live replicas hold all that live nodes made."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.plan.compile import compile_graph
from tests.known_answers.rejoining import (
    ROUNDS,
    WEIGHTS,
    Dying,
    assert_every_replica_is_accounted_for,
    borrowed,
    clocks_of,
    rejoining_job,
    settled,
    values,
)


@pytest.mark.parametrize("p", range(4))
def test_death_of_a_worker_leaves_the_others_with_everything_that_they_made(p: int) -> None:
    driver = Dying(compile_graph(rejoining_job(p, slack=2), 4), [(300, 1)])
    driver.execute()
    assert driver.run.buried == {1}
    assert [clocks_of(node).made for node in driver.run.nodes if node is not driver.run.nodes[1]] == [ROUNDS] * 3
    assert_every_replica_is_accounted_for(driver)


@pytest.mark.parametrize("p", range(4))
def test_worker_that_comes_back_makes_gradients_again_and_has_all_of_the_others(p: int) -> None:
    driver = Dying(compile_graph(rejoining_job(p, slack=2), 4), [(200, 1), (300, 1)])
    driver.execute()
    assert [settled(node) for node in driver.run.nodes] == [True] * 4
    assert [clocks_of(node).made for node in driver.run.nodes] == [ROUNDS] * 4
    assert_every_replica_is_accounted_for(driver)


def test_worker_that_takes_long_to_catch_up_dies_of_it_and_the_others_go_on() -> None:
    plan = compile_graph(rejoining_job(0, slack=2, cap_nbytes=1), 4)
    driver = Dying(plan, [(100, 1), (150, 1)], order=np.random.default_rng(0))
    driver.execute()
    assert driver.run.buried == {1}
    assert [(node, incarnation) for node, incarnation, _ in driver.deaths] == [(1, 0), (1, 1)]
    assert [clocks_of(node).made for node in driver.run.nodes if node is not driver.run.nodes[1]] == [ROUNDS] * 3
    assert_every_replica_is_accounted_for(driver)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), kept=st.integers(1, 6), back=st.integers(100, 200), again=st.integers(200, 400))
def test_worker_that_catches_up_within_what_is_kept_for_it_or_begins_anew_is_accounted_for(
    seed: int, kept: int, back: int, again: int
) -> None:
    plan = compile_graph(rejoining_job(0, slack=2, cap_nbytes=kept * 4 * WEIGHTS), 4, seed=seed % 1000)
    driver = Dying(plan, [(100, 1), (back, 1), (again, 1)], order=np.random.default_rng(seed))
    driver.execute()
    assert_every_replica_is_accounted_for(driver)


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_bulk_synchronous_worker_that_comes_back_ends_with_what_the_others_have(nodes: int) -> None:
    driver = Dying(compile_graph(rejoining_job(-1), nodes), [(30 * nodes, 1), (32 * nodes, 1)])
    first, *others = driver.execute().nodes
    assert driver.incarnations == [0, 1, 0, 0][:nodes]
    assert borrowed(others[0])
    assert [clocks_of(node).made for node in (first, *others)] == [ROUNDS] * nodes
    for other in others:
        np.testing.assert_array_equal(values(other), values(first))


@settings(max_examples=30, deadline=None)
@given(
    nodes=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
    turns=st.lists(st.tuples(st.integers(0, 450), st.integers(0, 3)), max_size=4),
)
def test_bulk_synchronous_deaths_and_returns_at_any_moment_leave_nobody_waiting(
    nodes: int, seed: int, turns: list[tuple[int, int]]
) -> None:
    plan = compile_graph(rejoining_job(-1), nodes, seed=seed % 1000)
    driver = Dying(plan, [(when, node % nodes) for when, node in turns], order=np.random.default_rng(seed))
    run = driver.execute()
    live = [run.nodes[node] for node in range(nodes) if node not in run.buried and settled(run.nodes[node])]
    assert [clocks_of(node).made for node in live] == [ROUNDS] * len(live)
    assert [clocks_of(node).rejected for node in live] == [0] * len(live)


@settings(max_examples=100, deadline=None)
@given(
    p=st.integers(0, 4),
    nodes=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
    restless=st.booleans(),
    slack=st.sampled_from([None, 0, 3]),
    turns=st.lists(st.tuples(st.integers(0, 450), st.integers(0, 3)), max_size=4),
)
def test_deaths_and_returns_at_any_moment_in_any_order_are_accounted_for(
    p: int, nodes: int, seed: int, restless: bool, slack: int | None, turns: list[tuple[int, int]]
) -> None:
    plan = compile_graph(rejoining_job(p, slack=slack, restless=restless and p > 0), nodes, seed=seed % 1000)
    driver = Dying(plan, [(when, node % nodes) for when, node in turns], order=np.random.default_rng(seed))
    driver.execute()
    assert_every_replica_is_accounted_for(driver)
