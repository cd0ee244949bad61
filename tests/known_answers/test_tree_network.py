"""Methods, section 4, over networks with delays and connections that are cut."""

from __future__ import annotations

import pytest

from dataflow.plan.compile import compile_graph
from dataflow.testing.in_process import run_in_process
from tests.known_answers.shared import TOPOLOGIES, assert_shared, tree_job
from tests.known_answers.test_exactly_once_network import FAULTS, NETWORKS, Union

WEIGHTS = 997


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_sharing_of_integers_over_a_network_is_exact(kind: str, topology: str) -> None:
    graph = tree_job(topology, rounds=20, slack=3, consistency="ssp")
    run = run_in_process(compile_graph(graph, 4), Union(kind, (), seed=1))
    assert_shared(run.nodes, 20, WEIGHTS)


@pytest.mark.parametrize("kind", NETWORKS)
def test_sharing_by_the_clock_over_a_network_is_exact(kind: str) -> None:
    graph = tree_job("chain", rounds=20, slack=3, consistency="ssp", period_s=0.02)
    run = run_in_process(compile_graph(graph, 4), Union(kind, (), seed=1))
    assert_shared(run.nodes, 20, WEIGHTS)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("consistency", ["eventual", "assp"])
def test_sharing_over_a_faulty_network_is_exact(kind: str, consistency: str) -> None:
    graph = tree_job("tree(2)", rounds=30, slack=None if consistency == "eventual" else 4, consistency=consistency)
    run = run_in_process(compile_graph(graph, 4), Union(kind, FAULTS["delays and cuts"], seed=2))
    assert_shared(run.nodes, 30, WEIGHTS)
