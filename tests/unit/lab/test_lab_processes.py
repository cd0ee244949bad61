"""Killed processes of a lab are gone, with all that they held, before anything goes on."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from dataflow.clock import SystemClock
from dataflow.lab import processes

# Much memory, which takes a while to be given back, and all of it before the files are closed.
HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
memory = bytearray(b"1") * 200_000_000
print("held", flush=True)
time.sleep(60)
"""


def test_lock_of_a_killed_process_is_free_though_its_namespace_lists_it_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        listed = iter([(process.pid,), ()])
        monkeypatch.setattr(processes, "processes", lambda _namespace: next(listed))
        assert processes.kill_all(["any"], SystemClock()) == 1
        with lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_process_that_has_ended_meanwhile_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    listed = iter([(process.pid,), ()])
    monkeypatch.setattr(processes, "processes", lambda _namespace: next(listed))
    assert processes.kill_all(["any"], SystemClock()) == 1
