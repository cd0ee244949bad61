"""``ako run --record`` with real processes and simulated, and ``ako replay``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ako_jobs.simulate import simulate
from dataflow.cli.main import main
from dataflow.sim.model import ClusterModel

FAST = ["epochs=1", "warm_start=0", "seed=3"]

OWN = """\
from ako_jobs import ako
from dataflow import Emissions, In, Operator, Out
from operators.messages import Batch

Config = ako.Config


class Dims(Operator):
    batches = In(Batch)
    dim = Out(Batch)

    def process(self, batch: Batch) -> Emissions:
        yield self.dim(batch.with_images(batch.images / 2))


def build(config):
    return ako.build(config).insert_after("source", Dims())
"""


def replay(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """``ako replay`` in a process of its own, as the record's came from others."""
    command = [sys.executable, "-m", "dataflow.cli.main", "replay", str(folder), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run of real processes."""
    folder = tmp_path_factory.mktemp("recorded") / "out"
    assert main(["run", "ako", *FAST, "p=3", "--nodes", "4", "--record", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoilt."""
    for path in run.rglob("*"):
        if path.is_file():
            target = tmp_path / path.relative_to(run)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    return tmp_path


def test_replay_of_a_run_of_real_processes_is_identical(run: Path) -> None:
    record = json.loads((run / "record.json").read_text())
    ended = replay(run, "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    said = json.loads(ended.stdout)
    assert (said["identical"], said["complete"], said["difference"]) == (True, True, None)
    assert said["artifacts"] == ["model.safetensors"]
    assert said["reports"] == len(record["reports"]) > 0
    nbytes = sum(path.stat().st_size for path in (run / "events").glob("node-*.bin"))
    chunks = len(list((run / "events").glob("node-*.bin")))
    assert sum(node["events"] for node in said["nodes"]) == (nbytes - 64 * chunks) / 40


@pytest.mark.parametrize("name", ["events/plan.json", "events/node-0-000000.bin", "model.safetensors"])
def test_replay_of_what_is_no_plain_file_is_refused(copy: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Endless ones have no size: they are refused before a byte is read."""
    (copy / name).unlink()
    (copy / name).symlink_to("/dev/zero")
    assert main(["replay", str(copy)]) == 2
    assert "no plain file" in capsys.readouterr().err


def test_replay_of_a_record_whose_reports_are_none_is_refused(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads((copy / "record.json").read_text())
    (copy / "record.json").write_text(json.dumps({**record, "reports": [1]}))
    assert main(["replay", str(copy)]) == 2
    assert "the folder does not hold a run" in capsys.readouterr().err


def test_replay_of_another_model_says_so(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = copy / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1] + b"x")
    assert main(["replay", str(copy)]) == 1
    assert capsys.readouterr().out == "different: model.safetensors differs\n"


def test_replay_of_a_node_without_its_end_says_how_far_it_went(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (copy / "events").glob("node-2-*.bin"):
        path.unlink()
    assert main(["replay", str(copy)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("identical as far as the record goes: ")
    assert lines[1] == "the record of node-2 breaks off after 0 events"
    assert [line.split()[0] for line in lines[2:]] == ["node-0", "node-1", "node-3"]


def test_replay_of_a_truncated_record_is_refused(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = copy / "events" / "node-1-000000.bin"
    path.write_bytes(path.read_bytes()[:-5])
    assert main(["replay", str(copy)]) == 2
    assert "error: a chunk of a record is cut off: " in capsys.readouterr().err


def test_replay_with_other_versions_warns(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads((copy / "record.json").read_text())
    record["versions"]["numpy"] = "0.1"
    (copy / "record.json").write_text(json.dumps(record))
    assert main(["replay", str(copy)]) == 0
    assert "other versions may compute other values: numpy 0.1 then, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("missing", "error"),
    [("record.json", "the folder does not hold a run"), ("events/plan.json", "the run was not recorded")],
)
def test_replay_without_a_record_is_refused(
    copy: Path, missing: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / missing).unlink()
    assert main(["replay", str(copy)]) == 2
    assert error in capsys.readouterr().err


def test_run_with_record_but_no_folder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "ako", "--record"]) == 2
    assert "--record has no folder to keep the record in; add --out DIR" in capsys.readouterr().err


def test_replay_of_a_simulated_run_is_identical(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    sim = ["--sim", "--compute", "gamma", "--bandwidth", "10mbit", "--fault", "cut:0-2@0.02+0.1"]
    assert main(["run", "parameter_server", "consistency=async", *FAST, *sim, "--record", "--out", out]) == 0
    capsys.readouterr()
    assert main(["replay", out]) == 0
    assert capsys.readouterr().out.startswith("identical: ")


def test_replay_of_a_users_code_needs_its_job(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "dim_job.py").write_text(OWN)
    job, out = str(tmp_path / "own" / "dim_job.py"), tmp_path / "out"
    model = ClusterModel(compute="constant", step_s=0.001)
    simulate(job, {"epochs": 0.2, "warm_start": 0}, nodes=2, model=model, record=True, out=out)
    without = replay(out)
    assert without.returncode == 2
    assert "name the job whose code it is, as in --job my_job.py" in without.stderr
    ended = replay(out, "--job", job)
    assert (ended.returncode, ended.stdout.split(":")[0]) == (0, "identical")
