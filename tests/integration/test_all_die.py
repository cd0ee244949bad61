"""All nodes of a job die, or the only one: it begins again from its newest checkpoint, by itself."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from test_resume import killed_job, submit, wait_until, whole
from test_runtime_cluster import processes

from dataflow import Client, LocalCluster
from dataflow.engine.job_life import JobState
from dataflow.runtime.folders import LocalFolder
from tests.clusters import shared_cluster

AGAIN = ["SUBMITTED", "DEPLOYING", "RUNNING", "PENDING", "PENDING", "DEPLOYING", "RUNNING", "FINISHED"]


def kill_nodes(cluster: LocalCluster) -> None:
    """Kill all job processes at once."""
    agents = [pid for name, pid in cluster.processes().items() if name != "master"]
    for pid in [pid for agent in agents for pid in processes(f"--parent {agent} ")]:
        os.kill(pid, signal.SIGKILL)


def states(client: Client, job: str) -> list[tuple[str, str]]:
    return [(event.state, event.reason) for event in client.watch(job) if event.state]


def model(client: Client, job: str) -> bytes:
    return dict(client.artifacts(job))["model.safetensors"]


@pytest.mark.parametrize(
    ("job", "nodes", "settings"),
    [("ako", 1, {}), ("all_to_all", 3, {"consistency": "bsp"})],
)
def test_job_whose_nodes_were_all_killed_gives_the_uninterrupted_model_bit_for_bit(
    job: str, nodes: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    with shared_cluster(nodes, state_dir=tmp_path) as cluster:
        client = cluster.client
        name = submit(client, job, nodes, **settings)
        folder = LocalFolder(tmp_path / "checkpoints" / name)
        wait_until(lambda: len(whole(folder)) >= 2 or client.job(name).ended)
        kill_nodes(cluster)
        status = client.wait(name)
        assert status.state is JobState.FINISHED, status.reason
        told = states(client, name)
        assert [state for state, _ in told] == AGAIN
        assert told[3][1].startswith("all its nodes have died, the last of them node node-")
        assert "SIGKILL" in told[3][1]
        assert "it goes on from checkpoint " in told[4][1]
        undisturbed = submit(client, job, nodes, **settings)
        assert client.wait(undisturbed).state is JobState.FINISHED
        assert model(client, name) == model(client, undisturbed)
        steps = [sum(each.steps for each in client.job(each_job).statistics) for each_job in (name, undisturbed)]
    assert steps[0] < steps[1]


def test_job_whose_master_was_killed_with_all_its_nodes_goes_on_by_itself(tmp_path: Path) -> None:
    name, _ = killed_job(tmp_path, "ako", 2)
    with shared_cluster(2, state_dir=tmp_path) as cluster:
        status = cluster.client.wait(name)
        assert status.state is JobState.FINISHED, status.reason
        reports = [event.report.fields for event in cluster.client.watch(name) if event.report]
        assert [state for state, _ in states(cluster.client, name)][-4:] == AGAIN[-4:]
    assert reports[-1]["epoch"] == 4


def test_job_goes_on_where_the_master_is_killed_while_it_begins_again(tmp_path: Path) -> None:
    with shared_cluster(2, state_dir=tmp_path) as cluster:
        client = cluster.client
        name = submit(client, "ako", 2)
        folder = LocalFolder(tmp_path / "checkpoints" / name)
        wait_until(lambda: len(whole(folder)) >= 2 or client.job(name).ended)
        kill_nodes(cluster)
        wait_until(lambda: client.job(name).state in (JobState.PENDING, JobState.DEPLOYING))
        os.kill(cluster.processes()["master"], signal.SIGKILL)
        cluster.restart_master()
        status = client.wait(name)
        assert status.state is JobState.FINISHED, status.reason


def test_job_without_checkpoints_fails_with_its_nodes_and_says_what_would_have_helped(tmp_path: Path) -> None:
    with shared_cluster(1, state_dir=tmp_path) as cluster:
        name = submit(cluster.client, "ako", 1, checkpoint_every=None, epochs=10000)
        wait_until(lambda: cluster.client.job(name).last_report is not None)
        kill_nodes(cluster)
        status = cluster.client.wait(name)
    assert status.state is JobState.FAILED
    assert "all its nodes have died" in status.reason
    assert "there is no whole checkpoint" in status.reason
    assert "checkpoint_every" in status.reason
