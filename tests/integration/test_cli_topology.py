"""``ako topology`` on a cluster: a running tree is changed, and what cannot be is refused before anything is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ako_jobs.jobs import load_job, prepare
from dataflow.cli.main import main
from dataflow.engine.job_life import JobState
from dataflow.observe.record import make_record
from dataflow.plan.job import JobSpec
from dataflow.runtime.local_cluster import LocalCluster
from tests.clusters import shared_cluster

ENDLESS = {"epochs": "100000", "model": "mlp", "warm_start": "0", "validate_every": "600"}

pytestmark = pytest.mark.xdist_group(__name__)  # these tests share a cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with shared_cluster(3) as running:
        yield running


def said(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    capsys.readouterr()
    assert main(["topology", *arguments]) == code
    out, err = capsys.readouterr()
    return out if code == 0 else err


def test_tree_of_a_running_job_is_changed_twice_and_loops_are_refused(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    client, at = cluster.client, ("--state-dir", str(cluster.state_dir))
    spec = prepare(load_job("tree"), ENDLESS, 3).spec
    job = client.submit(spec)
    next(event for event in client.watch(job) if event.report is not None)

    told = json.loads(said(capsys, 0, job, "--to", "star", "--json", *at))
    assert (told["stage"], told["number"]) == ("settled", 2)
    assert told["outside_s"] >= 0
    assert "is settled" in said(capsys, 0, job[:6], "--to", "chain", *at)

    loop = tmp_path / "loop.txt"
    loop.write_text("0 1\n1 2\n2 0\n")
    assert "has a cycle: 2 - 1 - 0 - 2" in said(capsys, 2, job, "--to", str(loop), *at)
    apart = tmp_path / "apart.txt"
    apart.write_text("0 1\n")
    assert "not connected" in said(capsys, 2, job, "--to", str(apart), *at)
    assert "there is no such topology" in said(capsys, 2, job, "--to", "ring", *at)
    assert "no such job" in said(capsys, 2, "nosuchjob", "--to", "star", *at)

    client.cancel(job)
    events = list(client.watch(job))
    assert events[-1].state == JobState.CANCELLED
    assert "only the tree of a job that runs" in said(capsys, 2, job, "--to", "star", *at)
    record = make_record(spec, events, client.job(job).statistics, {})
    stages = [(step["number"], step["stage"]) for step in record["adjustments"]]  # type: ignore[union-attr, index, call-overload]
    assert stages == [(number, stage) for number in (2, 3) for stage in ("asked", "begun", "settled")]


def test_job_that_is_no_tree_has_no_topology_to_change(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    spec: JobSpec = prepare(load_job("ako"), ENDLESS, 2).spec
    job = cluster.client.submit(spec)
    error = said(capsys, 2, job, "--to", "star", "--state-dir", str(cluster.state_dir))
    assert "share no parameters over a tree" in error
    cluster.client.cancel(job)
    cluster.client.wait(job)
