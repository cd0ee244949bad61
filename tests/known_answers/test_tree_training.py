"""Trees of workers on real images: bulk-synchronous rounds, codecs, and how replicas end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from ako_jobs.simulate import simulate
from dataflow.engine.memory_driver import MemoryDriver, MemoryRun
from dataflow.plan.compile import compile_graph
from dataflow.sim.faults import parse_fault
from dataflow.sim.model import ClusterModel
from operators.edge_codes import EdgeCodes
from operators.messages import Vector
from operators.shared_replica_state import SharedReplicaState
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


@pytest.mark.parametrize("consistency", ["bsp", "eventual"])
def test_taus_of_a_tree_are_by_the_learning_rate_of_the_moment(
    consistency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    units: list[float] = []
    codes = EdgeCodes.codes

    def noted(self: EdgeCodes, values: Vector, unit: float) -> Any:
        units.append(unit)
        return codes(self, values, unit)

    monkeypatch.setattr(EdgeCodes, "codes", noted)
    run("tree", 3, consistency=consistency, codec="threshold:tau=0.1", schedule="cosine")
    assert units[0] > 2 * units[-1] > 0


@pytest.mark.parametrize("n_sync", [1, 5])
def test_node_that_comes_back_to_a_tree_computes_on_what_the_others_have_made(
    n_sync: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[float] = []
    descend = SharedReplicaState.descend

    def noted(self: SharedReplicaState, direction: Vector, rate: float, *, scale: bool) -> None:
        if self.sharing._life:
            moved.append(float(np.linalg.norm(self.current - self._initial)))
        descend(self, direction, rate, scale=scale)

    monkeypatch.setattr(SharedReplicaState, "descend", noted)
    settings = {"topology": "star", "n_sync": n_sync, "epochs": 2, "warm_start": 0}
    faults = (parse_fault("fail:0@3+0.1"),)
    simulate("tree", settings, nodes=4, model=ClusterModel(compute="constant", step_s=0.05, faults=faults))
    assert moved
    assert min(moved) > 0.5
