"""Methods, sections 1 and 2, in virtual time: the same weights as in memory and over gRPC, and from run to run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ako_jobs import ako
from ako_jobs.worker import Setting
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.plan.compile import compile_graph
from dataflow.sim.run import SimRun
from dataflow.testing.in_process import run_in_process
from dataflow.transport.grpc_connection import GrpcNetwork
from tests.known_answers.rejoining import clocks_of
from tests.known_answers.simulated import simulate
from tests.known_answers.training import BASE, job, plain_sgd, replica

UNEVEN: dict[str, Any] = {
    "compute": "gamma-heterogeneous",
    "rate": 5e6,
    "faults": ("pause:1@0.1+0.5", "slow:0@0.2+0.3x5", "cut:0-2@0.15+0.2"),
}


def simulated(topology: str, nodes: int, settings: dict[str, Any], **how: Any) -> SimRun:
    return simulate(job(topology, **settings), nodes, **{"seed": BASE["seed"], **how})


@pytest.mark.parametrize(
    ("topology", "nodes", "settings"),
    [
        ("ako", 1, {"p": 1}),
        ("ako", 1, {"p": 5, "momentum": 0.9}),
        ("all_to_all", 1, {"consistency": "bsp"}),
        ("all_to_all", 1, {"consistency": "async"}),
        ("parameter_server", 2, {"consistency": "async"}),
        ("parameter_server", 2, {"consistency": "bsp", "momentum": 0.9}),
        ("parameter_server", 1, {"consistency": "async", "servers": "all"}),
    ],
)
def test_one_simulated_worker_equals_plain_sgd_bit_for_bit(topology: str, nodes: int, settings: dict[str, Any]) -> None:
    run = simulated(topology, nodes, settings)
    want = plain_sgd(corrected=topology == "parameter_server", momentum=settings.get("momentum", 0.0))
    np.testing.assert_array_equal(replica(run.nodes[0]), want)


@pytest.mark.parametrize(
    ("topology", "nodes", "settings"),
    [
        ("all_to_all", 4, {}),
        ("all_to_all", 3, {"local_steps": 3, "momentum": 0.5}),
        ("parameter_server", 5, {"servers": 1}),
        ("parameter_server", 5, {"servers": 1, "local_steps": 3}),
        ("parameter_server", 6, {"servers": 2, "shard": "layer"}),
        ("parameter_server", 4, {"servers": "all"}),
    ],
)
def test_bsp_is_bit_identical_in_memory_over_grpc_and_simulated_whatever_the_cluster(
    topology: str, nodes: int, settings: dict[str, Any]
) -> None:
    settings = {"consistency": "bsp", **settings}
    physical = compile_graph(job(topology, **settings), nodes, seed=BASE["seed"])
    want = replica(MemoryDriver(physical).execute().nodes[0])
    over_grpc = run_in_process(physical, lambda _node: GrpcNetwork(token="secret"))
    even, uneven = simulated(topology, nodes, settings), simulated(topology, nodes, settings, **UNEVEN)
    assert uneven.elapsed_s > even.elapsed_s + 0.5
    for run in (over_grpc, even, uneven):
        for node in run.nodes[:4]:
            np.testing.assert_array_equal(replica(node), want)


@pytest.mark.parametrize(
    ("topology", "nodes", "settings"),
    [
        ("ako", 4, {"p": 3}),
        ("all_to_all", 3, {"consistency": "async"}),
        ("parameter_server", 4, {"servers": 1, "consistency": "ssp"}),
    ],
)
def test_asynchronous_run_repeats_itself_bit_for_bit_and_differs_in_other_circumstances(
    topology: str, nodes: int, settings: dict[str, Any]
) -> None:
    first, again = (simulated(topology, nodes, settings, **UNEVEN) for _ in range(2))
    assert (first.elapsed_s, first.messages) == (again.elapsed_s, again.messages)
    assert repr(first.statistics) == repr(again.statistics)
    assert first.artifacts == again.artifacts
    for one, other in zip(first.nodes, again.nodes, strict=True):
        if "replica" in one.states:
            np.testing.assert_array_equal(replica(one), replica(other))
    elsewhere = simulated(topology, nodes, settings, compute="constant")
    assert np.abs(replica(elsewhere.nodes[0]) - replica(first.nodes[0])).max() > 0
    reseeded = simulated(topology, nodes, settings, **UNEVEN | {"seed": 4})
    assert reseeded.elapsed_s != first.elapsed_s


@pytest.mark.parametrize(
    ("settings", "nodes"),
    [({}, 5), ({"rule": "dana-dc", "momentum": 0.5, "lr": 0.005}, 5), ({"servers": 2}, 6), ({"servers": "all"}, 4)],
)
def test_asynchronous_workers_of_servers_share_all_gradients_as_their_pace_has_it(
    settings: dict[str, Any], nodes: int
) -> None:
    graph = job("parameter_server", **{"epochs": 2, **settings})
    run = simulate(graph, nodes, seed=BASE["seed"], compute="gamma-heterogeneous")
    made = [clocks_of(node).made for node in run.nodes[:4]]
    budget = 2 * Setting.of(ako.Config.parse({**BASE})).passes.gradients(len(made))
    assert budget <= sum(made) < budget + len(made)  # what the others are computing when it is reached counts, too
    assert max(made) > 1.5 * min(made)
    for node in run.nodes[1:4]:
        np.testing.assert_allclose(replica(node), replica(run.nodes[0]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("tasks", [1, 2])
def test_asynchronous_replicas_end_equal_though_each_took_its_own_way(tasks: int) -> None:
    run = simulated("ako", 4, {"p": 3}, tasks=tasks, **UNEVEN)
    assert run.elapsed_s > 0.6
    for node in run.nodes:
        np.testing.assert_allclose(replica(node), replica(run.nodes[0]), rtol=0, atol=1e-5)
