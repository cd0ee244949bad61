"""Methods, section 5: two workers in strict turns on theta^2 / 2, by the engine, in memory, over gRPC and simulated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dataflow.engine.loading import LoadedNode
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.graph.logical import LogicalGraph
from dataflow.plan.compile import compile_graph
from dataflow.testing.in_process import run_in_process
from dataflow.transport.base import Network
from dataflow.transport.faulty import Delay, FaultyNetwork
from dataflow.transport.grpc_connection import GrpcNetwork
from operators.update_rules import AnyRule, Asgd, DanaDc, DanaZero, DcAsgd, Easgd, Lwp, MultiAsgd, NagAsgd
from operators.vector_state import VectorState
from tests.known_answers.quadratic import WEIGHTS, master, replicas, turns_job
from tests.known_answers.simulated import simulate
from tests.known_answers.training import job

ANSWERS: dict[str, tuple[AnyRule, float, float]] = {
    "asgd": (Asgd(), 0.63, 0.3905),
    "nag-asgd": (NagAsgd(momentum=0.9), 0.1431, -0.91527),
    "multi-asgd": (MultiAsgd(momentum=0.9), 0.45, -0.3772),
    "dc-asgd": (DcAsgd(momentum=0.9), 0.521424, -0.213046),
    "lwp": (Lwp(momentum=0.9), 0.1811, -0.599981),
    "dana-zero": (DanaZero(momentum=0.9), 0.477, -0.162969),
    "dana-slim": (Asgd(), 0.1863, -0.425884),
    "dana-dc": (DanaDc(momentum=0.9), 0.510781, -0.136047),
}
"""By rule, the weights of the paper's master after 4 and 8 updates; DANA-Slim's keeps Theta."""


class Delayed:
    """One gRPC network that delays frames at random, with a node of its own for each."""

    def __init__(self) -> None:
        self._shared = FaultyNetwork(GrpcNetwork(token="secret"), (Delay(0.0, 0.01),), np.random.default_rng(0))

    def __call__(self, node: int) -> Network:
        return self._shared.at(node)


def in_memory(graph: LogicalGraph, nodes: int) -> list[LoadedNode]:
    return MemoryDriver(compile_graph(graph, nodes), order=np.random.default_rng(1)).execute().nodes


def over_grpc(graph: LogicalGraph, nodes: int) -> list[LoadedNode]:
    return run_in_process(compile_graph(graph, nodes), Delayed()).nodes


def simulated(graph: LogicalGraph, nodes: int) -> list[LoadedNode]:
    return simulate(graph, nodes, compute="gamma-heterogeneous").nodes


DRIVERS: list[Callable[[LogicalGraph, int], list[LoadedNode]]] = [in_memory, over_grpc, simulated]


@pytest.mark.parametrize("run", DRIVERS)
@pytest.mark.parametrize("name", ANSWERS)
def test_rule_two_workers_in_turns_at_two_servers_give_the_known_answers(
    name: str, run: Callable[[LogicalGraph, int], list[LoadedNode]]
) -> None:
    rule, fourth, eighth = ANSWERS[name]
    for updates, answer in ((4, fourth), (8, eighth)):
        nodes = run(turns_job(rule, updates, servers=2, slim=name == "dana-slim"), 4)
        assert master(nodes, rule) == pytest.approx([answer] * WEIGHTS, abs=1e-6)


@pytest.mark.parametrize("run", DRIVERS)
def test_easgd_workers_differ_until_the_end_where_all_have_the_centre(
    run: Callable[[LogicalGraph, int], list[LoadedNode]],
) -> None:
    """Two workers in turns, centre c: 1, 1, .985, .97225 for w_0: .9, .825 and w_1: .9, .82275.

    w_1 <- .9 - .09 - .15 (.9 - .985) = .82275, c <- .985 + .15 (.9 - .985) = .97225.
    """
    nodes = run(turns_job(Easgd(alpha=0.15), 4), 3)
    assert master(nodes, Easgd()) == pytest.approx([0.97225] * WEIGHTS, abs=1e-6)
    for replica in replicas(nodes):
        assert replica == pytest.approx([0.97225] * WEIGHTS, abs=1e-6)


def shard(workers: int, **settings: object) -> np.ndarray:
    """What the server of a training job ends with, in a random order of events that is the same for all."""
    graph = job("parameter_server", momentum=0.9, lr=0.002, **settings)
    nodes = MemoryDriver(compile_graph(graph, workers + 1), order=np.random.default_rng(1)).execute().nodes
    (found,) = (node.states["shard"] for node in nodes if "shard" in node.states)
    assert isinstance(found, VectorState)
    return found.values


@pytest.mark.parametrize(
    ("at_worker", "at_server"),
    [
        ({"rule": "asgd"}, {"rule": "multi-asgd"}),
        ({"rule": "dana-slim"}, {"rule": "dana-zero"}),
        ({"rule": "asgd", "nesterov": True}, {"rule": "dana-zero"}),
    ],
)
def test_velocity_of_the_worker_and_of_the_server_are_alike_while_the_rate_is(
    at_worker: dict[str, object], at_server: dict[str, object]
) -> None:
    """A gradient has the rate of when it was computed there, and here that of when it comes: one worker's are alike."""
    for workers, schedule in ((3, {}), (1, {"schedule": "cosine"}), (1, {"warmup": 0.1})):
        there, here = (shard(workers, **rule, **schedule) for rule in (at_worker, at_server))
        np.testing.assert_allclose(there, here, atol=2e-6)
    there, here = (shard(3, **rule, schedule="cosine") for rule in (at_worker, at_server))
    assert np.abs(there - here).max() > 1e-4
