"""``ako master``, ``ako node`` and the verbs that talk to them, as in two terminals."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ako_jobs.run import run
from dataflow.cli.main import main
from dataflow.clock import SystemClock
from dataflow.engine.job_life import JobState

ENDLESS = "epochs=100000"


def start(state_dir: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dataflow.cli.main", *arguments]
    environment = {**os.environ, "AKO_STATE_DIR": str(state_dir)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


pytestmark = pytest.mark.xdist_group(__name__)  # these tests share a cluster


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("state")
    master = start(folder, "master", "--port", "0")
    assert first_line(master).startswith("master listens on 127.0.0.1:")
    nodes = [start(folder, "node", "--name", name, "--tasks", "1") for name in ("left", "right")]
    for node in nodes:
        assert "is attached" in first_line(node)
    yield folder
    for process in (*nodes, master):
        process.terminate()
        process.communicate()
    assert [process.returncode for process in (*nodes, master)] == [0, 0, 0]


@pytest.fixture(autouse=True)
def as_user(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AKO_STATE_DIR", str(state_dir))
    monkeypatch.delenv("AKO_TOKEN", raising=False)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main(arguments) == 0
    return json.loads(capsys.readouterr().out)


def wait_for(capsys: pytest.CaptureFixture[str], job: str, *states: str) -> dict[str, Any]:
    while True:
        status: dict[str, Any] = said(capsys, "status", job, "--json")
        if status["state"] in states:
            return status
        assert not status["ended"], status
        SystemClock().sleep(0.1)


def test_status_lists_the_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = said(capsys, "status", "--json")
    assert {(node["name"], node["tasks"], node["job"]) for node in nodes} == {("left", 1, ""), ("right", 1, "")}
    assert main(["status"]) == 0
    assert "left" in capsys.readouterr().out


def test_job_from_submit_to_cancel(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "ako", ENDLESS, "--nodes", "2"]) == 0
    job = capsys.readouterr().out.strip()
    status = wait_for(capsys, job[:8], "RUNNING")
    assert (status["id"], status["name"], status["nodes"]) == (job, "ako", 2)
    assert main(["status", job]) == 0
    assert f"{job} ako: RUNNING" in capsys.readouterr().out
    assert [each["id"] for each in said(capsys, "ls", "--json") if not each["ended"]] == [job]

    assert main(["cancel", job]) == 0
    assert main(["logs", "-f", job]) == 0  # returns when the job has ended
    assert wait_for(capsys, job, "CANCELLED")["stopped_by"] == "cancel"
    assert main(["ls"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(job))
    assert "CANCELLED" in line


def test_resume_goes_on_from_the_newest_checkpoint_of_a_job_that_was_cancelled(
    state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("checkpoint_every=256", "model=mlp", "batch=8")
    job = said(capsys, "submit", "ako", ENDLESS, *settings, "--nodes", "2", "--json")["job"]
    wait_for(capsys, job, "RUNNING")
    assert main(["resume", job]) == 2
    assert f"goes on by itself (got {job}); end it first: ako cancel {job}" in capsys.readouterr().err.replace(
        "at ", ""
    )
    folder = state_dir / "checkpoints" / job
    while len(list(folder.glob("*/manifest.json"))) < 2:
        SystemClock().sleep(0.05)
    assert main(["cancel", job]) == 0
    wait_for(capsys, job, "CANCELLED")
    newest = max(int(path.parent.name) for path in folder.glob("*/manifest.json"))
    again = said(capsys, "resume", job[:6], "--nodes", "1", "lr=0.01", "--json")
    assert (again["resumed"], again["checkpoint"], again["nodes"], again["name"]) == (job, newest, 1, "ako")
    wait_for(capsys, again["job"], "RUNNING")
    assert main(["cancel", again["job"]]) == 0
    wait_for(capsys, again["job"], "CANCELLED")
    assert main(["resume", job, "--from", "3"]) == 2
    assert "there is no checkpoint 3 at " in capsys.readouterr().err


def test_job_that_wants_more_nodes_than_there_are_waits_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    job = said(capsys, "submit", "ako", "--nodes", "3", "--json")["job"]
    reason = "needs 3 nodes, 2 attached"  # and how many are still busy with the job before
    assert wait_for(capsys, job, "PENDING")["reason"].startswith(reason)
    assert main(["status", job]) == 0
    assert reason in capsys.readouterr().out
    assert said(capsys, "cancel", job, "--json") == {"job": job, "state": "CANCELLED"}


def test_run_at_the_master_follows_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    endpoint = (Path(os.environ["AKO_STATE_DIR"]) / "endpoint").read_text().strip()
    record = said(capsys, "run", "ako", "epochs=1", "--nodes", "2", "--master", endpoint, "--json", "-")
    assert record["state"] == "FINISHED"
    assert {node["name"] for node in record["nodes"]} == {"left", "right"}


def test_run_at_the_master_names_the_job_and_where_its_log_is(capsys: pytest.CaptureFixture[str]) -> None:
    endpoint = (Path(os.environ["AKO_STATE_DIR"]) / "endpoint").read_text().strip()
    assert main(["run", "ako", "lr=1e9", "--nodes", "1", "--master", endpoint]) == 1
    told = capsys.readouterr().err
    job = said(capsys, "ls", "--json")[-1]["id"]
    assert f"  SUBMITTED as {job}\n" in told
    assert told.endswith(f"; see `ako logs {job} --master {endpoint}`\n")


def test_run_from_python_calls_back_and_returns_what_came_out(state_dir: Path) -> None:
    states = []
    endpoint = (state_dir / "endpoint").read_text().strip()
    result = run(
        "all_to_all", {"epochs": 1}, nodes=2, master=endpoint, on_event=lambda event: states.append(event.state)
    )
    assert [state for state in states if state][-3:] == ["DEPLOYING", "RUNNING", "FINISHED"]
    assert (result.state, result.stopped_by, result.interrupted) == (JobState.FINISHED, "epochs", False)
    assert "model.safetensors" in result.artifacts
    assert result.reports[-1]["accuracy"] > 0.2


def test_job_that_fails_leaves_others_untouched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = said(capsys, "submit", "ako", ENDLESS, "--nodes", "1", "--json")["job"]
    wait_for(capsys, good, "RUNNING")
    bad = said(capsys, "submit", "ako", "lr=1e9", "--nodes", "1", "--json")["job"]
    reason = wait_for(capsys, bad, "FAILED")["reason"]
    assert re.search(r"at step \d+ and .*: training diverges.* at node (left|right), operator compute", reason)
    assert wait_for(capsys, good, "RUNNING")["reason"] == ""
    assert main(["cancel", good]) == 0
    wait_for(capsys, good, "CANCELLED")


def test_unknown_job_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("status", "logs", "cancel"):
        assert main([verb, "nonsense"]) == 2
        assert capsys.readouterr().err.startswith("error: ")


def test_token_is_that_of_the_master_and_a_wrong_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    token = said(capsys, "token", "--json")["token"]
    monkeypatch.setenv("AKO_TOKEN", token)
    assert main(["ls"]) == 0
    monkeypatch.setenv("AKO_TOKEN", "wrong")
    capsys.readouterr()
    assert main(["ls"]) == 2
    assert "the master refuses this token" in capsys.readouterr().err


def test_second_master_on_the_same_directory_is_refused(state_dir: Path) -> None:
    second = start(state_dir, "master", "--port", "0")
    output, _ = second.communicate()
    assert second.returncode == 2
    assert output.startswith("error: another master runs on this state directory")
    assert output.count("\n") == 1


def test_second_master_on_the_same_port_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        second = start(tmp_path, "master", "--port", str(taken.getsockname()[1]))
        output, _ = second.communicate()
    assert second.returncode == 2
    assert output.startswith("error: cannot listen on this address; another program may have the port")
    assert output.count("\n") == 1


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_master_on_an_address_that_is_not_of_this_machine_says_so(tmp_path: Path, host: str) -> None:
    master = start(tmp_path, "master", "--host", host, "--insecure", "--port", "0")
    output, _ = master.communicate()
    assert master.returncode == 2
    assert output.startswith("error: cannot listen on this address: ")
    assert output.endswith(f" at {host}:0; check --host and --port\n")
    assert output.count("\n") == 1


def test_master_on_a_public_address_is_refused(tmp_path: Path) -> None:
    master = start(tmp_path, "master", "--host", "0.0.0.0", "--port", "0")
    output, _ = master.communicate()
    assert master.returncode == 2
    assert "--insecure" in output


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_cluster_on_addresses_of_version_6_runs_a_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AKO_STATE_DIR", str(tmp_path))
    master = start(tmp_path, "master", "--host", "[::1]", "--port", "0")
    line = first_line(master)
    address = line.split(",")[0].removeprefix("master listens on ")
    assert address.startswith("[::1]:"), line
    names = {"left": "::1", "right": "[::1]"}
    nodes = [start(tmp_path, "node", "--host", host, "--name", name, "--tasks", "1") for name, host in names.items()]
    for node in nodes:
        assert "is attached" in first_line(node)
    assert main(["run", "ako", "--nodes", "2", "--master", address, "epochs=1"]) == 0
    assert "FINISHED" in capsys.readouterr().out
    for process in (*nodes, master):
        process.terminate()
        process.communicate()
    assert [process.returncode for process in (*nodes, master)] == [0, 0, 0]


def test_second_node_of_the_same_name_is_refused(state_dir: Path) -> None:
    second = start(state_dir, "node", "--name", "left")
    output, _ = second.communicate()
    assert second.returncode == 2
    assert "a node of this name is attached already" in output
