"""Labs for tests: made where this machine can make them, removed whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dataflow.cli.common import plain
from dataflow.cli.main import main
from dataflow.errors import LabError
from dataflow.lab.commands import fit, require_tools
from dataflow.lab.lab import find, status
from dataflow.lab.plan import Host, LabPlan, lab_name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker of pytest-xdist runs all tests of this folder: labs share the machine's network and its cores."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.xdist_group("lab"))


class Lab:
    """The lab of a test: runs `ako lab`, here or as a process of its own."""

    def __init__(self, state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.name, self._state_dir = lab_name(state_dir), state_dir
        self._capsys = capsys
        self._started: list[subprocess.Popen[str]] = []

    def __call__(self, *words: str, status: int = 0) -> str:
        """Run a verb in this process; what it prints."""
        self._capsys.readouterr()
        ended = main(["lab", *words])
        said = self._capsys.readouterr()
        assert ended == status, said.err
        return said.out + said.err

    def stations(self) -> dict[str, dict[str, Any]]:
        """Every station as `ako lab status --json` shows it."""
        return {each.name: plain(each) for each in status(find(self._state_dir))}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Run a verb as a process of its own."""
        return self._start(sys.executable, "-m", "dataflow.cli.main", "lab", *words)

    def python(self, host: int, program: str, *arguments: object) -> subprocess.Popen[str]:
        """Run a Python program on a host, without its share of the CPU."""
        where = ("ip", "netns", "exec", f"{self.name}-{host}")
        return self._start(*where, sys.executable, "-c", program, *map(str, arguments))

    def close(self) -> None:
        """End what a test that fails has left behind."""
        for process in self._started:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    def _start(self, *command: str) -> subprocess.Popen[str]:
        """Start a program whose output is read."""
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._started.append(process)
        return process


def read_until(lines: Any, text: str) -> None:
    seen = []
    for line in lines:
        seen.append(line)
        if text in line:
            return
    pytest.fail("".join(seen))


def namespaces() -> set[str]:
    return {line.split()[0] for line in subprocess.check_output(["ip", "netns", "list"], text=True).splitlines()}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    """A lab to be made by the test; all of it is gone afterwards."""
    try:
        require_tools()
        fit(LabPlan(name="ako-lab-0", hosts=(Host(rate=1e6),)))
    except LabError as error:
        pytest.skip(error.what)
    monkeypatch.setenv("AKO_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    made = Lab(tmp_path / "state", capsys)
    try:
        yield made
    finally:
        made("down", "--force")
        made.close()
    assert not [name for name in namespaces() if name.startswith(made.name)]
    assert list(Path("/sys/fs/cgroup").glob(f"**/{made.name}")) == []
