"""What a running job says of itself: to Prometheus, and to ``ako status``."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dataflow.cli.main import main
from dataflow.clock import SystemClock

SLOW_JOB = '''
"""Ako whose gradients take their time on node 1."""

import time

from ako_jobs import ako
from dataflow import LogicalGraph
from operators.compute import Compute

Config = ako.Config


class Slow(Compute):
    def process(self, batch, replica, statistics, velocity, clocks, node):
        if node.index == 1:
            time.sleep(0.1)
        return super().process(batch, replica, statistics, velocity, clocks, node)


def build(config: Config) -> LogicalGraph:
    graph = ako.build(config)
    return graph.replace("compute", Slow.model_validate_json(graph.operator("compute").params))
'''


@contextmanager
def started(*arguments: str) -> Iterator[str]:
    """A process of the command, and the first line that it prints; it is ended in the end."""
    command = [sys.executable, "-m", "dataflow.cli.main", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline()
        finally:
            process.terminate()


@pytest.fixture
def metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where a master with two nodes tells its metrics."""
    monkeypatch.setenv("AKO_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("AKO_TOKEN", raising=False)
    with started("master", "--port", "0", "--metrics-port", "0") as line:
        found = re.search(r"metrics at (http://127.0.0.1:\d+/metrics)$", line.strip())
        assert found, line
        with started("node", "--name", "left", "--tasks", "1") as left:
            assert "is attached" in left
            with started("node", "--name", "right", "--tasks", "1") as right:
                assert "is attached" in right
                yield found[1]


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main(arguments) == 0
    return json.loads(capsys.readouterr().out)


def series(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def test_running_job_tells_its_measurements_and_which_node_is_slow(
    metrics: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slow_job.py").write_text(SLOW_JOB)
    assert series(metrics) == {}
    # The fast one may not run away from the slow one: it waits, and makes no more gradients than that.
    settings = ["epochs=100000", "tau=2", "p=1"]
    job = said(capsys, "submit", str(tmp_path / "slow_job.py"), *settings, "--nodes", "2", "--json")["job"]
    clock, status = SystemClock(), dict[str, Any]()
    end_s = clock.now() + 100.0
    while not status.get("slow"):
        assert clock.now() < end_s, status
        clock.sleep(0.2)
        status = said(capsys, "status", job, "--json")
        assert not status["ended"], status
    (sentence,) = [each for each in status["slow"] if "gradients/s" in each]
    assert re.match(r"right is slow: it makes \d(\.\d+)? gradients/s when nothing holds it back, the others", sentence)
    left, right = status["conditions"]
    assert (left["name"], right["name"]) == ("left", "right")
    assert left["blocked"] > 0.5 > right["blocked"]
    assert left["cpu"] > 0.0
    assert main(["status", job]) == 0
    shown = capsys.readouterr().out
    assert "right is slow: it makes " in shown
    assert re.search(r"^NODE +GRADIENTS/S +COMPUTING +BLOCKED +IDLE +CPU", shown, re.MULTILINE)

    told = series(metrics)
    left_of_job = f'job_id="{job}",job_name="{status["name"]}",node="left"'
    node, pair = f"{{{left_of_job}}}", f'{{{left_of_job},peer="right"}}'
    assert told[f"ako_gradients_total{node}"] > 0
    assert told[f"ako_blocked_seconds_total{node}"] > 1.0
    assert told[f"ako_cpu_seconds_total{node}"] > told[f"ako_exchange_cpu_seconds_total{node}"] > 0.0
    assert told[f"ako_delivered_bytes_total{pair}"] > 1e5
    assert told[f"ako_delay_seconds_count{pair}"] > 0
    assert main(["cancel", job]) == 0


def test_metrics_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        arguments = ["--state-dir", str(tmp_path), "--port", "0", "--metrics-port", str(taken.getsockname()[1])]
        command = [sys.executable, "-m", "dataflow.cli.main", "master", *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=dict(os.environ), check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: cannot tell metrics on this address: ")
    assert ended.stderr.count("\n") == 1
