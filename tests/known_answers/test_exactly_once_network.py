"""Methods, section 1, over networks: delays, a p that changes every round, and connections that are cut."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dataflow.plan.compile import compile_graph
from dataflow.testing.in_process import run_in_process
from dataflow.transport.base import Network
from dataflow.transport.faulty import CutAfter, Delay, Fault, FaultyNetwork, Refuse
from dataflow.transport.grpc_connection import GrpcNetwork
from dataflow.transport.memory import MemoryNetwork
from tests.known_answers.integers import assert_exact, integer_job

ROUNDS, WEIGHTS, NODES = 7, 997, 4

NETWORKS: dict[str, Callable[[], Network]] = {"memory": MemoryNetwork, "grpc": lambda: GrpcNetwork(token="secret")}

FAULTS: dict[str, tuple[Fault, ...]] = {
    "no fault": (),
    "delays": (Delay(0.0, 0.004),),
    "cuts": (CutAfter(frames=3, times=30), CutAfter(frames=9, times=20), Refuse(times=5)),
    "delays and cuts": (CutAfter(frames=4, times=40), Delay(0.0, 0.003)),
}


class Union:
    """One network object per node for gRPC, one for all in memory; faults are counted over all nodes."""

    def __init__(self, kind: str, faults: tuple[Fault, ...], seed: int) -> None:
        self._shared = FaultyNetwork(NETWORKS[kind](), faults, np.random.default_rng(seed))

    def __call__(self, node: int) -> Network:
        return self._shared.at(node)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("p", range(1, 7))
def test_exchange_of_integers_over_a_network_is_exact(kind: str, p: int) -> None:
    plan = compile_graph(integer_job(p), NODES)
    run = run_in_process(plan, Union(kind, (), seed=p))
    assert_exact(run.nodes, ROUNDS, WEIGHTS)


@pytest.mark.parametrize(
    ("kind", "faults", "p"),
    [
        ("memory", "delays", 1),
        ("memory", "cuts", 3),
        ("memory", "delays and cuts", 6),
        ("grpc", "delays", 6),
        ("grpc", "cuts", 1),
        ("grpc", "delays and cuts", 3),
    ],
)
def test_exchange_over_a_faulty_network_with_changing_p_is_exact(kind: str, faults: str, p: int) -> None:
    plan = compile_graph(integer_job(p, rounds=40, restless=True, slack=4), NODES, seed=p)
    run = run_in_process(plan, Union(kind, FAULTS[faults], seed=p))
    assert_exact(run.nodes, 40, WEIGHTS)
