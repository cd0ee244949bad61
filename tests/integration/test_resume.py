"""Jobs that go on from a checkpoint after everything was killed, on real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from ako_jobs.jobs import load_job, prepare
from ako_jobs.resume import going_on, resumed
from ako_jobs.run import execute
from dataflow import Client, JobSpec, LocalCluster, Resume
from dataflow.clock import SystemClock
from dataflow.engine.job_life import JobState
from dataflow.errors import ConfigError
from dataflow.runtime.checkpoint_store import MANIFEST, newest_whole, numbers
from dataflow.runtime.folders import LocalFolder
from tests.clusters import shared_cluster

ROOT = Path(__file__).resolve().parents[2]
SETTINGS: dict[str, Any] = {"model": "mlp", "batch": 8, "warm_start": 0, "checkpoint_every": 512, "epochs": 4}


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> float:
    clock = SystemClock()
    begin = clock.now()
    while not holds():
        assert clock.now() < begin + seconds
        clock.sleep(0.01)
    return clock.now() - begin


def kill(cluster: LocalCluster) -> None:
    for pid in cluster.processes().values():
        os.kill(pid, signal.SIGKILL)


def submit(client: Client, job: str, nodes: int, **settings: Any) -> str:
    prepared = prepare(load_job(job), SETTINGS | settings, nodes)
    return client.submit(prepared.spec, prepared.bundle)


def go_on(client: Client, job: str, **options: Any) -> str:
    client.cancel(job)  # it would go on by itself
    client.wait(job)
    spec = JobSpec.model_validate_json(client.spec_json(job))
    prepared = resumed(spec, Resume(job=job, number=options.pop("number", None)), **options)
    return client.submit(prepared.spec, prepared.bundle)


def killed_job(state_dir: Path, job: str, nodes: int, checkpoints: int = 2, **settings: Any) -> tuple[str, LocalFolder]:
    """A job that was killed with its cluster once it had so many checkpoints, and these."""
    cluster = shared_cluster(nodes, state_dir=state_dir)
    with cluster:
        name = submit(cluster.client, job, nodes, **settings)
        folder = LocalFolder(state_dir / "checkpoints" / name)
        wait_until(lambda: len(whole(folder)) >= checkpoints or cluster.client.job(name).ended)
        assert cluster.client.job(name).state is JobState.RUNNING, cluster.client.job(name).reason
        kill(cluster)
    return name, folder


def whole(folder: LocalFolder) -> list[int]:
    return [number for number in numbers(folder) if (Path(folder.place) / f"{number:09d}" / MANIFEST).exists()]


@pytest.mark.parametrize(
    ("job", "nodes", "settings"),
    [("ako", 1, {}), ("all_to_all", 4, {"consistency": "bsp"})],
)
def test_resume_after_everything_was_killed_gives_the_uninterrupted_model_bit_for_bit(
    job: str, nodes: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    name, _ = killed_job(tmp_path, job, nodes, **settings)
    with shared_cluster(nodes, state_dir=tmp_path) as cluster:
        again = go_on(cluster.client, name)
        assert cluster.client.wait(again).state is JobState.FINISHED, cluster.client.job(again).reason
        whole_run = submit(cluster.client, job, nodes, **settings)
        assert cluster.client.wait(whole_run).state is JobState.FINISHED
        models = [dict(cluster.client.artifacts(each))["model.safetensors"] for each in (again, whole_run)]
        steps = [sum(each.steps for each in cluster.client.job(each_job).statistics) for each_job in (again, whole_run)]
        reports = [event.report.fields for event in cluster.client.watch(again) if event.report]
    assert models[0] == models[1]
    assert steps[0] < steps[1]
    assert reports[-1]["epoch"] == 4


def test_resume_leaves_out_what_is_broken_and_refuses_what_does_not_fit(tmp_path: Path) -> None:
    with shared_cluster(2, state_dir=tmp_path) as cluster:
        client = cluster.client
        name = submit(client, "ako", 2, epochs=10000)
        folder = LocalFolder(tmp_path / "checkpoints" / name)
        wait_until(lambda: len(whole(folder)) >= 3)
        client.cancel(name)
        client.wait(name)
        newest, before = whole(folder)[:2]
        path = Path(folder.place) / f"{newest:09d}" / "node-1.safetensors"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
        again = go_on(client, name)
        wait_until(lambda: client.job(again).state is JobState.RUNNING or client.job(again).ended)
        assert client.job(again).state is JobState.RUNNING, client.job(again).reason
        spec = JobSpec.model_validate_json(client.spec_json(again))
        assert spec.resume is not None
        assert spec.resume.number == before
        assert [warning for warning in spec.warnings if str(path) in warning]  # one not whole yet may be left out, too
        client.cancel(again)
        client.wait(again)
        with pytest.raises(ConfigError, match="there is no checkpoint 7 at "):
            go_on(client, name, number=7)
        with pytest.raises(ConfigError, match=r"average/values.*leave out"):
            go_on(client, name, settings={"model": "small"})
        with pytest.raises(ConfigError, match="batch stays"):
            go_on(client, name, settings={"batch": 4})
        with pytest.raises(ConfigError, match="local_steps stays"):
            go_on(client, name, settings={"local_steps": 4})


def test_resume_on_fewer_nodes_goes_on_where_the_data_was(tmp_path: Path) -> None:
    name, folder = killed_job(tmp_path, "parameter_server", 3, epochs=10000)
    manifest, _ = newest_whole(folder)
    steps = sum(file.member.steps or 0 for file in manifest.files)
    with shared_cluster(2, state_dir=tmp_path) as cluster:
        client = cluster.client
        epochs = steps * 8 / 1302 + 1  # of the digits, 1,302 images are trained on
        again = go_on(client, name, nodes=2, settings={"epochs": epochs, "lr": 0.01})
        status = client.wait(again)
        assert status.state is JobState.FINISHED, status.reason
        reports = [event.report.fields for event in client.watch(again) if event.report]
        made = [each.steps for each in status.statistics if each.steps]
    images = sum(made) * 8
    assert images == pytest.approx(1302, abs=100)
    first = reports[0]["epoch"]
    assert isinstance(first, float)
    assert first >= epochs - 1.2


def test_run_goes_on_from_a_folder(tmp_path: Path) -> None:
    job = load_job("ako")
    first = execute(prepare(job, SETTINGS | {"checkpoint_dir": str(tmp_path / "kept"), "epochs": 1}, 1))
    assert first.state is JobState.FINISHED
    (folder,) = (tmp_path / "kept").iterdir()
    assert folder.name == first.job
    second = execute(going_on(prepare(job, SETTINGS | {"epochs": 2}, 1), Resume(folder=str(folder))))
    assert second.state is JobState.FINISHED
    before, after = (cast("dict[str, int]", each.record["totals"])["gradients"] for each in (first, second))
    manifest, _ = newest_whole(LocalFolder(folder))
    assert after == 2 * before - (manifest.files[0].member.steps or 0)
    assert second.reports[-1]["epoch"] == 2


def test_writers_killed_at_random_moments_leave_the_newest_whole_checkpoint() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "faults_checkpoints.py"), "kills", "--count", "8"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(said.stdout)
    assert (found["killed"], found["restored"]) == (8, 8)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_training_goes_on_where_the_disk_is_full_and_says_so(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(place)], check=True)
    try:
        (place / "other").write_bytes(bytes(15 << 19))
        settings = SETTINGS | {"epochs": 3, "checkpoint_every": 256, "keep_checkpoints": 1000, "checkpoint_dir": place}
        result = execute(prepare(load_job("ako"), {key: str(value) for key, value in settings.items()}, 2))
        assert result.state is JobState.FINISHED
        warnings: Any = result.record["warnings"]
        full = [text for text in warnings if "No space left" in text]
        assert full
        assert all(f"{place}/{result.job}" in text and "the job goes on without it" in text for text in full)
        manifest, _ = newest_whole(LocalFolder(place / result.job))
        assert manifest.number > 0
        assert not list(place.rglob("*.part"))
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
