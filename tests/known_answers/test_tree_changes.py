"""Methods, section 4: a tree that somebody changes while its nodes go on; every sum stays exact."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.engine import coordination as co
from dataflow.engine.events import Outcome, Task
from dataflow.plan.compile import compile_graph
from operators.reconfigure import region
from operators.topology import Topology, parse_topology
from tests.known_answers.changing import ChangingDriver
from tests.known_answers.shared import TOPOLOGIES, assert_shared, tree_job
from tests.known_answers.simulated import simulator

ROUNDS, WEIGHTS = 7, 997
MOVED = Topology(kind="edges", edges=((0, 1), (1, 2), (2, 3), (3, 4), (3, 5)))
"""A chain of six whose last node has gone to the one before its neighbour."""


def random_tree(seed: int, nodes: int) -> Topology:
    rng = random.Random(seed)
    names = rng.sample(range(nodes), nodes)
    return Topology(kind="edges", edges=tuple((names[rng.randrange(at)], names[at]) for at in range(1, nodes)))


@settings(max_examples=60, deadline=None)
@given(
    trees=st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 99)), max_size=4),
    nodes=st.integers(1, 7),
    seed=st.integers(0, 2**32 - 1),
    consistency=st.sampled_from(["eventual", "ssp", "assp"]),
    every=st.integers(1, 3),
    period_s=st.sampled_from([0.0, 1.0]),
    planned=st.sampled_from([None, None, 1, 3, 9]),
)
def test_sharing_over_random_trees_that_are_changed_at_random_moments_is_exact(
    trees: list[tuple[int, int]],
    nodes: int,
    seed: int,
    consistency: str,
    every: int,
    period_s: float,
    planned: int | None,
) -> None:
    graph = tree_job(
        "chain",
        slack=None if consistency == "eventual" else every,
        every=every,
        consistency=consistency,
        period_s=0.02,
        then=None if planned is None else "star",
        change_after=planned,
    )
    changes = [(at, random_tree(tree, nodes)) for at, tree in trees]
    driver = ChangingDriver(compile_graph(graph, nodes), changes, order=np.random.default_rng(seed))
    run = driver.execute()
    assert_shared(run.nodes, ROUNDS, WEIGHTS)
    asked = [each.number for each in driver.told if each.stage == "asked"]
    ends = [each.number for each in driver.told if each.stage in ("settled", "dropped") and each.number != 1]
    assert ends == asked, "each change that was asked for comes to one end"


def test_change_that_is_asked_for_while_all_run_is_settled_and_touches_the_region_alone() -> None:
    before, after = (
        parse_topology("chain").of(6),
        Topology(kind="edges", edges=((0, 1), (1, 2), (2, 3), (3, 4), (3, 5))),
    )
    graph = tree_job("chain", rounds=30)
    driver = ChangingDriver(compile_graph(graph, 6), [(60, after)], order=np.random.default_rng(4))
    run = driver.execute()
    assert_shared(run.nodes, 30, WEIGHTS)
    assert [each.stage for each in driver.told] == ["asked", "begun", "settled"]
    assert set(driver.told[-1].touched) == region(before, after.of(6)) == {3, 4}


@pytest.mark.parametrize("seed", [18, 24])
def test_node_that_has_made_all_and_hears_of_a_change_from_a_neighbour_first_ends(seed: int) -> None:
    after = Topology(kind="edges", edges=((0, 3), (3, 1), (1, 2)))
    plan = compile_graph(tree_job("chain", rounds=3, every=3), 4)
    driver = ChangingDriver(plan, [(40, after)], order=np.random.default_rng(seed))
    assert_shared(driver.execute().nodes, 3, WEIGHTS)
    assert [each.stage for each in driver.told] == ["asked", "begun", "settled"]


@pytest.mark.parametrize("at", [10_000, 0])
def test_change_that_a_node_is_too_late_for_is_dropped_or_never_asked_for(at: int) -> None:
    driver = ChangingDriver(compile_graph(tree_job("chain"), 4), [(at, Topology(kind="star"))])
    run = driver.execute()
    assert_shared(run.nodes, ROUNDS, WEIGHTS)
    assert driver.stages() == ([] if at else ["settled"])


def test_node_that_refuses_has_the_change_dropped_on_all() -> None:
    graph = tree_job("chain", waves="root")
    driver = ChangingDriver(compile_graph(graph, 4), [(20, Topology(kind="star"))])
    run = driver.execute()
    assert_shared(run.nodes, ROUNDS, WEIGHTS)
    assert driver.stages() == ["dropped"]
    assert "bsp or waves=root" in driver.told[-1].reason


@pytest.mark.parametrize("text", ['{"kind":"edges","edges":[[0,1],[1,2],[2,0]]}', '{"kind":"ring"}', "x"])
def test_change_to_what_is_no_tree_of_the_nodes_is_refused_and_the_job_goes_on(text: str) -> None:
    driver = ChangingDriver(compile_graph(tree_job("chain"), 3), [])
    driver.begin_asking(20, text)
    run = driver.execute()
    assert_shared(run.nodes, ROUNDS, WEIGHTS)
    assert driver.stages() == ["dropped"]
    assert driver.told[-1].reason.startswith("node-")


def test_only_nodes_of_the_region_pause_while_a_simulated_tree_is_changed_on_command() -> None:
    """A gradient takes 1 ms, on each node one follows the other; nodes outside the region pull all the time."""
    begun: dict[int, list[float]] = {}

    def perform(node: int, task: Task) -> Outcome:
        if task.chain == "compute" and task.role == "message":
            begun.setdefault(node, []).append(simulation._clock.now())
        return task.run()

    graph = tree_job("chain", rounds=60, n_weights=50_000)
    simulation = simulator(graph, 6, latency_s=0.005, compute="constant", tasks=2, seed=3)
    told = []
    simulation._on_event = lambda event: told.append(event.adjustment)
    simulation._perform = perform
    after = MOVED
    simulation._clock.at(0.02, simulation._coordinate, co.AdjustAsked("one", after.model_dump_json()))
    simulation._clock.at(0.021, simulation._coordinate, co.AdjustAsked("two", after.model_dump_json()))
    run = simulation.run()
    assert run.state == "FINISHED", run.reason
    assert_shared(run.nodes, 60, 50_000)
    steps = [each for each in told if each is not None]
    assert [each.stage for each in steps] == ["asked", "begun", "settled"]
    assert steps[-1].touched == (3, 4)
    assert 0 < steps[-1].outside_s < 0.1
    assert 0 < steps[-1].inside_s < 0.1
    for node, moments in begun.items():
        assert len(moments) == 61
        assert np.diff(moments).max() < 0.01, node


def test_replicas_told_by_a_period_have_never_less_of_others_than_before_while_the_tree_is_changed() -> None:
    simulation = simulator(
        tree_job("chain", rounds=150, n_weights=5_000, period_s=0.02),
        6,
        latency_s=0.002,
        compute="constant",
        tasks=2,
        seed=3,
    )
    newest: dict[int, int] = {}

    def perform(node: int, task: Task) -> Outcome:
        outcome = task.run()
        pulled = int(simulation.run_so_far.nodes[node].states["replica"].pulled.sum())  # type: ignore[attr-defined]
        assert pulled >= newest.get(node, 0), node
        newest[node] = pulled
        return outcome

    told = []
    simulation._on_event = lambda event: told.append(event.adjustment)
    simulation._perform = perform
    simulation._clock.at(0.3, simulation._coordinate, co.AdjustAsked("one", MOVED.model_dump_json()))
    run = simulation.run()
    assert run.state == "FINISHED", run.reason
    assert [each.stage for each in told if each is not None] == ["asked", "begun", "settled"]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_planned_change_is_told_like_one_that_is_asked_for(topology: str) -> None:
    graph = tree_job("chain", then=topology, change_after=3)
    driver = ChangingDriver(compile_graph(graph, 5), [])
    assert_shared(driver.execute().nodes, ROUNDS, WEIGHTS)
    assert [each.stage for each in driver.told] == ["begun", "settled"]
    assert set(driver.told[-1].touched) == region(parse_topology("chain").of(5), parse_topology(topology).of(5))
