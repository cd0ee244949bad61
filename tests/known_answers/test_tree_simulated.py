"""Methods, section 4, in virtual time: exact sums, and bounds that hold at every step of every node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ako_jobs import tree
from dataflow.engine.events import Outcome, Task
from dataflow.sim.run import SimRun
from operators.contribution import FAR
from operators.shared_replica_state import SharedReplicaState
from tests.known_answers.coded import SETTINGS
from tests.known_answers.shared import TOPOLOGIES, assert_shared, tree_job
from tests.known_answers.simulated import simulate, simulator
from tests.known_answers.test_exactly_once_simulated import FAULTS, MODELS

ROUNDS, WEIGHTS = 7, 997


CIRCUMSTANCES = [("gigabit", "no fault"), *((model, "all at once") for model in MODELS)]


@pytest.mark.parametrize(("model", "faults"), CIRCUMSTANCES)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_sharing_of_integers_in_the_simulator_is_exact(model: str, faults: str, topology: str) -> None:
    graph = tree_job(topology, slack=4, consistency="ssp")
    run = simulate(graph, 4, faults=FAULTS[faults], **MODELS[model])
    assert_shared(run.nodes, ROUNDS, WEIGHTS)


def watch(graph: Any, nodes: int, **how: Any) -> tuple[SimRun, list[tuple[int, int]]]:
    """The run, and for each gradient the gaps of SSP and of ASSP that its node had when it was begun."""
    ahead: list[tuple[int, int]] = []

    def perform(node: int, task: Task) -> Outcome:
        if task.chain == "compute" and task.role == "message":
            shared = [each.states["replica"].sharing for each in simulation.run_so_far.nodes]  # type: ignore[attr-defined]
            made = [int(each.own.counts[each.node]) for each in shared]
            have = [int(each.counts.sum()) for each in shared]
            least = [
                min([FAR, *(x for x, each in zip(xs, shared, strict=True) if not each.ended)]) for xs in (made, have)
            ]
            ahead.append((made[node] - least[0], have[node] - least[1]))
        return task.run()

    simulation = simulator(graph, nodes, **how)
    simulation._perform = perform
    run = simulation.run()
    assert run.state == "FINISHED", run.reason
    return run, ahead


@settings(max_examples=15, deadline=None)
@given(
    topology=st.sampled_from(TOPOLOGIES),
    nodes=st.integers(2, 6),
    seed=st.integers(0, 1000),
    bound=st.integers(1, 6),
    latency_s=st.sampled_from([0.0, 1e-3, 0.05]),
    slow=st.sampled_from([0.1, 1.0]),
)
@pytest.mark.parametrize("consistency", ["ssp", "assp"])
def test_no_node_begins_a_gradient_beyond_its_bound(
    consistency: str, topology: str, nodes: int, seed: int, bound: int, latency_s: float, slow: float
) -> None:
    graph = tree_job(topology, slack=bound - 1, consistency=consistency)
    model: dict[str, Any] = {"latency_s": latency_s, "speeds": {1: slow}, "compute": "gamma-heterogeneous"}
    run, ahead = watch(graph, nodes, seed=seed, **model)
    assert_shared(run.nodes, ROUNDS, WEIGHTS)
    gaps = [pair[consistency == "assp"] for pair in ahead]
    assert len(gaps) >= nodes * ROUNDS
    assert max(gaps) < bound


def test_eventual_consistency_lets_a_fast_node_run_ahead() -> None:
    _, ahead = watch(tree_job("chain"), 4, speeds={1: 0.01}, compute="constant")
    assert max(made for made, _ in ahead) >= ROUNDS - 1


def test_counts_of_updates_arrive_before_the_sums_that_they_are_in() -> None:
    """On a link so slow that a sum takes seconds, the end of a chain soon knows what the other end has made."""
    graph = tree_job("chain", n_weights=99_700, slack=ROUNDS, consistency="ssp")
    simulation = simulator(graph, 3, rate=200_000.0, compute="constant")
    seen: list[tuple[int, int]] = []

    def perform(node: int, task: Task) -> Outcome:
        replica = simulation.run_so_far.nodes[2].states["replica"]
        assert isinstance(replica, SharedReplicaState)
        seen.append((int(replica.sharing.known[0, 0]), int(replica.sharing.counts[0])))
        return task.run()

    simulation._perform = perform
    simulation.run()
    assert any(known >= 2 and not have for known, have in seen)
    np.testing.assert_array_equal(seen[-1][1], ROUNDS)


@pytest.mark.parametrize(("model", "faults"), CIRCUMSTANCES)
def test_sharing_over_a_chain_that_becomes_a_star_is_exact_in_the_simulator(model: str, faults: str) -> None:
    graph = tree_job("chain", then="star", change_after=3)
    run = simulate(graph, 4, faults=FAULTS[faults], **MODELS[model])
    assert_shared(run.nodes, ROUNDS, WEIGHTS)


def test_no_node_pauses_while_a_chain_becomes_a_star() -> None:
    """A gradient takes 1 ms, and nobody waits for anybody: on each node they follow each other without a gap."""
    begun: dict[int, list[float]] = {}

    def perform(node: int, task: Task) -> Outcome:
        if task.chain == "compute" and task.role == "message":
            begun.setdefault(node, []).append(simulation._clock.now())
        return task.run()

    graph = tree_job("chain", then="star", change_after=30, rounds=60, n_weights=50_000)
    simulation = simulator(graph, 6, latency_s=0.005, compute="constant", tasks=2, seed=3)
    simulation._perform = perform
    run = simulation.run()
    assert run.state == "FINISHED", run.reason
    assert_shared(run.nodes, 60, 50_000)
    for node, moments in begun.items():
        assert len(moments) == 61  # and once to find that there is no more
        assert np.diff(moments).max() < 0.01, node
    rewired = [each.samples[name] for each in run.statistics for name in each.samples if name.endswith(".rewired")]
    assert [each.count for each in rewired] == [1] * 6
    assert max(each.maximum for each in rewired) < 30


@pytest.mark.parametrize(
    ("seed", "faults"),
    [
        (277120, ("fail:0@0.05174+0.00857", "fail:1@0.06554+0.05")),
        (611174, ("fail:0@0.05393+0.00893", "fail:1@0.07031+0.05")),
        (823613, ("fail:0@0.04663+0.00907", "fail:1@0.06064+0.05")),
    ],
)
def test_job_ends_though_one_of_its_nodes_fails_that_has_ended_and_is_still_sent_something(
    seed: int, faults: tuple[str, ...]
) -> None:
    """Nobody waits for it any more, so that its failure is not heard of but by whoever has a connection to it."""
    graph = tree.build(tree.Config.parse({**SETTINGS, "batch": 400}))
    run = simulate(graph, 2, seed=seed, faults=faults, detection_s=0.002, latency_s=0.001)
    assert "model.safetensors" in run.artifacts
