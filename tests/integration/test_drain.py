"""A node of a real cluster that is drained: the others have all that it made, and go on."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from ako_jobs.integers import Config, build, mark
from dataflow.cli.main import main
from dataflow.clock import SystemClock
from dataflow.engine.draining import DRAINED
from dataflow.engine.job_life import JobState
from dataflow.plan.job import JobSpec, StopRules
from dataflow.runtime.client import Client
from tests.clusters import shared_cluster


def held(told: dict[int, dict[str, Any]], node: int, origin: str) -> list[list[int]]:
    found: list[list[int]] = json.loads(told[node]["held"])[origin]
    return found


def test_drained_node_leaves_nothing_behind_and_gets_no_more_jobs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with shared_cluster(3) as cluster:
        client, where = cluster.client, ("--state-dir", str(cluster.state_dir))
        graph = build(Config(gradients=1_000_000, pace_ms=4.0, p=2))
        # Until two have told what they hold in the end, which are the two that leave.
        stop = StopRules(report="tell.holding", metric="made", target=1, hold=2)
        job = client.submit(JobSpec(name="integers", graph=graph, nodes=3, stop=stop))
        next(event for event in client.watch(job) if event.statistics is not None and event.statistics.steps > 50)

        assert main(["node", "drain", "node-7", *where]) == 2
        assert "there is no such node (got node-7); one of: node-0, node-1, node-2" in capsys.readouterr().err
        assert client.job(job).changes == ()

        # A master that is killed just then hears of it again from its own notes, and so does the command that waits.
        ask = Client.drain

        def drain_and_restart_the_master(asking: Client, name: str, operation_id: str = "") -> None:
            ask(asking, name, operation_id)
            os.kill(cluster.processes()["master"], signal.SIGKILL)
            cluster.restart_master()

        with monkeypatch.context() as patched:
            patched.setattr(Client, "drain", drain_and_restart_the_master)
            assert main(["node", "drain", "node-1", "--json", *where]) == 0
        assert json.loads(capsys.readouterr().out) == {"node": "node-1", "drained": True, "left": job}
        assert [(change.node, change.life, change.reason) for change in client.job(job).changes] == [
            (1, "left", DRAINED)
        ]
        while len(client.nodes()) < 3:  # which waits for the agents
            SystemClock().sleep(0.05)
        assert client.job(job).state is JobState.RUNNING
        assert {node.name: node.job for node in client.nodes()}["node-1"] == ""

        client.drain("node-0")
        status = client.wait(job)
        assert (status.state, status.stopped_by) == (JobState.FINISHED, "target"), status.reason
        events = list(client.watch(job))
        lives = [(event.change.node, event.change.life) for event in events if event.change is not None]
        assert lives == [(1, "left"), (0, "left")]
        reports = [(event.node, event.report) for event in events if event.report is not None]
        told = {node: dict(report.fields) for node, report in reports if report.port == "tell.holding"}
        assert told[1]["made"] > 50
        for leaver, stayed in ((1, (0, 1, 2)), (0, (0, 2))):
            made = told[leaver]["made"]
            every = [[made, sum(mark(number) for number in range(1, made + 1))]]
            assert [held(told, node, f"{leaver}.0") for node in stayed] == [every] * len(stayed)

        waiting = client.submit(JobSpec(name="more", graph=graph, nodes=3))
        assert client.job(waiting).reason.startswith("needs 3 nodes, 1 attached")
