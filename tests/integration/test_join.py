"""Nodes that come to a job of a real cluster while it runs, and take the place of one that leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from ako_jobs.integers import Config, build, violations
from dataflow.engine.job_life import JobState
from dataflow.observe.events import JobEvent
from dataflow.plan.job import JobSpec, StopRules
from dataflow.runtime.client import Client
from tests.clusters import shared_cluster


def until(client: Client, job: str, holds: Callable[[JobEvent], bool]) -> JobEvent:
    return next(event for event in client.watch(job) if holds(event))


def made(node: int, incarnation: int) -> Callable[[JobEvent], bool]:
    """Whether an incarnation of a node has made gradients that others may have."""

    def holds(event: JobEvent) -> bool:
        told = event.statistics
        return told is not None and (told.node, told.incarnation) == (node, incarnation) and told.steps > 20

    return holds


def test_nodes_join_a_running_job_and_replace_each_other_and_every_gradient_is_everywhere_once() -> None:
    with shared_cluster(2) as cluster:
        client = cluster.client
        graph = build(Config(gradients=1_000_000, pace_ms=4.0, p=2))
        # Until two in a row have begun that have joined.
        stop = StopRules(report="compute.began", metric="incarnation", target=1, hold=2)
        job = client.submit(JobSpec(name="integers", graph=graph, nodes=2, max_nodes=3, stop=stop))
        until(client, job, made(0, 0))
        agent = [sys.executable, "-m", "dataflow.runtime.agent", "--state-dir", str(cluster.state_dir), "--tasks", "2"]
        agents = [subprocess.Popen([*agent, "--name", name]) for name in ("third", "fourth")]
        try:
            until(client, job, made(2, 1))
            client.drain("node-1")
            status = client.wait(job)
        finally:
            for each in agents:
                each.terminate()
                each.wait()
        assert status.state is JobState.FINISHED, status.reason
        events = list(client.watch(job))
        lives = [(event.change.node, event.change.life) for event in events if event.change is not None]
        assert [life for node, life in lives if node == 2] == ["joining", "alive"]
        assert [life for node, life in lives if node == 1] == ["left", "joining", "alive"]
        assert {status.node_names[0], *status.node_names[1:]} == {"node-0", "third", "fourth"}
        told = [(event.node, event.report) for event in events if event.report is not None]
        reports: list[dict[str, Any]] = [{"node": node, "port": each.port, **each.fields} for node, each in told]
        assert violations(reports) == []
        told_at_the_end = [each for each in reports if each["port"] == "tell.holding"]
        (leaver,) = [each for each in told_at_the_end if (each["node"], each["incarnation"]) == (1, 0)]
        held = [[count for count, _ in json.loads(each["held"])["1.0"]] for each in told_at_the_end]
        assert held == [[leaver["made"]]] * 4
