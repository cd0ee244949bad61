"""Decision 0029 in the simulator: nodes that leave and join by the real coordinator's rules lose and double nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ako_jobs import all_to_all, parameter_server, sparse, tree
from dataflow.engine.draining import DRAINED
from dataflow.engine.membership import BURIED
from dataflow.graph.logical import LogicalGraph
from dataflow.observe.events import JobEvent
from dataflow.sim.replay import replay
from dataflow.sim.simulator import SimRun
from tests.known_answers.coded import SETTINGS
from tests.known_answers.rejoining import (
    assert_accounted_for,
    borrowed,
    clocks_of,
    first,
    rejoining_job,
    settled,
    values,
)
from tests.known_answers.simulated import simulate, simulator

LONG = 90
"""Gradients of a worker: some tenths of a virtual second."""

CLUSTER: dict[str, Any] = {"rate": 1e6, "latency_s": 0.0005, "statistics_s": 0.02}


class Elastic:
    """A finished run whose nodes come and go, and what those had made that have gone.

    Attributes:
        run: the run.
        there: by node that is there at the end and has caught up, its incarnation and itself.
        left: (node, incarnation, numbers of the gradients made) of those that left by request.
        deaths: the same of those that died.
        warnings: what the user was warned of.
        told: nodes of which statistics were told while the job ran.
    """

    def __init__(self, graph: LogicalGraph, nodes: int, *faults: str, **how: Any) -> None:
        self.left: list[tuple[int, int, range]] = []
        self.deaths: list[tuple[int, int, range]] = []
        self.warnings: list[str] = []
        self.told: set[int] = set()
        self._lives: dict[int, int] = dict.fromkeys(range(nodes), 0)
        self._simulator = simulator(graph, nodes, faults=faults, on_event=self._hear, **CLUSTER, **how)
        self.run: SimRun = self._simulator.run()
        reason = self.run.reason
        assert self.run.state == "FINISHED" or "have died" in reason or "died in the last work" in reason, reason
        self.there = {
            node: (incarnation, self.run.nodes[node])
            for node, incarnation in self._lives.items()
            if settled(self.run.nodes[node])
        }

    def _hear(self, event: JobEvent) -> None:
        if event.warning:
            self.warnings.append(event.warning)
        if event.statistics is not None:
            self.told.add(event.statistics.node)
        if (change := event.change) is None:
            return
        if change.life not in BURIED:
            self._lives[change.node] = change.incarnation
        elif change.node in self._lives:
            del self._lives[change.node]
            loaded = self._simulator.run_so_far.nodes[change.node]
            made = range(first(loaded) + 1, clocks_of(loaded).made + 1)
            gone = self.left if change.reason == DRAINED else self.deaths
            gone.append((change.node, change.incarnation, made))

    def assert_exact(self) -> None:
        """All who are there have all that was made, but for a part of what those made who died."""
        assert_accounted_for(self.there, self.deaths, self.left)


@pytest.mark.parametrize("p", [0, 1, 3])
def test_others_have_all_that_a_node_made_that_leaves(p: int) -> None:
    elastic = Elastic(rejoining_job(p, slack=2, rounds=LONG), 3, "leave:1@0.05", seed=p)
    ((node, _, made),) = elastic.left
    assert node == 1
    assert 0 < len(made) < LONG
    assert elastic.there.keys() == {0, 2}
    elastic.assert_exact()


@pytest.mark.parametrize("p", [0, 1, 3])
def test_node_that_joins_has_all_that_the_others_made(p: int) -> None:
    elastic = Elastic(rejoining_job(p, slack=0, rounds=LONG), 2, "join@0.03", seed=p, max_nodes=4)
    assert {node: life for node, (life, _) in elastic.there.items()} == {0: 0, 1: 0, 2: 1}
    newcomer = elastic.run.nodes[2]
    assert borrowed(newcomer)
    assert 0 < first(newcomer) < clocks_of(newcomer).made == LONG
    elastic.assert_exact()


def test_machine_waits_until_the_place_of_one_that_leaves_is_free() -> None:
    elastic = Elastic(rejoining_job(1, slack=0, rounds=LONG), 3, "leave:1@0.1", "join@0.1", max_nodes=3)
    assert [(node, incarnation) for node, incarnation, _ in elastic.left] == [(1, 0)]
    assert {node: life for node, (life, _) in elastic.there.items()} == {0: 0, 1: 1, 2: 0}
    elastic.assert_exact()


def test_machine_that_comes_too_late_joins_nothing_and_a_place_that_nobody_takes_counts_nowhere() -> None:
    elastic = Elastic(rejoining_job(1, rounds=LONG), 2, "join@1000", "fail:2@0.1", "leave:2@0.1", max_nodes=4)
    assert elastic.there.keys() == elastic.told == {0, 1} == {each.node for each in elastic.run.statistics}
    assert elastic.warnings == ["node-2 cannot leave: it is not there"]


def test_bulk_synchronous_steps_go_on_with_those_that_are_there() -> None:
    elastic = Elastic(rejoining_job(-1, rounds=LONG), 3, "join@0.1", "leave:1@0.3", seed=3, max_nodes=4)
    assert elastic.there.keys() == {0, 2, 3}
    for node in (2, 3):
        np.testing.assert_array_equal(values(elastic.run.nodes[node]), values(elastic.run.nodes[0]))


def test_server_cannot_leave_nor_can_the_last_worker_and_the_user_is_told() -> None:
    graph = parameter_server.build(parameter_server.Config.parse({**SETTINGS, "lr": 0.01, "consistency": "ssp"}))
    members = simulator(graph, 2).run_so_far.plan.members()
    (worker,), (server,) = members["worker"], members["server"]
    said: list[str] = []
    run = simulator(
        graph,
        2,
        faults=(f"leave:{server}@0.1", f"leave:{worker}@0.1"),
        on_event=lambda event: said.append(event.warning) if event.warning else None,
        **CLUSTER,
    ).run()
    assert run.state == "FINISHED"
    assert [text.partition(":")[0] for text in said] == [f"node-{server} cannot leave", f"node-{worker} cannot leave"]
    assert "holds a part of the model" in said[0]
    assert "left without any worker" in said[1]


def test_run_in_which_nodes_leave_is_replayed() -> None:
    run = Elastic(rejoining_job(2, slack=1, rounds=LONG), 3, "leave:1@0.2", record=True).run
    replayed = replay(run.plan, run.artifacts.get)
    assert replayed.difference is None
    assert replayed.complete


@pytest.mark.parametrize(("job", "settings"), [(all_to_all, {"consistency": "async"}), (sparse, {}), (tree, {})])
def test_job_is_not_finished_by_one_that_came_too_late_if_all_others_have_died(
    job: Any, settings: dict[str, Any]
) -> None:
    """It ends, as the others have made all their gradients; these die before they have done their last work."""
    fixed = {"model": "mlp", "epochs": 0.25, "batch": 8, "lr": 0.02, "warm_start": 0, "seed": 3}
    graph = job.build(job.Config.parse(fixed | settings))
    end_s = simulate(graph, 2, **CLUSTER).elapsed_s
    faults = (f"fail:1@{end_s - 0.2}", f"join@{end_s + 0.05}", f"fail:0@{end_s + 0.2}")
    run = simulator(graph, 2, faults=faults, max_nodes=3, **CLUSTER).run()
    assert "due.left_to_others" in run.statistics[2].samples
    assert "model.safetensors" not in run.artifacts
    assert "died in the last work of the job, which the others had left to it" in run.reason


Moments = list[tuple[float, int]]
"""(second, node) each."""

SECONDS = st.integers(0, 700).map(lambda thousandths: thousandths / 1000)
"""Most jobs are over before the last of these."""

MOMENTS = st.lists(st.tuples(SECONDS, st.integers(0, 3)), max_size=3)


@settings(max_examples=30, deadline=None)
@given(
    p=st.integers(-1, 3),
    nodes=st.integers(1, 3),
    seed=st.integers(0, 1000),
    slack=st.sampled_from([None, 0, 3]),
    leaves=MOMENTS,
    joins=st.lists(SECONDS, max_size=3),
    fails=st.lists(st.tuples(SECONDS, st.integers(0, 3)), max_size=2, unique_by=lambda fail: fail[1]),
)
def test_leaving_and_joining_among_failures_at_any_moment_is_accounted_for(
    p: int,
    nodes: int,
    seed: int,
    slack: int | None,
    leaves: Moments,
    joins: list[float],
    fails: Moments,
) -> None:
    faults = [
        *(f"leave:{node}@{at_s}" for at_s, node in leaves),
        *(f"fail:{node}@{at_s}+0.1" for at_s, node in fails),
        *(f"join@{at_s}" for at_s in [0.4, *joins][: 4 - nodes]),
    ]
    elastic = Elastic(rejoining_job(p, slack=slack, rounds=LONG), nodes, *faults, seed=seed, max_nodes=4)
    finished = elastic.run.state == "FINISHED"
    if finished and p >= 0 and not any(life and not borrowed(node) for life, node in elastic.there.values()):
        elastic.assert_exact()
