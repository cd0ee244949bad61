"""What is predicted of topologies: the paper's bound, loads, and the order in which the simulator has them."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from ako_jobs.tree_plan import Costs, compare, predict

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks" / "reproductions"))

from tree_paper import run

COSTS = Costs(update_s=0.05, hop_s=0.1, link_s=0.096, period_s=1.0, pushes=3)


@pytest.mark.parametrize(("degree", "levels"), [(2, 3), (2, 5), (3, 2), (4, 3)])
def test_delay_of_a_full_tree_is_the_papers_bound_with_a_child_less_at_the_root(degree: int, levels: int) -> None:
    """2 t log_d N + C d (2 log_d N - 1), with log_d N the levels below the root, has d others at the root as well."""
    nodes = sum(degree**level for level in range(levels + 1))
    printed = 2 * 0.1 * levels + 0.05 * degree * (2 * levels - 1)
    inner = 2 * (levels - 1)  # nodes of a way between leaves, but the root: each has d others to tell
    found = predict(f"tree({degree})", nodes, COSTS)
    assert math.isclose(found.delay_s, 2 * 0.1 * levels + 0.05 * (degree * inner + degree - 1))
    assert math.isclose(found.delay_s, printed - 0.05)
    assert found.hops == 2 * levels


def test_predictions_of_ten_nodes_are_these() -> None:
    star, chain, twins = (predict(each, 10, COSTS) for each in ("star", "chain", "twin_masters"))
    assert (star.hops, star.degree, chain.hops, chain.degree, twins.hops, twins.degree) == (2, 9, 9, 2, 3, 5)
    assert math.isclose(star.delay_s, 2 * 0.1 + 0.05 * 8)
    assert math.isclose(chain.delay_s, 9 * 0.1 + 0.05 * 8)
    assert math.isclose(twins.delay_s, 3 * 0.1 + 0.05 * 8)
    assert math.isclose(star.busy, 0.05 * 21)
    assert math.isclose(chain.busy, 0.05 * 7)
    assert math.isclose(twins.busy, 0.05 * 13)
    assert math.isclose(star.link, 9 * 0.096)
    assert [each.holds for each in (star, chain, twins)] == [False, True, True]


def test_comparison_puts_those_that_hold_first_by_delay() -> None:
    order = [each.topology for each in compare(10, COSTS, ("chain", "star", "twin_masters"))]
    assert order == ["twin_masters", "chain", "star"]
    cheap = Costs(update_s=0.001, hop_s=0.1, link_s=0.01)
    assert compare(10, cheap, ("chain", "star", "twin_masters"))[0].topology == "star"


def test_prediction_of_one_node_and_of_two_is_no_way_and_one_hop() -> None:
    alone, pair = predict("chain", 1, COSTS), predict("star", 2, COSTS)
    assert (alone.hops, alone.degree, alone.delay_s) == (0, 0, 0.0)
    assert (pair.hops, pair.degree, pair.delay_s) == (1, 1, 0.1)


def test_simulator_has_topologies_in_the_order_of_their_predictions() -> None:
    """An update on each of ten nodes at once, where a hop takes as long whoever else sends."""
    order = ["star", "twin_masters", "tree(2)", "chain"]
    costs = Costs(update_s=0.01, hop_s=0.1, link_s=1e-9)
    simulated = {
        shape: run(shape, 10, 0.01, "newest", updates=1, workers=1, rate=1e12, latency_s=0.1).converged_s
        for shape in order
    }
    assert [each.topology for each in compare(10, costs, order)] == order
    assert sorted(order, key=simulated.__getitem__) == order
