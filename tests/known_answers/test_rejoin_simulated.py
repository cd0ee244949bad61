"""Workers that fail and come back in the simulator: all that live ones have made is in every replica."""

from __future__ import annotations

from typing import Any

import pytest

from ako_jobs import ako, all_to_all, parameter_server
from dataflow.graph.logical import LogicalGraph
from dataflow.observe.events import JobEvent
from dataflow.sim.replay import replay
from dataflow.sim.run import SimRun
from operators.lending import Borrow
from tests.known_answers.coded import SETTINGS
from tests.known_answers.rejoining import (
    ROUNDS,
    assert_accounted_for,
    borrowed,
    clocks_of,
    first,
    rejoining_job,
    settled,
)
from tests.known_answers.simulated import simulate, simulator

LONG = 90
"""Gradients of a worker: virtual seconds pass before one is started again."""


class LeftBehind(Borrow):
    """One that is not known to catch up."""

    catches_up = False


@pytest.mark.parametrize("faults", [("fail:1@0.2+0.3",), ("fail:0@0.2+0.3", "fail:2@0.3+0.3")])
@pytest.mark.parametrize("p", [0, 1, 3])
def test_workers_that_fail_and_come_back_are_accounted_for(p: int, faults: tuple[str, ...]) -> None:
    graph = rejoining_job(p, slack=2, rounds=LONG)
    nodes = simulate(graph, 4, seed=p, faults=faults, rate=1e6, latency_s=0.0005).nodes
    back = {int(fault[5]) for fault in faults}
    assert {index for index, node in enumerate(nodes) if borrowed(node)} == back
    assert all(settled(node) for node in nodes)
    assert [clocks_of(node).made for node in nodes] == [LONG] * 4
    assert all(first(nodes[index]) > 0 for index in back)
    deaths = [(index, 0, range(1, LONG + 1)) for index in back]
    assert_accounted_for({index: (int(index in back), node) for index, node in enumerate(nodes)}, deaths)


def test_worker_that_would_not_catch_up_is_not_started_again_and_the_others_go_on() -> None:
    graph = rejoining_job(0, slack=2, rounds=LONG).replace("borrow", LeftBehind())
    one, failed, *others = simulate(graph, 4, faults=("fail:1@0.2+0.3",), rate=1e6, latency_s=0.0005).nodes
    assert [clocks_of(node).made for node in (one, *others)] == [LONG] * 3
    assert 0 < clocks_of(failed).made < LONG


def test_bulk_synchronous_worker_that_fails_and_comes_back_makes_every_later_step() -> None:
    graph = rejoining_job(-1, rounds=LONG)
    nodes = simulate(graph, 4, seed=3, faults=("fail:1@0.2+0.3",), rate=1e6, latency_s=0.0005).nodes
    assert [clocks_of(node).made for node in nodes] == [LONG] * 4
    assert 0 < first(nodes[1]) < LONG


def test_worker_that_catches_up_too_slowly_is_started_again_and_the_job_goes_on() -> None:
    job = simulator(
        rejoining_job(0, slack=2, rounds=LONG, cap_nbytes=1),
        4,
        seed=3,
        faults=("fail:1@0.2+0.3",),
        rate=1e6,
        latency_s=0.0005,
    )
    run = job.run()
    assert run.state == "FINISHED", run.reason


@pytest.mark.parametrize("faults", [("fail:1@0.2+0.3",), ("fail:1@0.2", "fail:2@0.25", "fail:3@0.3")])
@pytest.mark.parametrize(("job", "settings"), [(ako, {"p": 2}), (all_to_all, {"consistency": "ssp"})])
def test_averages_of_what_all_have_follow_every_gradient_whoever_fails(
    job: Any, settings: dict[str, Any], faults: tuple[str, ...]
) -> None:
    graph = job.build(job.Config.parse({"codec": "int8", "average": 0.2, "epochs": 3, "batch": 16, **settings}))
    nodes = simulate(graph, 4, seed=1, faults=faults, rate=1e6, latency_s=0.0005).nodes
    for node in (nodes[0], *(nodes[index] for index in (1, 2, 3) if len(faults) == 1)):
        assert node.states["average"].number == clocks_of(node).made > 50


@pytest.mark.parametrize("node", [0, 1, 2])
@pytest.mark.parametrize("consistency", ["bsp", "ssp"])
def test_node_that_fails_as_the_job_ends_is_waited_for_or_finds_the_others_through(consistency: str, node: int) -> None:
    """Each is a server, too, without which the job cannot end; what an ended node has sent has arrived before that."""
    settings = {**SETTINGS, "lr": 0.01, "consistency": consistency, "servers": "all"}
    graph = parameter_server.build(parameter_server.Config.parse(settings))
    end_s = simulate(graph, 3, rate=1e6, latency_s=0.0005).elapsed_s
    late = 0
    for before_s in (0.008, 0.012, 0.016, 0.02, 0.04):
        fault = f"fail:{node}@{end_s - before_s:.4f}+0.3"
        late += not settled(simulate(graph, 3, rate=1e6, latency_s=0.0005, faults=(fault,)).nodes[node])
    assert late


def lives(graph: LogicalGraph, nodes: int, *, faults: tuple[str, ...], **model: Any) -> SimRun:
    """A finished run, in which all that live nodes have made is in every replica, and which can be replayed."""
    job = simulator(graph, nodes, faults=faults, record=True, **model)
    run = job.run()
    assert run.state == "FINISHED", run.reason
    assert all(clocks_of(node).rejected == 0 for node in run.nodes)
    assert replay(run.plan, run.artifacts.get).difference is None
    return run


@pytest.mark.parametrize(("seed", "message_s"), [(19, 0.005), (29, 0.005), (32, 0.0005), (40, 0.001)])
def test_nodes_that_share_a_core_hear_of_messages_before_the_end_of_their_stream(seed: int, message_s: float) -> None:
    """Dealing with the end of a stream takes no time, so it is done at the same moment as the message before it."""
    how: dict[str, Any] = {"rate": 1e4, "latency_s": 0.001, "cores": 1, "message_s": message_s}
    run = lives(rejoining_job(3, every=3, rounds=10), 3, faults=(), seed=seed, **how)
    assert_accounted_for({index: (0, node) for index, node in enumerate(run.nodes)}, [])


@pytest.mark.parametrize("seed", range(3))
def test_node_that_wakes_up_takes_nothing_in_that_an_earlier_life_of_another_had_sent(seed: int) -> None:
    how: dict[str, Any] = {"compute": "constant", "speeds": {2: 0.3}, "cpu": 0.4, "byte_s": 1e-6, "latency_s": 0.001}
    faults = (f"pause:2@{0.4 + 0.05 * seed}+5", "cut:3-1@0.3+4.5")
    run = lives(rejoining_job(0, slack=5, rounds=LONG), 4, faults=faults, seed=seed, **how)
    assert borrowed(run.nodes[3])


@pytest.mark.parametrize("detection_s", [0.0, 0.5])
def test_node_that_fails_at_second_0_is_missed_by_nobody(detection_s: float) -> None:
    run = lives(rejoining_job(0, slack=2), 3, faults=("fail:2@0", "fail:0@0"), detection_s=detection_s)
    assert clocks_of(run.nodes[1]).made == ROUNDS


def test_node_that_has_ended_before_it_hears_of_a_newcomer_sends_that_nothing() -> None:
    graph = rejoining_job(1, slack=2, rounds=1)
    how: dict[str, Any] = {"latency_s": 0.5, "compute": "constant", "speeds": {1: 0.05}}
    lives(graph, 3, faults=("fail:2@0.281+1.9153",), min_nodes=3, **how)


def test_node_is_not_started_again_on_a_machine_that_has_failed() -> None:
    """It is buried at second 2.3 because of its link, and would be started again before its failure is known."""
    told: list[tuple[float, str]] = []

    def hear(event: JobEvent) -> None:
        if event.change is not None and event.node == 1:
            told.append((event.elapsed_s, event.change.life))

    job = simulator(
        rejoining_job(0, slack=2, rounds=900),
        3,
        faults=("cut:0-1@0.05", "fail:1@2.4+6"),
        detection_s=2.0,
        compute="constant",
        on_event=hear,
    )
    run = job.run()
    assert run.state == "FINISHED", run.reason
    assert not [at_s for at_s, life in told if life == "alive" and at_s < 8.4]


def test_node_that_comes_back_is_heard_at_once_by_another_that_has_come_back_before() -> None:
    """It pulls as soon as it is there."""
    settings = {**SETTINGS, "lr": 0.01, "consistency": "async", "servers": "all"}
    graph = parameter_server.build(parameter_server.Config.parse(settings))
    nodes = simulate(graph, 3, faults=("fail:0@0.17+0.05", "fail:1@0.948+0.05"), rate=1e6, latency_s=0.1).nodes
    assert all(settled(node) for node in nodes)
