"""Checkpoints of jobs in which no worker waits for another, and one is ten times as slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_resume import go_on, wait_until, whole

from ako_jobs.jobs import load_job, prepare
from dataflow.engine.job_life import JobState
from dataflow.plan.job import JobSpec
from dataflow.runtime.checkpoint_store import load_manifest
from dataflow.runtime.folders import LocalFolder
from tests.clusters import shared_cluster

JOB = """
import time
from ako_jobs import {job}
from dataflow import Emissions, In, LogicalGraph, NodeContext, Operator, Out
from operators.messages import Batch


class Slow(Operator):
    batches = In(Batch)
    same = Out(Batch)

    def process(self, batch: Batch, node: NodeContext) -> Emissions:
        time.sleep(0.05 if node.index == 1 else 0.005)
        yield self.same(batch)


def build(config: {job}.Config) -> LogicalGraph:
    return {job}.build(config).insert_after("source", Slow())
"""


@pytest.mark.parametrize(
    ("job", "settings"),
    [
        ("sparse", {}),
        ("tree", {}),
        ("parameter_server", {"consistency": "async", "codec": "threshold"}),
    ],
)
def test_checkpoints_are_whole_though_one_worker_falls_far_behind_and_the_job_goes_on_from_one(
    tmp_path: Path, job: str, settings: dict[str, Any]
) -> None:
    path = tmp_path / f"slow_{job}.py"
    path.write_text(JOB.format(job=job))
    fixed = {"model": "mlp", "batch": 8, "warm_start": 0, "epochs": 1000, "patience": 1000, "checkpoint_every": 1600}
    prepared = prepare(load_job(str(path)), fixed | settings, 3)
    with shared_cluster(3, state_dir=tmp_path / "state") as cluster:
        client = cluster.client
        name = client.submit(prepared.spec, prepared.bundle)
        folder = LocalFolder(tmp_path / "state" / "checkpoints" / name)
        wait_until(lambda: len(whole(folder)) == 3 or client.job(name).ended)
        assert client.job(name).state is JobState.RUNNING, client.job(name).reason
        again = go_on(client, name)
        assert client.job(name).warnings == ()
        manifest = load_manifest(folder, whole(folder)[0])
        steps = [file.member.steps or 0 for file in manifest.files if "worker" in file.member.roles]
        assert max(steps) > 1.5 * min(steps)
        after = LocalFolder(tmp_path / "state" / "checkpoints" / again)
        wait_until(lambda: len(whole(after)) >= 2 or client.job(again).ended)
        assert client.job(again).state is JobState.RUNNING, client.job(again).reason
        assert JobSpec.model_validate_json(client.spec_json(again)).resume is not None
        client.cancel(again)
