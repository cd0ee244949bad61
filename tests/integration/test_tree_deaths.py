"""A node of a tree that runs on a real cluster is killed: the others share what it held, and go on to the end."""

from __future__ import annotations

import os
import signal

from test_runtime_cluster import processes

from ako_jobs.jobs import load_job, prepare
from dataflow.engine.job_life import JobState
from dataflow.runtime.local_cluster import LocalCluster

SETTINGS = {"epochs": "30", "model": "mlp", "warm_start": "0", "validate_every": "600", "target": "0.9"}


def test_inner_node_of_a_chain_is_killed_and_the_others_reach_the_target() -> None:
    with LocalCluster(nodes=3, tasks=1) as cluster:
        client = cluster.client
        job = client.submit(prepare(load_job("tree"), SETTINGS, 3).spec)
        next(event for event in client.watch(job) if event.report is not None)
        (process,) = processes(f"--parent {cluster.processes()['node-1']} ")
        os.kill(process, signal.SIGKILL)
        changes = [event.change for event in client.watch(job) if event.change is not None]
        status = client.job(job)
    assert status.state is JobState.FINISHED, status.reason
    assert status.stopped_by == "target", "nothing that had been learnt is lost"
    assert [(change.node, change.life) for change in changes] == [(1, "gone")]
