"""Methods, sections 1 and 2, on real images with real threads and links."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ako_jobs import ako
from ako_jobs.worker import Setting
from dataflow.plan.compile import compile_graph
from dataflow.plan.physical import PhysicalPlan
from dataflow.testing.in_process import InProcessRun, run_in_process
from dataflow.transport.grpc_connection import GrpcNetwork
from tests.known_answers.rejoining import clocks_of
from tests.known_answers.training import BASE, checkpoints, job, plain_sgd, plain_steps, replica


def plan(topology: str, nodes: int, tasks: int = 1, **settings: Any) -> PhysicalPlan:
    return compile_graph(job(topology, **settings), nodes, seed=BASE["seed"], compute_tasks=tasks)


def over_grpc(physical: PhysicalPlan) -> InProcessRun:
    return run_in_process(physical, lambda _node: GrpcNetwork(token="secret"))


@pytest.mark.parametrize(
    ("topology", "nodes", "settings"),
    [
        ("ako", 1, {"p": 3}),
        ("all_to_all", 1, {"consistency": "bsp"}),
        ("parameter_server", 2, {"consistency": "async"}),
        ("parameter_server", 1, {"consistency": "bsp", "servers": "all"}),
    ],
)
def test_one_worker_over_grpc_equals_plain_sgd_bit_for_bit(topology: str, nodes: int, settings: dict[str, Any]) -> None:
    run = over_grpc(plan(topology, nodes, **settings))
    np.testing.assert_array_equal(replica(run.nodes[0]), plain_sgd())


def test_checkpoint_under_threads_holds_the_weights_of_the_steps_it_tells_of() -> None:
    kept = checkpoints(over_grpc(plan("ako", 1, p=1, checkpoint_every=3 * BASE["batch"])).snapshots)
    steps = list(plain_steps())
    assert len(kept) > 1
    for step, tensors in kept.items():
        np.testing.assert_array_equal(tensors["replica/values"], steps[step - 1])


@pytest.mark.parametrize(
    ("topology", "nodes", "settings"),
    [
        ("ako", 4, {"p": 3}),
        ("all_to_all", 3, {"consistency": "async"}),
        ("parameter_server", 3, {"servers": 1, "consistency": "ssp"}),
        ("parameter_server", 3, {"servers": "all", "n_push": 2, "n_fetch": 4}),
    ],
)
def test_asynchronous_training_with_two_compute_tasks_over_grpc_ends_with_equal_replicas(
    topology: str, nodes: int, settings: dict[str, Any]
) -> None:
    run = over_grpc(plan(topology, nodes, tasks=2, **settings))
    first = replica(run.nodes[0])
    workers = [node for node in run.nodes if "replica" in node.states]
    for node in workers:
        np.testing.assert_allclose(replica(node), first, rtol=0, atol=1e-5)
    assert "model.safetensors" in run.artifacts
    (epoch,) = [report.fields["epoch"] for _, report in run.reports]
    images = Setting.of(ako.Config.parse(BASE)).passes.images
    # Once there are enough gradients, every worker has as many more under way as it makes between two pulls, at most.
    under_way = nodes * settings.get("n_fetch", 1) * BASE["batch"]
    assert BASE["epochs"] - 0.005 <= epoch <= BASE["epochs"] + under_way / images
    if topology == "parameter_server":  # which counts images, and tells the last validation of all
        assert epoch == pytest.approx(sum(clocks_of(node).made for node in workers) * BASE["batch"] / images)
