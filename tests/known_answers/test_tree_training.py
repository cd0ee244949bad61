"""Trees of workers on real images: bulk-synchronous rounds, codecs, and how replicas end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dataflow.engine.memory_driver import MemoryDriver, MemoryRun
from dataflow.plan.compile import compile_graph
from tests.known_answers.shared import TOPOLOGIES
from tests.known_answers.training import BASE, job, plain_sgd, replica


def run(kind: str, nodes: int, order: np.random.Generator | None = None, **settings: Any) -> MemoryRun:
    return MemoryDriver(compile_graph(job(kind, **settings), nodes, seed=BASE["seed"]), order=order).execute()


@pytest.mark.parametrize("consistency", ["bsp", "ssp", "assp", "eventual"])
def test_one_worker_of_a_tree_is_plain_sgd_within_rounding(consistency: str) -> None:
    result = run("tree", 1, consistency=consistency)
    np.testing.assert_allclose(replica(result.nodes[0]), plain_sgd(), atol=2e-6)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_bsp_on_a_tree_equals_bsp_all_to_all_within_rounding(topology: str) -> None:
    """In any order of events: no node computes on what belongs to a later round."""
    want = replica(run("all_to_all", 4, consistency="bsp").nodes[0])
    result = run("tree", 4, np.random.default_rng(5), topology=topology, consistency="bsp")
    for node in result.nodes:
        np.testing.assert_allclose(replica(node), want, atol=2e-6)


@pytest.mark.parametrize("codec", ["threshold", "topk", "fp16", "onebit"])
@pytest.mark.parametrize("change", [{}, {"then": "star", "change_after": 4}])
def test_coded_replicas_end_alike_within_rounding(codec: str, change: dict[str, Any]) -> None:
    result = run("tree", 4, np.random.default_rng(7), topology="tree(2)", codec=codec, **change)
    ends = [replica(node) for node in result.nodes]
    assert not np.allclose(ends[0], replica(run("tree", 4, epochs=0.02).nodes[0]), atol=1e-3)
    for one, other in pairwise(ends):
        np.testing.assert_allclose(one, other, atol=2e-6)
