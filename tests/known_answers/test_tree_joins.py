"""Decision 0035: nodes come, die and come back while others share over a tree; all end with all updates, each once."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.topology import Topology, parse_topology
from tests.known_answers.growing import (
    MADE,
    WEIGHTS,
    GrowingDriver,
    assert_all_is_in,
    ends_exact_or_lost,
    growing_job,
    random_tree,
)

Moments = list[tuple[int, int]]
"""(events, node, or seed of a tree) each."""


@st.composite
def close_moments(draw: st.DrawFn) -> tuple[Moments, Moments, Moments]:
    """When nodes die or come, are asked to leave, and the tree is changed: at any time, or close to something else."""
    at = st.integers(0, 900)
    some = draw(st.lists(at, min_size=1, max_size=5))
    close = st.builds(lambda moment, after: max(0, moment + after), st.sampled_from(some), st.integers(-60, 60))
    turns, drains, changes = (
        draw(st.lists(st.tuples(at | close, st.integers(0, last)), max_size=size))
        for last, size in ((7, 9), (7, 2), (99, 3))
    )
    return turns, drains, changes


@settings(max_examples=80, deadline=None)
@given(
    tree=st.integers(0, 9999),
    nodes=st.integers(1, 6),
    more=st.integers(0, 2),
    moments=close_moments(),
    seed=st.none() | st.integers(0, 2**32 - 1),
    every=st.integers(1, 2),
    stop=st.none() | st.integers(0, 900),
    pieces=st.sampled_from([1, 7]),
)
def test_changes_and_nodes_that_come_and_go_at_any_moment_leave_exact_sums_or_updates_are_lost(
    tree: int,
    nodes: int,
    more: int,
    moments: tuple[Moments, Moments, Moments],
    seed: int | None,
    every: int,
    stop: int | None,
    pieces: int,
) -> None:
    """Nothing else fails it: no sum is wrong, nobody waits for ever, and no other error is raised.

    Sums are sent in so many messages.
    """
    places = nodes + more
    turns, drains = ([(at, node % places) for at, node in each] for each in moments[:2])
    changes = [(at, random_tree(to, nodes)) for at, to in moments[2]]
    spec = growing_job(random_tree(tree, nodes), nodes, places, rounds=20, every=every)
    with mock.patch("operators.layout.MAX_CELL", WEIGHTS // pieces + 1):
        ends_exact_or_lost(GrowingDriver(spec, turns, drains, changes, seed=seed, stop=stop))


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("topology", ["chain", "star", "twin_masters", "tree(2)"])
@pytest.mark.parametrize("dying", [0, 1, 4])
def test_node_that_dies_comes_back_and_makes_updates_that_all_have(topology: str, dying: int, seed: int | None) -> None:
    spec = growing_job(parse_topology(topology), 5, 5, rounds=40)
    driver = GrowingDriver(spec, [(250, dying), (400, dying)], seed=seed)
    driver.execute()
    assert assert_all_is_in(driver) == 1
    assert 0 < len(MADE[dying, 1]) < 40, "it goes on where its host was"


@pytest.mark.parametrize("at", range(30, 90, 6))
def test_change_that_is_asked_for_as_soon_as_a_node_is_back_is_refused_and_loses_nothing(at: int) -> None:
    """However late the others come to take over what it held: they hear of its death before the change."""
    dropped = 0
    for seed in range(4):
        changes = [(at + after, parse_topology("star")) for after in range(2, 30)]
        driver = GrowingDriver(
            growing_job(parse_topology("chain"), 3, 3, rounds=30), [(at, 2), (at + 2, 2)], changes=changes, seed=seed
        )
        assert ends_exact_or_lost(driver)
        dropped += any("nodes of the tree have died, or come" in each.reason for each in driver.told)
    assert dropped


@pytest.mark.parametrize(
    ("tree", "turns", "seed"),
    [
        (2965, [(26, 2), (28, 2), (374, 0), (387, 0), (416, 4), (443, 4)], 1432937921),
        (9384, [(85, 0), (113, 0), (220, 3), (223, 3), (363, 2), (391, 2)], 3027681547),
    ],
)
def test_node_that_joins_the_one_that_had_joined_it_hears_nothing_that_was_for_its_earlier_life(
    tree: int, turns: Moments, seed: int
) -> None:
    driver = GrowingDriver(growing_job(random_tree(tree, 4), 4, 5, rounds=20, every=2), turns, seed=seed)
    assert ends_exact_or_lost(driver)


def test_free_nodes_join_one_that_is_alone_and_one_takes_the_place_of_one_that_was_drained() -> None:
    spec = growing_job(Topology(), 1, 3, rounds=200)
    driver = GrowingDriver(spec, [(100, 2), (200, 1), (900, 2)], [(600, 2)])
    driver.execute()
    assert assert_all_is_in(driver) == 2
    assert driver.drained == {(2, 1)}
    assert all(MADE[life] for life in [(1, 1), (2, 1), (2, 2)])


def test_all_nodes_of_a_tree_are_replaced_one_after_the_other_and_again() -> None:
    spec = growing_job(parse_topology("chain"), 3, 3, rounds=300)
    turns = [(at + 200 * number, number % 3) for number in range(12) for at in (300, 400)]
    driver = GrowingDriver(spec, turns, seed=3)
    driver.execute()
    assert (driver.deaths, driver.joins, driver.incarnations) == (12, 12, [4, 4, 4])
    assert assert_all_is_in(driver) == 3


def test_node_that_comes_when_others_have_told_final_sums_makes_nothing_and_all_end() -> None:
    spec = growing_job(parse_topology("chain"), 3, 4, rounds=5)
    late = 0
    for at in range(0, 280, 5):
        driver = GrowingDriver(spec, [(at, 3)])
        driver.execute()
        assert_all_is_in(driver)
        roll: Any = driver.run.nodes[3].states["roll"]
        late += roll.idle
    assert late, "some came in time, others too late"


def test_nodes_that_join_know_how_many_updates_they_lack() -> None:
    driver = GrowingDriver(growing_job(parse_topology("star"), 3, 4, rounds=60), [(150, 1), (200, 1), (250, 3)], seed=5)
    driver.execute()
    for node in driver.run.nodes:
        replica: Any = node.states["replica"]
        assert replica.sharing.missing() == 0
        np.testing.assert_array_equal(replica.sharing.counts, driver.run.nodes[0].states["replica"].sharing.counts)  # type: ignore[attr-defined]
