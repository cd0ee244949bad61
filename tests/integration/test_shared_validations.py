"""Validations and processors of nodes on real processes, one of which is killed for good."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_runtime_cluster import job_processes

from ako_jobs.jobs import load_job, prepare
from dataflow.engine.job_life import JobState
from dataflow.observe.events import JobEvent
from dataflow.runtime.control_groups import usable_cores
from tests.clusters import shared_cluster

SETTINGS = {"model": "mlp", "warm_start": "0", "validate_every": "600"}


def told(events: Iterator[JobEvent], nodes: set[int]) -> JobEvent:
    """The first validation that one of these nodes tells of."""
    return next(event for event in events if _validation(event) and event.node in nodes)


def _validation(event: JobEvent) -> bool:
    return event.report is not None and event.report.port == "validate.results"


@pytest.mark.parametrize("job", ["ako", "sparse"])
def test_others_validate_and_do_the_final_when_the_first_worker_is_gone_for_good(job: str) -> None:
    with shared_cluster(3) as cluster:
        client = cluster.client
        name = client.submit(prepare(load_job(job), SETTINGS | {"epochs": "100000"}, 3).spec)
        told(client.watch(name), {0})
        os.kill(cluster.processes()["node-0"], signal.SIGKILL)
        for node in (1, 2):
            event = told(client.watch(name), {node})
            assert event.report is not None
            assert event.report.fields["tested"] == 355
        client.cancel(name)
        status = client.wait(name)
        found = [
            (event.node, event.report.fields) for event in client.watch(name) if event.report and _validation(event)
        ]
    assert status.state is JobState.CANCELLED, status.reason
    assert [node for node, fields in found if fields["final"]] == [1]


def test_next_worker_does_the_last_work_and_keeps_the_model_when_the_first_is_killed_in_it() -> None:
    with shared_cluster(3) as cluster:
        client = cluster.client
        prepared = prepare(load_job(f"{Path(__file__).parent / 'dying_job.py'}:build"), SETTINGS | {"epochs": "2"}, 3)
        name = client.submit(prepared.spec, prepared.bundle)
        status = client.wait(name)
        finals = [(event.node, event.report.fields) for event in client.watch(name) if event.report]
        artifacts = dict(client.artifacts(name))
    assert (status.state, status.stopped_by) == (JobState.FINISHED, "epochs"), status.reason
    assert any("SIGKILL" in change.reason for change in status.changes if change.node == 0)
    assert [(node, fields["tested"]) for node, fields in finals if fields.get("final")] == [(1, 355)]
    assert "model.safetensors" in artifacts


def test_job_processes_are_told_how_many_cores_their_node_has() -> None:
    with shared_cluster(2) as cluster:
        client = cluster.client
        name = client.submit(prepare(load_job("ako"), SETTINGS | {"epochs": "100000"}, 2).spec)
        told(client.watch(name), {0})
        commands = list(job_processes(cluster).values())
        cores = max(1, usable_cores() // 2)
        assert [f"--cores {cores} " in f"{command} " for command in commands] == [True, True]
        assert [node.cores for node in client.nodes()] == [cores, cores]
        client.cancel(name)
        client.wait(name)
