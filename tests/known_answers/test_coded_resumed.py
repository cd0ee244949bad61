"""With a codec, from any checkpoint: what replicas hold and what is owed are the sum of all gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dataflow.engine.events import Snapshot
from dataflow.engine.loading import LoadedNode
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.graph.logical import LogicalGraph
from dataflow.plan.compile import compile_graph
from dataflow.plan.physical import PhysicalPlan
from operators.apply import ApplyFromPeers
from operators.clocks import ClocksState
from operators.layout import Layout
from operators.vector_state import VectorState
from tests.known_answers.coded import (
    JOBS,
    NODES,
    ROUNDING,
    STEPS,
    ExactCompute,
    applies_whole,
    assert_sum_is_exact,
    coded_job,
    known_gradient,
    owed,
)
from tests.known_answers.test_resume_memory import resumed

EVERY = 240
"""Images of all workers: two gradients of each."""

SLOWER = ("ako p=3 every=1", "all_to_all async", "parameter_server async", "sparse async")


def plan(job: str, codec: str, nodes: int = NODES, *, apart: bool = True) -> PhysicalPlan:
    """The plan of a job whose nodes are kept, if `apart`, after their own gradients, also where nobody waits."""
    graph = coded_job(job, codec, checkpoint_every=EVERY)
    if apart:
        compute = ExactCompute.model_validate_json(graph.operator("compute").params)
        assert compute.checkpoints is not None
        own = compute.checkpoints.model_copy(update={"at_pace": False})
        graph = graph.replace("compute", compute.model_copy(update={"checkpoints": own}))
        if "async" in job and "parameter_server" not in job:
            graph = graph.replace("apply", ApplyFromPeers(layout=_layout_of(graph)))
    return compile_graph(graph, nodes)


def _layout_of(graph: LogicalGraph) -> Layout:
    return ApplyFromPeers.model_validate_json(graph.operator("apply").params).layout


def whole(snapshots: list[Snapshot]) -> list[list[Snapshot]]:
    found: dict[int, list[Snapshot]] = {}
    for each in snapshots:
        found.setdefault(each.number, []).append(each)
    return [found[number] for number in sorted(found) if len(found[number]) == NODES]


@pytest.mark.parametrize(
    ("job", "codec"),
    [(job, "threshold:tau=0.5") for job in JOBS]
    + [(job, "topk:density=0.01") for job in SLOWER]
    + list(zip(SLOWER, ("int8", "onebit", "int8", "onebit"), strict=True)),
)
def test_run_that_goes_on_from_any_checkpoint_holds_and_owes_the_sum_of_all_gradients(job: str, codec: str) -> None:
    of = plan(job, codec)
    run = MemoryDriver(of, order=np.random.default_rng(len(job))).execute()
    checkpoints = whole(run.snapshots)
    assert len(checkpoints) >= 3
    for number, snapshots in enumerate(checkpoints[::2]):
        again = MemoryDriver(of, nodes=resumed(snapshots, of, of), order=np.random.default_rng(number)).execute()
        assert_sum_is_exact(job, again.nodes, atol=ROUNDING.get(codec, 0.0))


@pytest.mark.parametrize("job", ["all_to_all async", "sparse async"])
@pytest.mark.parametrize("seed", range(3))
def test_run_that_goes_on_from_where_all_had_made_so_many_on_average_does_so_too(job: str, seed: int) -> None:
    of = plan(job, "threshold:tau=0.5", apart=False)
    run = MemoryDriver(of, order=np.random.default_rng(seed)).execute()
    checkpoints = whole(run.snapshots)
    assert len(checkpoints) >= 2
    made = [[each.steps for each in snapshots] for snapshots in checkpoints]
    assert any(len(set(steps)) > 1 for steps in made)
    for snapshots in checkpoints:
        again = MemoryDriver(of, nodes=resumed(snapshots, of, of), order=np.random.default_rng(seed)).execute()
        assert_sum_is_exact(job, again.nodes, atol=0.0)


@pytest.mark.parametrize("job", SLOWER)
def test_run_that_goes_on_again_and_again_holds_and_owes_the_sum_of_all_gradients(job: str) -> None:
    of, nodes, lives = plan(job, "threshold:tau=0.5"), None, 0
    while True:
        run = MemoryDriver(of, nodes=nodes, order=np.random.default_rng(lives)).execute()
        later = whole(run.snapshots)
        if not later or sum(each.steps or 0 for each in later[0]) >= NODES * STEPS:
            break  # asynchronous workers make some more, however often they go on
        nodes, lives = resumed(later[0], of, of), lives + 1
    assert lives >= 3
    assert_sum_is_exact(job, run.nodes, lives=lives)


@pytest.mark.parametrize("after", [2, 3, 6])
@pytest.mark.parametrize("job", SLOWER)
def test_run_that_goes_on_with_other_nodes_holds_and_owes_the_sum_of_all_gradients(job: str, after: int) -> None:
    codec = "threshold:tau=0.5"
    of, onto = plan(job, codec), plan(job, codec, after)
    snapshots = whole(MemoryDriver(of, order=np.random.default_rng(after)).execute().snapshots)[2]
    nodes = resumed(snapshots, of, onto)
    begun = [clocks_of(node).made for node in nodes]
    made = sum(gradients(each.node, 0, each.steps or 0) for each in snapshots)
    run = MemoryDriver(onto, nodes=nodes, order=np.random.default_rng(after)).execute()
    for index, node in enumerate(run.nodes):
        made += gradients(index, begun[index], clocks_of(node).made)
    scale, sent = (1, made / 2) if applies_whole(job) else (0.5, made)
    sent = sent - sum(owed(node) for node in run.nodes)
    for node in run.nodes:
        assert clocks_of(node).rejected == 0
        want = scale * sent + (owed(node) if applies_whole(job) else 0)
        np.testing.assert_array_equal(replica_of(node), -want)


def gradients(node: int, low: int, high: int) -> Any:
    return sum((known_gradient(node, number) for number in range(low + 1, high + 1)), np.zeros(1, np.float32))


def clocks_of(node: LoadedNode) -> ClocksState:
    clocks = node.states["clocks"]
    assert isinstance(clocks, ClocksState)
    return clocks


def replica_of(node: LoadedNode) -> np.ndarray:
    replica = node.states["replica"]
    assert isinstance(replica, VectorState)
    return replica.values
