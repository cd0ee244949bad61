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
        return start(sys.executable, "-m", "dataflow.cli.main", "lab", *words)

    def python(self, host: int, program: str, *arguments: object) -> subprocess.Popen[str]:
        """Run a Python program on a host, without its share of the CPU."""
        return start("ip", "netns", "exec", f"{self.name}-{host}", sys.executable, "-c", program, *map(str, arguments))


def start(*command: str) -> subprocess.Popen[str]:
    """Start a program whose output is read."""
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


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
    assert not [name for name in namespaces() if name.startswith(made.name)]
    assert list(Path("/sys/fs/cgroup").glob(f"**/{made.name}")) == []
