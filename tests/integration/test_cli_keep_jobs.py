"""A master that is told on the command line how many jobs to keep."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dataflow.cli.main import main
from dataflow.runtime.bundle import Bundle
from dataflow.runtime.store import Store, StoredJob
from dataflow.transport.generated import control_pb2 as pb


def test_master_that_is_started_with_fewer_jobs_to_keep_removes_those_that_ended_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AKO_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("AKO_TOKEN", raising=False)
    store = Store(tmp_path)
    for number in range(3):
        status = pb.JobStatus(job=f"job{number}", state="FINISHED", ended_s=1000.0 - number)
        store.add_job(f"operation {number}", StoredJob(status.job, b"{}", Bundle("", b""), status))
    store.close()
    command = [sys.executable, "-m", "dataflow.cli.main", "master", "--port", "0", "--keep-jobs", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as master:
        try:
            assert master.stdout is not None
            assert "master listens" in master.stdout.readline()
            assert main(["ls", "--json"]) == 0
        finally:
            master.terminate()
    assert [job["id"] for job in json.loads(capsys.readouterr().out)] == ["job0", "job1"]
