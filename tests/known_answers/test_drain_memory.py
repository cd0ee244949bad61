"""Decision 0029: whoever leaves by request, and whenever, the others have all that it made."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.plan.compile import compile_graph
from tests.known_answers.rejoining import (
    ROUNDS,
    Dying,
    assert_every_replica_is_accounted_for,
    clocks_of,
    rejoining_job,
    values,
)


@pytest.mark.parametrize("p", range(4))
@pytest.mark.parametrize("node", [0, 1])
def test_worker_that_leaves_by_request_gives_the_others_all_that_it_made(p: int, node: int) -> None:
    driver = Dying(compile_graph(rejoining_job(p, slack=2), 4), [], [(200, node)])
    driver.execute()
    ((left, incarnation, numbers),) = driver.left
    assert (left, incarnation, driver.deaths) == (node, 0, [])
    assert 0 < len(numbers) < ROUNDS
    assert driver.run.buried == {node}
    assert [clocks_of(each).made for at, each in enumerate(driver.run.nodes) if at != node] == [ROUNDS] * 3
    assert_every_replica_is_accounted_for(driver)


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_bulk_synchronous_workers_go_on_with_the_mean_of_those_that_stay(nodes: int) -> None:
    driver = Dying(compile_graph(rejoining_job(-1), nodes), [], [(30 * nodes, 1)])
    first, _, *others = driver.execute().nodes
    assert [left[:2] for left in driver.left] == [(1, 0)]
    assert [clocks_of(node).made for node in (first, *others)] == [ROUNDS] * (nodes - 1)
    for other in others:
        np.testing.assert_array_equal(values(other), values(first))


@pytest.mark.parametrize("p", range(4))
def test_place_of_a_worker_that_left_can_be_taken_while_the_others_go_on(p: int) -> None:
    driver = Dying(compile_graph(rejoining_job(p, slack=2), 4), [(320, 1)], [(150, 1)])
    driver.execute()
    assert [left[:2] for left in driver.left] == [(1, 0)]
    assert driver.incarnations == [0, 1, 0, 0]
    assert [clocks_of(node).made for node in driver.run.nodes] == [ROUNDS] * 4
    assert_every_replica_is_accounted_for(driver)


@settings(max_examples=100, deadline=None)
@given(
    p=st.integers(0, 4),
    nodes=st.integers(2, 4),
    seed=st.integers(0, 2**32 - 1),
    slack=st.sampled_from([None, 0, 3]),
    drains=st.lists(st.tuples(st.integers(0, 450), st.integers(0, 3)), min_size=1, max_size=3),
)
def test_leaving_at_any_moment_in_any_order_loses_nothing(
    p: int, nodes: int, seed: int, slack: int | None, drains: list[tuple[int, int]]
) -> None:
    plan = compile_graph(rejoining_job(p, slack=slack), nodes, seed=seed % 1000)
    driver = Dying(plan, [], [(when, node % nodes) for when, node in drains], order=np.random.default_rng(seed))
    driver.execute()
    assert driver.deaths == []
    assert_every_replica_is_accounted_for(driver)


@settings(max_examples=100, deadline=None)
@given(
    p=st.integers(-1, 4),
    nodes=st.integers(2, 4),
    seed=st.integers(0, 2**32 - 1),
    turns=st.lists(st.tuples(st.integers(0, 450), st.integers(0, 3)), max_size=3),
    drains=st.lists(st.tuples(st.integers(0, 450), st.integers(0, 3)), min_size=1, max_size=2),
)
def test_leaving_among_deaths_and_returns_leaves_nobody_waiting(
    p: int, nodes: int, seed: int, turns: list[tuple[int, int]], drains: list[tuple[int, int]]
) -> None:
    plan = compile_graph(rejoining_job(p, slack=2), nodes, seed=seed % 1000)
    turns, drains = [(when, node % nodes) for when, node in turns], [(when, node % nodes) for when, node in drains]
    driver = Dying(plan, turns, drains, order=np.random.default_rng(seed))
    driver.execute()
    if p >= 0:
        assert_every_replica_is_accounted_for(driver)
