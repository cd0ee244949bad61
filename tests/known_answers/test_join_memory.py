"""Decision 0029: a node that joins in a place that nobody had has all that the others made, and they have its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dataflow.graph.logical import LogicalGraph
from dataflow.plan.job import JobSpec
from dataflow.plan.physical import PhysicalPlan
from tests.known_answers.rejoining import (
    ROUNDS,
    Dying,
    assert_every_replica_is_accounted_for,
    borrowed,
    clocks_of,
    first,
    rejoining_job,
    settled,
    values,
)

LONG = 3 * ROUNDS
"""Gradients of a worker, where it takes a while to join."""


def plan_of(graph: LogicalGraph, nodes: int, max_nodes: int, seed: int = 0) -> PhysicalPlan:
    return JobSpec(name="joining", graph=graph, nodes=nodes, max_nodes=max_nodes, seed=seed).plan()


@pytest.mark.parametrize("p", range(-1, 4))
def test_job_with_places_that_nobody_takes_is_as_exact_as_ever(p: int) -> None:
    driver = Dying(plan_of(rejoining_job(p, slack=2), 2, 4), [])
    driver.execute()
    assert driver.run.buried == {2, 3}
    assert [clocks_of(node).made for node in driver.run.nodes] == [ROUNDS, ROUNDS, 0, 0]
    if p >= 0:
        assert_every_replica_is_accounted_for(driver)


@pytest.mark.parametrize("p", range(4))
def test_worker_that_joins_makes_gradients_and_everybody_has_all_of_them(p: int) -> None:
    driver = Dying(plan_of(rejoining_job(p, slack=0, rounds=LONG), 2, 4), [(20, 3)])
    driver.execute()
    newcomer = driver.run.nodes[3]
    assert (driver.incarnations, driver.run.buried) == ([0, 0, 0, 1], {2})
    assert borrowed(newcomer)
    assert 0 < first(newcomer) < clocks_of(newcomer).made == LONG
    assert driver.deaths == driver.left == []
    assert_every_replica_is_accounted_for(driver)


def test_bulk_synchronous_worker_that_joins_takes_part_in_every_later_step() -> None:
    driver = Dying(plan_of(rejoining_job(-1, rounds=LONG), 2, 3), [(50, 2)])
    nodes = driver.execute().nodes
    assert [clocks_of(node).made for node in nodes] == [LONG] * 3
    assert 0 < first(nodes[2]) < LONG
    for other in nodes[1:]:
        np.testing.assert_array_equal(values(other), values(nodes[0]))


Moments = list[tuple[int, int]]
"""(events, node) each."""


@st.composite
def turns_and_drains(draw: st.DrawFn) -> tuple[Moments, Moments]:
    """When nodes die or come, and when one is asked to leave: at any time, or close to one of these."""
    turns = draw(st.lists(st.tuples(st.integers(0, 450), st.integers(0, 3)), min_size=1, max_size=4))
    close = st.builds(lambda turn, after: max(0, turn[0] + after), st.sampled_from(turns), st.integers(-20, 20))
    drains = draw(st.lists(st.tuples(st.integers(0, 450) | close, st.integers(0, 3)), max_size=1))
    return turns, drains


@settings(max_examples=100, deadline=None)
@given(
    p=st.integers(-1, 4),
    nodes=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
    slack=st.sampled_from([None, 0, 3]),
    moments=turns_and_drains(),
)
@example(p=0, nodes=1, seed=0, slack=None, moments=([(0, 1), (0, 2)], []))  # two that join at once
@example(p=0, nodes=1, seed=0, slack=None, moments=([(0, 1), (2, 2)], []))
# Bulk-synchronous: whoever lends waits for a step that lacks the gradient of one that leaves, and stays for the joiner.
@example(p=-1, nodes=2, seed=2105056422, slack=None, moments=([(66, 2)], [(64, 0)]))
@example(p=-1, nodes=2, seed=336061339, slack=None, moments=([(99, 3)], [(104, 1)]))
@example(p=-1, nodes=3, seed=1546212104, slack=None, moments=([(59, 1), (217, 3)], [(222, 2)]))
@example(p=-1, nodes=3, seed=1681994893, slack=None, moments=([(130, 0), (81, 0)], [(117, 1)]))
@example(p=-1, nodes=3, seed=1287164341, slack=None, moments=([(193, 3)], [(174, 0)]))
@example(p=-1, nodes=3, seed=222234275, slack=None, moments=([(67, 3)], [(75, 0)]))
# Of two that join one begins behind where the other's loan ends: it has no part in the steps between.
@example(p=-1, nodes=3, seed=0, slack=None, moments=([(265, 0), (282, 0), (299, 3)], []))
# One dies and comes back while another catches up: words and loans tell of the dead one, in whose place it is,
@example(p=0, nodes=2, seed=104109475, slack=0, moments=([(111, 2), (154, 1), (155, 1)], []))
@example(p=-1, nodes=3, seed=1017980875, slack=0, moments=([(55, 0), (56, 0), (116, 2), (116, 2)], []))
@example(p=-1, nodes=2, seed=3651191990, slack=3, moments=([(65, 3), (185, 3), (190, 3)], []))
# and what is applied of it may be ahead of the word that says where it begins,
@example(p=0, nodes=3, seed=46321493, slack=0, moments=([(57, 3), (151, 2), (151, 2)], []))
# or still be the dead one's.
@example(
    p=0,
    nodes=3,
    seed=848558681,
    slack=3,
    moments=([(120, 0), (125, 0), (123, 2), (123, 2), (323, 1), (325, 1), (326, 1), (346, 1)], []),
)
@example(  # word of one that is dead, to begin to send to it, heard after its death: what is sent reaches its successor
    p=1, nodes=2, seed=3486903624, slack=0, moments=([(41, 2), (141, 0), (141, 0), (144, 2), (144, 2)], [])
)
def test_joining_among_deaths_and_drains_at_any_moment_is_accounted_for(
    p: int, nodes: int, seed: int, slack: int | None, moments: tuple[Moments, Moments]
) -> None:
    plan = plan_of(rejoining_job(p, slack=slack), nodes, 4, seed % 1000)
    driver = Dying(plan, *moments, order=np.random.default_rng(seed))
    run = driver.execute()
    live = [run.nodes[node] for node in range(4) if node not in run.buried and settled(run.nodes[node])]
    assert [clocks_of(node).rejected for node in live] == [0] * len(live)
    if p >= 0:
        assert_every_replica_is_accounted_for(driver)
