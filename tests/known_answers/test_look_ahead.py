"""docs/momentum.md: replicas are where the momentum of all workers, as far as it is known there, is about to lead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.engine.memory_driver import MemoryDriver
from dataflow.plan.compile import compile_graph
from operators.clocks import ClocksState, everything
from operators.layout import Layout
from operators.optimizer import Sgd
from operators.vector_state import VectorState
from operators.window import WindowState
from tests.known_answers.rejoining import Dying, borrowed
from tests.known_answers.training import BASE, job, plain_sgd, replica

NESTEROV: dict[str, Any] = {"momentum": 0.9, "look_ahead": 1}
STEPPING: dict[str, Any] = {"schedule": "step", "milestones": "0.1", "gamma": 0.5, "weight_decay": 0.01}
LAYOUT = Layout.of(12, cells=6)


@pytest.mark.parametrize(
    ("topology", "settings"),
    [("ako", {"p": 1}), ("ako", {"p": 5}), ("all_to_all", {"consistency": "async"}), ("all_to_all", {})],
)
def test_one_worker_that_looks_one_step_ahead_is_nesterov_bit_for_bit_under_a_changing_rate(
    topology: str, settings: dict[str, Any]
) -> None:
    """That of a server that keeps the momentum; but for rounding, that whose rate is applied to the velocity."""
    server = MemoryDriver(plan("parameter_server", 2, rule="dana-slim", momentum=0.9, **STEPPING)).execute()
    alone = MemoryDriver(plan(topology, 1, **settings, **NESTEROV, **STEPPING)).execute()
    np.testing.assert_array_equal(replica(alone.nodes[0]), replica(server.nodes[0]))
    alone = MemoryDriver(plan(topology, 1, **settings, **NESTEROV)).execute()
    want = plain_sgd(momentum=0.9, nesterov=True)
    np.testing.assert_allclose(replica(alone.nodes[0]), want, rtol=0, atol=1e-5)
    assert np.abs(want - plain_sgd()).max() > 1e-2


@dataclass
class Worker:
    """A worker's states, and theta and the velocity of a heavy ball that makes the same gradients, after each."""

    replica: VectorState
    velocity: np.ndarray
    window: WindowState
    clocks: ClocksState
    thetas: list[np.ndarray] = field(default_factory=lambda: [np.zeros(12, np.float32)])
    velocities: list[np.ndarray] = field(default_factory=lambda: [np.zeros(12, np.float32)])


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 4), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3)), max_size=60))
def test_replica_is_in_every_cell_where_all_momentum_that_it_knows_of_leads_in_so_many_steps(
    steps: int, events: list[tuple[int, int, int]]
) -> None:
    """Whoever makes a gradient when, and whatever part of whatever interval comes: exactly, in halves of integers."""
    sgd, rng, members = Sgd(momentum=0.5, look_ahead=steps, scaled=True), np.random.default_rng(0), (0, 1, 2)
    workers = []
    for own in members:
        wanted = everything(members, 6, without=own)
        window = WindowState(LAYOUT, wanted, cap_nbytes=1 << 20, newest_only=False)
        workers.append(Worker(VectorState(np.zeros(12, np.float32)), sgd.velocity(12), window, ClocksState(6, wanted)))
    for origin, receiver, third in events:
        one = workers[origin]
        if origin == receiver and one.window.newest < 8:
            gradient = rng.integers(-4, 5, 12).astype(np.float32)
            one.velocities.append(one.velocities[-1] / 2 + 2 * gradient)
            one.thetas.append(one.thetas[-1] - one.velocities[-1])
            sgd.direct(gradient, one.replica.current, one.velocity, 2.0)
            one.replica.descend(gradient, 1.0, scale=True)
            one.window.append(one.window.newest + 1, gradient)
        elif origin != receiver and third < 3:
            other = workers[receiver]
            for part in one.window.take(receiver, 2 * third, 2 * third + 2):
                cells = slice(part.start, part.stop)
                assert other.clocks.advance(origin, cells, part.low, part.high, span=0, skips=False)
                other.replica.values[LAYOUT.weights(part.start, part.stop)] -= part.values
    share = sum(0.5**step for step in range(1, steps + 1))
    for own, worker in enumerate(workers):
        want = np.zeros(12)
        for origin, one in enumerate(workers):
            applied = np.full(6, one.window.newest) if origin == own else worker.clocks.applied(origin)
            for cell, number in enumerate(applied):
                where = LAYOUT.weights(cell, cell + 1)
                want[where] += one.thetas[number][where] - share * one.velocities[number][where]
        np.testing.assert_array_equal(worker.replica.current, want)


@pytest.mark.parametrize("codec", ["none", "fp16"])
@pytest.mark.parametrize("topology", ["ako", "all_to_all"])
def test_workers_that_look_ahead_end_alike_in_any_order(topology: str, codec: str) -> None:
    """But for rounding, and what the codec has left out at last: less."""
    told = {"codec": codec, "momentum": 0.9, "look_ahead": 3, "lr": 0.001}
    plain = [replica(node) for node in MemoryDriver(plan(topology, 3, **told)).execute().nodes]
    driver = MemoryDriver(plan(topology, 3, **told), order=np.random.default_rng(1))
    for nodes in (plain, [replica(node) for node in driver.execute().nodes]):
        for other in nodes[1:]:
            np.testing.assert_allclose(other, nodes[0], rtol=0, atol=1e-5)
    assert np.abs(plain[0] - plain_sgd(lr=0.001)).max() > 1e-3


def test_worker_that_dies_and_comes_back_ends_with_the_replica_of_the_others() -> None:
    """Its momentum is lost with it; what it had looked ahead is in all replicas alike."""
    told = {"p": 5, "momentum": 0.9, "look_ahead": 3, "lr": 0.001, "epochs": 1}
    driver = Dying(plan("ako", 3, **told), [(200, 1), (300, 1)], order=np.random.default_rng(2))
    nodes = driver.execute().nodes
    assert len(driver.deaths) == 1
    assert borrowed(nodes[1])
    np.testing.assert_allclose(replica(nodes[1]), replica(nodes[0]), rtol=0, atol=1e-5)


def plan(topology: str, nodes: int, **told: Any) -> Any:
    return compile_graph(job(topology, **told), nodes, seed=BASE["seed"])
