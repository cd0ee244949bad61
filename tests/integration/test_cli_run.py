"""``ako run`` with real processes."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ako_jobs.datasets import load
from dataflow.cli.main import main
from dataflow.clock import SystemClock

EXAMPLES = Path(__file__).parents[2] / "examples"

FAILING = """\
from ako_jobs import ako
from dataflow import Emissions, In, Operator, Out
from operators.messages import Batch

Config = ako.Config


class Fails(Operator):
    batches = In(Batch)
    never = Out(Batch)

    def process(self, batch: Batch) -> Emissions:
        numbers = [1, 2]
        yield self.never(batch.with_images(numbers[2]))


def build(config):
    return ako.build(config).insert_after("source", Fails())
"""


def ako(scratch: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dataflow.cli.main", *arguments]
    # A cluster that was not taken down in order leaves its directory.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def descendants(root: int) -> set[int]:
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
    found, before = {root}, set[int]()
    while found != before:
        before = found
        found = before | {child for child, parent in parents.items() if parent in before}
    return found - {root}


def alive(processes: set[int]) -> set[int]:
    return {number for number in processes if Path(f"/proc/{number}").exists()}


def read_until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if text in line:
            return
    raise AssertionError(seen)


def test_run_keeps_model_record_and_curves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, record_file = tmp_path / "out", tmp_path / "record.json"
    arguments = ["ako", "epochs=2", "p=2", "seed=3", "--nodes", "2", "--out", str(out), "--json", str(record_file)]
    assert main(["run", *arguments]) == 0
    said = capsys.readouterr()
    assert re.match(r"FINISHED after [\d.]+ s, stopped by epochs; test accuracy [\d.]+% at epoch 2.00; ", said.out)
    assert "effective learning rate: 2 workers x lr 0.02 = 0.04 per round" in said.err
    assert {path.name for path in out.iterdir()} == {
        "config.json",
        "curves.csv",
        "job.log",
        "model.safetensors",
        "record.json",
    }
    record: dict[str, Any] = json.loads(record_file.read_text())
    assert record == json.loads((out / "record.json").read_text())
    assert (record["state"], record["stopped_by"], record["seed"]) == ("FINISHED", "epochs", 3)
    assert (record["config"]["p"], record["config"]["epochs"]) == (2, 2.0)
    assert record["warnings"] == ["effective learning rate: 2 workers x lr 0.02 = 0.04 per round (updates add up)"]
    reports = [report for report in record["reports"] if report["port"] == "validate.results"]
    assert all({"time_s", "epoch", "accuracy", "loss"} <= report.keys() for report in reports)
    # The other node validates as well after two epochs, and may be heard after the one whose model is kept.
    (kept,) = [report for report in reports if report["final"]]
    assert (kept["node"], kept["epoch"]) == (0, 2.0)
    assert f"test accuracy {kept['accuracy']:.2%} at epoch 2.00" in said.out
    assert record["totals"]["gradients"] == 2 * 2 * 82  # epochs x nodes x mini-batches of 16 of 649 images
    assert {(link["source"], link["target"]) for link in record["links"]} == {(0, 1), (1, 0)}
    assert all(link["sent_nbytes"] == link["received_nbytes"] > 0 for link in record["links"])
    assert [{"computing_s", "waiting_s", "sending_s"} <= node.keys() for node in record["nodes"]] == [True, True]

    rows = list(csv.DictReader((out / "curves.csv").read_text().splitlines()))
    measured = [row for row in rows if row["port"] == "validate.results"]
    assert [float(row["accuracy"]) for row in measured] == [report["accuracy"] for report in reports]

    assert main(["predict", str(out), "--json"]) == 0
    tested = json.loads(capsys.readouterr().out)
    assert tested["images"] == 355
    assert tested["accuracy"] == kept["accuracy"]
    np.save(tmp_path / "images.npy", load("digits").test_images)
    assert main(["predict", str(out), "--images", str(tmp_path / "images.npy"), "--json"]) == 0
    classes = json.loads(capsys.readouterr().out)
    assert sum(np.array(classes) == load("digits").test_labels) == tested["right"]


def test_run_own_operator_runs_on_all_nodes_whatever_files_the_current_folder_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("logging", "numpy", "grpc", "operators"):
        (tmp_path / f"{module}.py").write_text("raise AssertionError('this is no module of theirs')")
    monkeypatch.chdir(tmp_path)
    arguments = [str(EXAMPLES / "blur_job.py"), "radius=2", "epochs=1", "--nodes", "2", "--json", "-"]
    assert main(["run", *arguments]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["config"]["radius"] == 2
    assert [node["steps"] for node in record["nodes"]] == [82, 82]


def test_run_own_post_processing_writes_its_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["run", str(EXAMPLES / "confusion_job.py"), "epochs=1", "--nodes", "2", "--out", str(out)]) == 0
    matrix = np.loadtxt(out / "confusion.csv", delimiter=",", dtype=int)
    labels = load("digits").test_labels
    np.testing.assert_array_equal(matrix.sum(axis=1), np.bincount(labels))
    record = json.loads((out / "record.json").read_text())
    last = [report for report in record["reports"] if report["port"] == "validate.results"][-1]
    assert np.trace(matrix) / len(labels) == last["accuracy"]


def test_run_operator_that_raises_fails_the_job_with_the_users_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "failing_job.py").write_text(FAILING)
    assert main(["run", str(tmp_path / "failing_job.py"), "--nodes", "2", "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().err.splitlines()
    errors = [line for line in told if line.startswith("error: ")]
    assert len(errors) == 1
    assert "operator 'fails' raised IndexError: list index out of range" in errors[0]
    assert "failing_job.py:14" in errors[0]
    assert "IndexError" in (tmp_path / "out" / "job.log").read_text()
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    assert record["state"] == "FAILED"
    assert "IndexError: list index out of range" in record["last_lines"]
    first = told.index("the last that the node printed:") + 1
    assert told[first : first + len(record["last_lines"])] == record["last_lines"]


def test_run_interrupted_keeps_what_it_made_and_leaves_no_process(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = ako(tmp_path, "run", "ako", "epochs=100000", "--nodes", "2", "--out", str(out))
    read_until(process, "epoch 1.")
    started = descendants(process.pid)
    # What forks the others, the master, two agents, what each forks its job process from, and these.
    assert len(started) == 8
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    assert alive(started) == set()
    record = json.loads((out / "record.json").read_text())
    assert (record["state"], record["stopped_by"]) == ("CANCELLED", "cancel")
    assert (out / "model.safetensors").exists()


def test_run_interrupted_twice_ends_at_once_and_leaves_no_process(tmp_path: Path) -> None:
    process = ako(tmp_path, "run", "ako", "epochs=100000", "--nodes", "2")
    read_until(process, "epoch 1.")
    started = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    read_until(process, "CANCELLING")
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    assert alive(started) == set()
    assert list(tmp_path.glob("ako-cluster-*")) == []


def test_run_told_to_end_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    process = ako(tmp_path, "run", "ako", "epochs=100000", "max_nodes=3", "--nodes", "2")
    read_until(process, "max_nodes=3: nobody joins, as there are 2 nodes")
    read_until(process, "epoch 1.")
    started = descendants(process.pid)
    assert len(list(tmp_path.glob("ako-cluster-*"))) == 1
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 143
    assert alive(started) == set()
    assert list(tmp_path.glob("ako-cluster-*")) == []


def test_simulated_run_told_to_end_is_no_failure_of_what_it_was_doing(tmp_path: Path) -> None:
    process = ako(tmp_path, "run", "ako", "epochs=100000", "--nodes", "2", "--sim")
    read_until(process, "epoch 1.")
    process.send_signal(signal.SIGTERM)
    said = process.communicate()
    assert process.returncode == 143
    assert "SystemExit" not in "".join(filter(None, said))


def test_run_killed_leaves_no_process(tmp_path: Path) -> None:
    process = ako(tmp_path, "run", "ako", "epochs=100000", "--nodes", "2")
    read_until(process, "epoch 1.")
    started = descendants(process.pid)
    process.kill()
    process.communicate()
    clock = SystemClock()
    deadline = clock.now() + 30
    while alive(started) and clock.now() < deadline:
        clock.sleep(0.02)
    assert alive(started) == set()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_run_whose_record_cannot_be_written_in_the_end_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "ako", "epochs=0.1", "warm_start=0", "--nodes", "1", "--sim", "--step-time", "5ms"]
    assert main([*words, "--json", "/dev/full"]) == 1
    assert "the run has ended, but its record cannot be written" in capsys.readouterr().err


def test_run_in_which_an_operator_drops_all_mini_batches_says_that_nothing_was_learnt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = """
from ako_jobs import ako
from dataflow import Emissions, In, LogicalGraph, Operator, Out
from operators.messages import Batch


class Drop(Operator):
    batches = In(Batch)
    kept = Out(Batch)

    def process(self, batch: Batch) -> Emissions:
        yield from ()


def build(config: ako.Config) -> LogicalGraph:
    return ako.build(config).insert_after("source", Drop())
"""
    (tmp_path / "drop_job.py").write_text(job)
    words = ["epochs=0.1", "warm_start=0", "--nodes", "1", "--sim", "--step-time", "5ms"]
    assert main(["run", str(tmp_path / "drop_job.py"), *words]) == 0
    assert "no gradient was made" in capsys.readouterr().err
    assert main(["run", "ako", *words]) == 0
    assert "no gradient was made" not in capsys.readouterr().err
