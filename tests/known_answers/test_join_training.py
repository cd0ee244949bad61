"""Workers of every topology that join while the others train; what is divided and counted goes by who is there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ako_jobs import ako, all_to_all, parameter_server, sparse, tree
from ako_jobs.jobs import load_job, prepare
from dataflow.engine.memory_driver import MemoryRun
from dataflow.errors import ConfigError
from dataflow.plan.job import JobSpec
from tests.known_answers.coded import SETTINGS
from tests.known_answers.rejoining import Dying, clocks_of, settled, values


def trained(graph: Any, nodes: int, max_nodes: int, *turns: tuple[int, int]) -> MemoryRun:
    driver = Dying(JobSpec(name="joining", graph=graph, nodes=nodes, max_nodes=max_nodes).plan(), turns)
    run = driver.execute()
    assert [driver.incarnations[node] for _, node in turns] == [1] * len(turns)
    return run


@pytest.mark.parametrize(
    ("job", "settings"),
    [
        (ako, {"p": 2}),
        (ako, {"p": 2, "schedule": "cosine"}),
        (all_to_all, {"consistency": "bsp"}),
        (sparse, {}),
        (sparse, {"schedule": "step", "milestones": "0.5"}),
        (parameter_server, {"servers": 1}),
    ],
)
def test_data_are_divided_from_the_start_among_those_that_are_there(job: Any, settings: dict[str, object]) -> None:
    config = job.Config.parse({**SETTINGS, "lr": 0.01, **settings})
    nodes = 3 if job is parameter_server else 2
    alone, roomy = trained(job.build(config), nodes, nodes), trained(job.build(config), nodes, nodes + 2)
    for node in (0, 1):
        course: Any = roomy.nodes[node].states["course"]
        assert course.sharing == (0, 1)
        assert clocks_of(roomy.nodes[node]).made == clocks_of(alone.nodes[node]).made
        np.testing.assert_array_equal(values(roomy.nodes[node]), values(alone.nodes[node]))


@pytest.mark.parametrize(
    ("job", "settings"),
    [(ako, {"p": 2}), (ako, {"p": 2, "schedule": "cosine"}), (all_to_all, {"consistency": "bsp"}), (sparse, {})],
)
def test_worker_that_joins_shares_the_data_of_the_next_epoch(job: Any, settings: dict[str, object]) -> None:
    config = job.Config.parse({**SETTINGS, "lr": 0.01, "epochs": 4, **settings})
    run = trained(job.build(config), 2, 3, (60, 2))
    assert all(settled(node) for node in run.nodes)
    for node in run.nodes:
        course: Any = node.states["course"]
        assert course.sharing == (0, 1, 2)
    assert [clocks_of(node).rejected for node in run.nodes] == [0, 0, 0]
    if settings.get("consistency") == "bsp":  # though they need not end with the same step
        for node in run.nodes[1:]:
            np.testing.assert_array_equal(values(node), values(run.nodes[0]))


def test_worker_that_joins_a_tree_shares_the_data_of_the_next_epoch_and_ends_with_what_the_others_have() -> None:
    config = tree.Config.parse({**SETTINGS, "lr": 0.01, "epochs": 4})
    run = trained(tree.build(config), 2, 3, (60, 2))
    assert all(settled(node) for node in run.nodes)
    for node in run.nodes:
        course: Any = node.states["course"]
        assert course.sharing == (0, 1, 2)
        np.testing.assert_allclose(values(node), values(run.nodes[0]), rtol=1e-4, atol=1e-6)
    begun: Any = run.nodes[2].states["replica"]
    assert 0 < begun.sharing.own.counts[2] < clocks_of(run.nodes[2]).made


@pytest.mark.parametrize("consistency", ["bsp", "ssp", "async"])
def test_worker_that_joins_parameter_servers_ends_with_what_the_others_have(consistency: str) -> None:
    config = parameter_server.Config.parse(
        {**SETTINGS, "servers": 2, "lr": 0.01, "epochs": 4, "consistency": consistency}
    )
    run = trained(parameter_server.build(config), 4, 5, (60, 2))
    assert [("shard" in node.states) for node in run.nodes] == [False, False, False, True, True]
    for other in run.nodes[1:3]:
        np.testing.assert_array_equal(values(other), values(run.nodes[0]))


@pytest.mark.parametrize(
    ("job", "nodes", "settings", "why"),
    [
        ("tree", 3, {"max_nodes": 4, "consistency": "ssp"}, "nodes join a tree only with consistency=eventual"),
        ("tree", 3, {"max_nodes": 4, "codec": "fp16"}, "nodes join a tree only with consistency=eventual"),
        ("parameter_server", 2, {"servers": "all", "max_nodes": 3}, "each of its nodes holds a part of the whole"),
        ("ako", 3, {"max_nodes": 2}, "max_nodes is less than the job's 3 nodes"),
        (
            "all_to_all",
            2,
            {"max_nodes": 3, "schedule": "cosine", "consistency": "bsp"},
            "goes by steps of as many workers",
        ),
        (
            "parameter_server",
            2,
            {"max_nodes": 3, "schedule": "cosine", "pull_codec": "fp16"},
            "goes by steps of as many",
        ),
    ],
)
def test_jobs_that_no_node_can_join_are_refused_before_they_start(
    job: str, nodes: int, settings: dict[str, object], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        prepare(load_job(job), settings, nodes)
