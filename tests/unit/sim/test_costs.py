"""Times of tasks against computed distributions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from ako_jobs import ako
from dataflow.engine.events import Outcome, Task
from dataflow.plan.compile import compile_graph
from dataflow.plan.physical import PhysicalPlan
from dataflow.sim.costs import SPREADS, TaskKind, TaskTimes, first_nodes

MEAN = 128.0
STEP = Task("compute", "step", "compute", Outcome)
MEANS = {TaskKind("compute", "step", first): MEAN for first in (True, False)}


@pytest.fixture(scope="module")
def plan() -> PhysicalPlan:
    return compile_graph(ako.build(ako.Config(phantom=True, p=4)), 1000)


@pytest.fixture(scope="module")
def homogeneous(plan: PhysicalPlan) -> npt.NDArray[np.float64]:
    """(1000, 1000): draws of 1000 nodes."""
    times = TaskTimes(MEANS, plan, spread=SPREADS["gamma"], seed=1)
    return np.array([[times.seconds(node, STEP) for _ in range(1000)] for node in range(1000)])


def test_engine_and_messages_take_twice_as_long_on_a_node_that_is_half_as_fast(plan: PhysicalPlan) -> None:
    times = TaskTimes({}, plan, speeds={1: 0.5}, engine_s=0.001, message_s=0.002, byte_s=1e-6)
    assert [times.engine_s(node) for node in (0, 1, 2)] == pytest.approx([0.001, 0.002, 0.001])
    assert [times.message_s(node, 1000) for node in (0, 1, 2)] == pytest.approx([0.003, 0.006, 0.003])
    assert times.seconds(0, STEP) == 0


def test_homogeneous_times_have_the_mean_and_a_tenth_of_it_as_deviation(
    homogeneous: npt.NDArray[np.float64],
) -> None:
    assert homogeneous.mean() == pytest.approx(MEAN, rel=0.001)
    assert homogeneous.std() == pytest.approx(0.1 * MEAN, rel=0.01)
    assert homogeneous.mean(axis=1).std() == pytest.approx(0.1 * MEAN / 1000**0.5, rel=0.1)


def test_homogeneous_times_exceed_160_of_128_in_one_of_107(homogeneous: npt.NDArray[np.float64]) -> None:
    """dana.txt, figure 3: 0.94%; the standard error of a million draws is a hundredth of that."""
    assert (homogeneous > 160).mean() == pytest.approx(0.00938, rel=0.04)


@pytest.mark.parametrize(("n", "ratio"), [(8, 1.147), (32, 1.219), (64, 1.250), (1000, 1.357)])
def test_slowest_of_n_homogeneous_workers_takes_longer_than_the_mean(
    homogeneous: npt.NDArray[np.float64], n: int, ratio: float
) -> None:
    """The integral of 1 - F^n, F of a gamma distribution of shape 100: what a barrier costs."""
    rounds = homogeneous.ravel()[: homogeneous.size // n * n].reshape(-1, n)
    assert rounds.max(axis=1).mean() / MEAN == pytest.approx(ratio, rel=0.002)


def test_heterogeneous_times_exceed_160_of_128_in_28_of_100(plan: PhysicalPlan) -> None:
    """dana.txt, figure 3: 27.9%, over 40,000 machines; their mean is that of all machines."""
    times = [
        times.seconds(node, STEP)
        for seed in range(40)
        for times in [TaskTimes(MEANS, plan, spread=SPREADS["gamma-heterogeneous"], seed=seed)]
        for node in range(1000)
        for _ in range(2)
    ]
    assert np.mean(np.array(times) > 160) == pytest.approx(0.279, abs=0.006)
    assert np.mean(times) == pytest.approx(MEAN, rel=0.01)


def test_times_repeat_with_the_seed_and_differ_with_another_and_between_nodes(plan: PhysicalPlan) -> None:
    def draws(seed: int, node: int) -> list[float]:
        times = TaskTimes(MEANS, plan, spread=SPREADS["gamma"], seed=seed)
        return [times.seconds(node, STEP) for _ in range(5)]

    assert draws(1, 3) == draws(1, 3)
    assert len({*draws(1, 3), *draws(2, 3), *draws(1, 4)}) == 15


def test_constant_times_are_the_means_of_the_kind_over_the_nodes_speed(plan: PhysicalPlan) -> None:
    means = {TaskKind("compute", "step", True): 2.0, TaskKind("compute", "step", False): 3.0}
    times = TaskTimes(means, plan, speeds={2: 0.5, 3: 4.0})
    assert [times.seconds(node, STEP) for node in range(4)] == [2.0, 3.0, 6.0, 0.75]
    assert times.seconds(0, Task("compute", "merge", "compute", Outcome)) == 0.0


def test_times_in_the_network_pool_do_not_spread(plan: PhysicalPlan) -> None:
    means = {TaskKind("send", "message", False): 0.25}
    times = TaskTimes(means, plan, spread=SPREADS["gamma"])
    assert {times.seconds(5, Task("send", "message", "network", Outcome)) for _ in range(5)} == {0.25}


def test_first_nodes_are_those_of_each_chains_role(plan: PhysicalPlan) -> None:
    assert set(first_nodes(plan).values()) == {0}
    assert {"source", "compute", "advance"} <= set(first_nodes(plan))
