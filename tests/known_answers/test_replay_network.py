"""Asynchronous training with real threads and links, recorded and replayed: the same weights, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dataflow.plan.compile import compile_graph
from dataflow.plan.physical import PhysicalPlan
from dataflow.sim.replay import compare, replay
from dataflow.testing.in_process import InProcessRun, run_in_process
from dataflow.transport.base import Network
from dataflow.transport.faulty import CutAfter, FaultyNetwork
from dataflow.transport.grpc_connection import GrpcNetwork
from dataflow.transport.memory import MemoryNetwork
from tests.known_answers.training import job, replica


def recorded(
    topology: str, nodes: int, make_network: Callable[[int], Network], *, seed: int, tasks: int = 1, **settings: Any
) -> tuple[PhysicalPlan, InProcessRun]:
    plan = compile_graph(job(topology, seed=seed, **settings), nodes, seed=seed, compute_tasks=tasks)
    return plan, run_in_process(plan, make_network, record=True)


def check_replay(plan: PhysicalPlan, run: InProcessRun) -> None:
    replayed = replay(plan, run.artifacts.get)
    assert replayed.difference is None
    assert replayed.complete
    workers = [number for number, node in enumerate(run.nodes) if "replica" in node.states]
    for number in workers:
        np.testing.assert_array_equal(replica(replayed.nodes[number]), replica(run.nodes[number]))
    reports = [{**report.fields, "node": node, "port": report.port} for node, report in run.reports]
    assert reports
    assert compare(replayed, run.artifacts.get, reports) is None
    assert replayed.artifacts["model.safetensors"] == run.artifacts["model.safetensors"]


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize(
    ("topology", "settings"),
    [
        ("ako", {"p": 3}),
        ("all_to_all", {"consistency": "async"}),
        ("parameter_server", {"consistency": "async", "servers": 1}),
        ("sparse", {}),
        ("ako", {"codec": "topk", "p": 2}),
        ("ako", {"codec": "threshold:per_layer=true"}),
        ("all_to_all", {"codec": "int8", "consistency": "async"}),
        ("parameter_server", {"codec": "onebit", "servers": "all"}),
    ],
)
def test_replay_of_asynchronous_training_on_threads_gives_the_same_weights(
    topology: str, settings: dict[str, Any], seed: int
) -> None:
    network = MemoryNetwork()
    check_replay(*recorded(topology, 4, lambda _node: network, seed=seed, epochs=0.5, **settings))


@pytest.mark.parametrize(
    ("topology", "settings"),
    [
        ("ako", {"p": 2, "batch": 7, "momentum": 0.9}),
        ("parameter_server", {"servers": "all", "n_push": 2, "n_fetch": 4}),
    ],
)
def test_replay_of_nodes_with_two_compute_tasks_gives_the_same_weights(topology: str, settings: dict[str, Any]) -> None:
    network = MemoryNetwork()
    check_replay(*recorded(topology, 3, lambda _node: network, seed=3, tasks=2, **settings))


def test_replay_of_a_run_over_connections_that_broke_gives_the_same_weights() -> None:
    faults = tuple(CutAfter(frames) for frames in (30, 50, 20, 40, 90, 30))
    network = FaultyNetwork(MemoryNetwork(), faults, np.random.default_rng(0))
    check_replay(*recorded("ako", 3, network.at, seed=3, p=3))


def test_replay_of_a_run_over_grpc_gives_the_same_weights() -> None:
    check_replay(*recorded("ako", 3, lambda _node: GrpcNetwork(token="secret"), seed=3, p=3))
