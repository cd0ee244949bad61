"""A node of a tree that runs on a real cluster is killed: the others go on, it comes back, and another one comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from test_runtime_cluster import processes

from ako_jobs.jobs import load_job, prepare
from dataflow.engine.job_life import JobState
from dataflow.observe.events import JobEvent
from tests.clusters import shared_cluster

SETTINGS = {"epochs": "30", "model": "mlp", "warm_start": "0", "validate_every": "600", "target": "0.9"}

PATIENCE_S = 200
"""Seconds after which something that has not happened is told, with what has: a hung test would say nothing."""


def good_model(event: JobEvent) -> bool | None:
    """Whether a node has found its model to be a good one; None if it has not looked."""
    if event.report is None or event.report.port != "look.looked":
        return None
    accuracy: Any = event.report.fields["accuracy"]
    return bool(accuracy > 0.9)


def test_inner_node_of_a_bounded_chain_is_killed_and_the_others_reach_the_target() -> None:
    with shared_cluster(3) as cluster:
        client = cluster.client
        job = client.submit(prepare(load_job("tree"), {**SETTINGS, "consistency": "ssp"}, 3).spec)
        next(event for event in client.watch(job) if event.report is not None)
        (process,) = processes(f"--parent {cluster.processes()['node-1']} ")
        os.kill(process, signal.SIGKILL)
        changes = [event.change for event in client.watch(job) if event.change is not None]
        status = client.job(job)
    assert status.state is JobState.FINISHED, status.reason
    assert status.stopped_by == "target", "nothing that had been learnt is lost"
    assert [(change.node, change.life) for change in changes] == [(1, "gone")]


def test_inner_node_of_a_chain_comes_back_and_another_joins_and_both_have_what_was_learnt() -> None:
    settings = {"epochs": "100000", "model": "mlp", "warm_start": "0", "validate_every": "600", "max_nodes": "4"}
    with shared_cluster(3) as cluster:
        client = cluster.client
        prepared = prepare(load_job(str(Path(__file__).with_name("looking_job.py"))), settings, 3)
        job = client.submit(prepared.spec, prepared.bundle)
        next(event for event in client.watch(job) if good_model(event))
        (process,) = processes(f"--parent {cluster.processes()['node-1']} ")
        os.kill(process, signal.SIGKILL)
        agent = [sys.executable, "-m", "dataflow.runtime.agent", "--state-dir", str(cluster.state_dir), "--tasks", "1"]
        fourth = subprocess.Popen([*agent, "--name", "fourth"])
        try:
            come: set[int] = set()
            looks: Counter[tuple[int | None, bool]] = Counter()
            began_s = time.monotonic()
            for event in client.watch(job):
                late_s = time.monotonic() - began_s
                assert late_s < PATIENCE_S, f"have come: {come}; looks by node, and whether at a good model: {looks}"
                if event.change is not None:
                    print(f"{late_s:.1f} s: node {event.change.node} {event.change}", flush=True)
                    if event.change.life == "alive" and event.change.incarnation:
                        come.add(event.change.node)
                if (good := good_model(event)) is not None and event.node in come:
                    looks[event.node, good] += 1
                if all(looks[node, True] for node in (1, 3)):
                    break
            client.cancel(job)
            status = client.wait(job)
        finally:
            fourth.terminate()
            fourth.wait()
    assert come == {1, 3}
    assert status.state is JobState.CANCELLED, status.reason
