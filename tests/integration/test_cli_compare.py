"""``ako compare`` with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = (
    "compare",
    "ako p=1 every=1",
    "all_to_all",
    "epochs=1",
    "warm_start=0",
    "--nodes",
    "2",
    "--seeds",
    "1",
    "--out",
    "out",
)


def ako(scratch: Path) -> subprocess.Popen[str]:
    # A cluster that was not taken down in order leaves its directory.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    command = [sys.executable, "-m", "dataflow.cli.main", *COMMAND]
    return subprocess.Popen(
        command, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.timeout(240)
def test_compare_on_real_nodes_interrupted_keeps_what_finished_and_goes_on(tmp_path: Path) -> None:
    process = ako(tmp_path)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("1/2"):
            break
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=100)
    assert process.returncode == 130, errors
    assert "missing: 1 of 2 runs; the same command goes on with them" in errors
    assert "ako p=1 every=1" in out
    kept = (tmp_path / "out" / "runs" / "01-ako-p-1-every-1" / "seed-0" / "record.json").read_bytes()
    assert json.loads((tmp_path / "out" / "table.json").read_text())["missing"] == 1

    process = ako(tmp_path)
    out, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert "1/2  ako p=1 every=1, seed 0: " in errors
    assert (tmp_path / "out" / "runs" / "01-ako-p-1-every-1" / "seed-0" / "record.json").read_bytes() == kept
    first, second = json.loads((tmp_path / "out" / "table.json").read_text())["rows"]
    assert (first["finished"], second["finished"]) == (1, 1)
    # Both send every update whole to the one other worker.
    assert second["sent_nbytes"] == pytest.approx(first["sent_nbytes"], rel=0.02)
    assert 0 < first["computing"] < 1
