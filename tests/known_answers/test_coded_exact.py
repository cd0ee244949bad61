"""With a codec, in every topology: what all replicas hold and what is owed are the sum of all gradients, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from dataflow.engine.memory_driver import MemoryDriver
from dataflow.errors import JobFailedError
from dataflow.plan.compile import compile_graph
from dataflow.testing.in_process import run_in_process
from dataflow.transport.faulty import CutAfter, FaultyNetwork
from dataflow.transport.grpc_connection import GrpcNetwork
from dataflow.transport.memory import MemoryNetwork
from tests.known_answers.coded import CODECS, JOBS, NODES, ROUNDING, STEPS, WAYS, assert_sum_is_exact, coded_job, owed
from tests.known_answers.simulated import simulate

PAUSE = 5


FINEST = ("threshold:tau=0.25:most=fit", "topk:density=0.01", "fp16")


@pytest.mark.parametrize(
    ("job", "codec"),
    [(job, "threshold:tau=0.5") for job in JOBS] + [(job, codec) for job in WAYS for codec in (*FINEST, *ROUNDING)],
)
def test_sent_and_owed_in_memory_in_any_order_are_the_sum_of_all_gradients(job: str, codec: str) -> None:
    plan = compile_graph(coded_job(job, codec), NODES, compute_tasks=2)
    run = MemoryDriver(plan, order=np.random.default_rng([list(JOBS).index(job), len(codec)])).execute()
    assert_sum_is_exact(job, run.nodes, atol=ROUNDING.get(codec, 0.0))
    if codec != "fp16":
        assert all(owed(node).any() for node in run.nodes)


@pytest.mark.parametrize(
    ("job", "codec"),
    [(job, "threshold:tau=0.5") for job in JOBS] + [(job, codec) for job in WAYS for codec in FINEST[1:]],
)
def test_sent_and_owed_in_the_simulator_are_the_sum_of_all_gradients(job: str, codec: str) -> None:
    faults = ("cut:0-1@0.03+0.05", "pause:2@0.02+0.04", "slow:3@0+1x5")
    run = simulate(coded_job(job, codec), NODES, seed=1, faults=faults, rate=1e6, latency_s=0.002, rates_s=0.03)
    assert_sum_is_exact(job, run.nodes)


@pytest.mark.parametrize(
    ("job", "codec"),
    [(job, "threshold:tau=0.5") for job in (*WAYS, "ako live")]
    + [("ako p=3 every=4", "topk:density=0.01"), ("sparse synchronous", "topk:density=0.01"), ("sparse ssp", "fp16")],
)
def test_sent_and_owed_over_grpc_are_the_sum_of_all_gradients(job: str, codec: str) -> None:
    plan = compile_graph(coded_job(job, codec), NODES)
    assert_sum_is_exact(job, run_in_process(plan, lambda _node: GrpcNetwork(token="secret")).nodes)


@pytest.mark.parametrize("job", ["ako p=3 every=1", "all_to_all async", "parameter_server async", "sparse async"])
def test_sent_and_owed_over_connections_that_break_are_the_sum_of_all_gradients(job: str) -> None:
    network = FaultyNetwork(MemoryNetwork(), (CutAfter(frames=4, times=30),), np.random.default_rng(0))
    plan = compile_graph(coded_job(job, "threshold:tau=0.5"), NODES)
    assert_sum_is_exact(job, run_in_process(plan, network.at).nodes)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "job",
    ["ako p=1 every=1", "all_to_all ssp", "all_to_all async", "sparse synchronous", "sparse async"],
)
def test_run_that_goes_on_from_a_snapshot_once_all_was_sent_is_exact(job: str, codec: str) -> None:
    before = MemoryDriver(compile_graph(coded_job(job, codec, pause=PAUSE), NODES))
    with pytest.raises(JobFailedError, match="wait for each other"):
        before.execute()
    assert_sum_is_exact(job, before.run.nodes, PAUSE)
    after = MemoryDriver(compile_graph(coded_job(job, codec), NODES))
    for old, new in zip(before.run.nodes, after.run.nodes, strict=True):
        for name, state in old.states.items():
            new.states[name].restore(state.tensors())
    assert_sum_is_exact(job, after.execute().nodes, PAUSE + STEPS)
