"""Methods, section 3: with a residual per worker for pulls, replica and residual are the shard at every answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.engine.memory_driver import MemoryDriver
from dataflow.plan.compile import compile_graph
from dataflow.testing.in_process import run_in_process
from dataflow.transport.base import Network
from dataflow.transport.faulty import CutAfter, Delay, FaultyNetwork, Refuse
from dataflow.transport.grpc_connection import GrpcNetwork
from operators.compression import Threshold, TopK
from tests.known_answers.integer_pulls import Mode, assert_pulled_exactly, pulls_job
from tests.known_answers.simulated import simulate

UNIT, FIT, LARGEST = Threshold(tau=1), Threshold(tau=1, most="fit"), TopK(density=0.1)
FAULTS = (CutAfter(frames=4, times=20), Delay(0.0, 0.002), Refuse(times=3))

JOBS: dict[str, tuple[int, Mode, dict[str, Any]]] = {
    "bsp": (5, "bsp", {"codec": UNIT}),
    "bsp, pushes coded": (6, "bsp", {"codec": UNIT, "push_codec": Threshold(tau=4), "servers": 2}),
    "ssp": (4, "ssp", {"codec": FIT, "push_codec": Threshold(tau=2)}),
    "async": (4, "async", {"codec": UNIT}),
    "async, pushes coded, by layer": (
        5,
        "async",
        {"codec": LARGEST, "push_codec": Threshold(tau=2), "servers": 2, "by": "layer"},
    ),
    "async, co-located": (3, "async", {"codec": FIT, "push_codec": LARGEST, "servers": "all"}),
    "async, a pull every third gradient": (4, "async", {"codec": UNIT, "fetch": 3}),
}


@pytest.mark.parametrize("job", JOBS)
def test_pulls_in_memory_are_exact(job: str) -> None:
    nodes, mode, how = JOBS[job]
    run = MemoryDriver(compile_graph(pulls_job(mode, **how), nodes)).execute()
    assert_pulled_exactly(run.nodes, mode)


@settings(max_examples=25, deadline=None)
@given(job=st.sampled_from(sorted(JOBS)), seed=st.integers(0, 2**32 - 1))
def test_pulls_in_any_order_are_exact(job: str, seed: int) -> None:
    nodes, mode, how = JOBS[job]
    plan = compile_graph(pulls_job(mode, **how), nodes, seed=seed % 1000)
    run = MemoryDriver(plan, order=np.random.default_rng(seed)).execute()
    assert_pulled_exactly(run.nodes, mode)


class Shared:
    """One faulty gRPC network, with a node of its own for each."""

    def __init__(self) -> None:
        self._shared = FaultyNetwork(GrpcNetwork(token="secret"), FAULTS, np.random.default_rng(0))

    def __call__(self, node: int) -> Network:
        return self._shared.at(node)


@pytest.mark.parametrize("job", JOBS)
def test_pulls_over_a_faulty_network_are_exact(job: str) -> None:
    nodes, mode, how = JOBS[job]
    run = run_in_process(compile_graph(pulls_job(mode, **how), nodes), Shared())
    assert_pulled_exactly(run.nodes, mode)


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("model", [{"rate": 10_000.0}, {"latency_s": 0.3}, {"speeds": {1: 0.05}}], ids=str)
def test_pulls_in_the_simulator_are_exact(job: str, model: dict[str, Any]) -> None:
    nodes, mode, how = JOBS[job]
    faults = ("cut:0-1@0.01+0.2", "pause:2@0.03+0.2")
    run = simulate(pulls_job(mode, **how), nodes, seed=1, faults=faults, **model)
    assert_pulled_exactly(run.nodes, mode)
