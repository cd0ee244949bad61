"""``ako run --record`` with real processes and simulated, and ``ako replay``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ako_jobs.simulate import simulate
from dataflow.cli.main import main
from dataflow.engine.recording import Chunk
from dataflow.plan.physical import PhysicalPlan
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


pytestmark = pytest.mark.xdist_group(__name__)  # these tests share a run


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
    chunks = [Chunk.decode(path.read_bytes()) for path in (run / "events").glob("node-*.bin")]
    assert sum(node["events"] for node in said["nodes"]) == sum(map(len, chunks))


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


def test_replay_of_a_finished_run_of_which_events_are_missing_is_refused(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (copy / "events").glob("node-2-*.bin"):
        path.unlink()
    assert main(["replay", str(copy)]) == 2
    said = capsys.readouterr()
    assert said.out.splitlines()[1] == "the record of node-2 breaks off after 0 events"
    assert "the run finished, and events of it are missing here" in said.err


def test_replay_of_a_node_without_its_end_says_how_far_it_went(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (copy / "events").glob("node-2-*.bin"):
        path.unlink()
    record = json.loads((copy / "record.json").read_text())
    (copy / "record.json").write_text(json.dumps({**record, "state": "FAILED"}))
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


def planted(copy: Path, folder: Path) -> Path:
    """Have the plan of a record, and its chunks with it, name code that leaves a mark, which is returned."""
    mark = folder / "mark"
    (folder / "planted.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\n")
    plan = json.loads((copy / "events" / "plan.json").read_text())
    for operator in plan["graph"]["operators"]:
        operator["kind"] = "planted:Operator"
    for element in plan["graph"]["elements"]:
        element["factory"] = "planted:state"
    (copy / "events" / "plan.json").write_text(json.dumps(plan))
    digest = PhysicalPlan.model_validate(plan).digest()
    for path in (copy / "events").glob("node-*.bin"):
        path.write_bytes(replace(Chunk.decode(path.read_bytes()), plan=digest).encode())
    return mark


def test_replay_of_a_plan_that_names_other_code_is_refused_and_runs_none_of_it(
    copy: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("planted")
    mark = planted(copy, folder)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    ended = replay(copy)
    assert not mark.exists()
    assert ended.returncode == 2
    assert "the job builds another plan than the one of the record: other graph at events/plan.json" in ended.stderr


@pytest.mark.parametrize("name", ["planted", "planted:build", "planted.py"])
def test_replay_of_a_job_that_is_not_built_in_runs_no_code_that_only_the_record_names(
    copy: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = planted(copy, copy)
    monkeypatch.syspath_prepend(copy)
    monkeypatch.chdir(copy)
    record = json.loads((copy / "record.json").read_text())
    (copy / "record.json").write_text(json.dumps({**record, "name": name}))
    assert main(["replay", str(copy)]) == 2
    assert not mark.exists()
    error = f"the run is one of a job that is not built in (got {name}); name the job whose code it is, as in --job"
    assert error in capsys.readouterr().err


def test_replay_with_other_settings_than_were_recorded_is_refused(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((copy / "record.json").read_text())
    record["config"]["lr"] = 0.5
    (copy / "record.json").write_text(json.dumps(record))
    assert main(["replay", str(copy)]) == 2
    assert "the job builds another plan than the one of the record: other graph" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "most"),
    [("events/node-1-000000.bin", 4_504_060), ("events/plan.json", 64 << 20), ("record.json", 256 << 20)],
)
def test_replay_of_a_file_that_is_too_large_is_refused_unread(
    copy: Path, name: str, most: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.truncate(copy / name, most + 1)
    read: list[str] = []
    read_bytes = Path.read_bytes

    def note(path: Path) -> bytes:
        read.append(path.relative_to(copy).as_posix() if path.is_relative_to(copy) else "")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", note)
    assert main(["replay", str(copy)]) == 2
    error = f"a file of the run is too large: {name} has at most {most:,} bytes (got {most + 1})"
    assert error in capsys.readouterr().err
    assert name not in read


def test_replay_of_a_file_without_an_end_is_refused(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "record.json").unlink()
    os.mkfifo(copy / "record.json")
    assert main(["replay", str(copy)]) == 2
    assert "no plain file" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[" * 100_000, "{}", '{"name": 3}', "\ufeff"])
def test_replay_of_a_record_that_is_none_is_refused(copy: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "record.json").write_text(text)
    assert main(["replay", str(copy)]) == 2
    assert "the folder does not hold a run: its record cannot be read" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    "job",
    [
        ["parameter_server", "consistency=async"],
        # p and r are chosen while it runs
        ["ako", "phantom=true", "momentum=0.9", "--step-time", "5ms"],
        ["all_to_all", "schedule=step", "milestones=0.2,0.5", "nesterov=true", "momentum=0.5"],
    ],
)
def test_replay_of_a_simulated_run_is_identical(
    job: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    sim = ["--sim", "--compute", "gamma", "--bandwidth", "10mbit", "--fault", "cut:0-2@0.02+0.1", "--tasks", "2"]
    assert main(["run", *job, *FAST, *sim, "--record", "--out", out]) == 0
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
    assert "a job that is not built in (got dim_job); name the job whose code it is, as in --job" in without.stderr
    ended = replay(out, "--job", job)
    assert (ended.returncode, ended.stdout.split(":")[0]) == (0, "identical")
