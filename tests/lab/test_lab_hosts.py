"""Hosts of a lab: their processes, their share of the CPU, and what is left when somebody is killed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dataflow.clock import SystemClock
from dataflow.lab.cores import find_cpu_control
from dataflow.lab.plan import make_commands
from dataflow.lab.state import LabState, read_state, write_state
from tests.lab.conftest import Lab, namespaces

COUNT = """
import time
print("counting", flush=True)
while True:
    time.sleep(0.01)
    print(".", flush=True)
"""

BURN = """
import time
began, before = time.monotonic(), time.process_time()
while time.monotonic() < began + 1.0:
    pass
print((time.process_time() - before) / (time.monotonic() - began))
"""


def test_exec_gives_the_commands_output_and_exit_code(lab: Lab) -> None:
    lab("up", "2")
    process = lab.start("exec", "1", "--", "sh", "-c", "ip -4 -brief address show; exit 7")
    output, _ = process.communicate()
    assert process.returncode == 7
    assert "198.18.0.2/16" in output
    assert "lo" in output
    assert "198.18.0.1/" not in output


@pytest.mark.parametrize("station", ["0", "switch"])
@pytest.mark.parametrize("words", [("down",), ("down", "--force"), ("up", "2")])
def test_lab_is_not_ended_from_inside_of_it(lab: Lab, station: str, words: tuple[str, ...]) -> None:
    """Whoever asked would be ended with it, when half of it was gone."""
    lab("up", "1")
    process = lab.start("exec", station, "--", sys.executable, "-m", "dataflow.cli.main", "lab", *words)
    _, said = process.communicate()
    assert process.returncode == 2
    assert f"this is inside of the lab (got {lab.name}-{station})" in said
    assert set(lab.stations()) == {"0", "switch"}


def test_exec_within_a_share_of_the_cpu_computes_no_more(lab: Lab) -> None:
    if find_cpu_control() is None:
        pytest.skip("this machine has no control groups that limit the CPU")
    lab("up", "2", "--cpus", "0.25,1")
    used, _ = lab.start("exec", "0", "--", sys.executable, "-c", BURN).communicate()
    # A quarter of a core, and what it may overdraw in one period of 20 ms.
    assert 0 < float(used) <= 0.25 + 0.05


def test_pause_stops_the_processes_of_a_host_and_lets_them_go_on(lab: Lab) -> None:
    lab("up", "2")
    counter = lab.python(1, COUNT)
    assert counter.stdout is not None
    assert counter.stdout.readline() == "counting\n"
    (running,) = lab.stations()["1"]["processes"]
    assert running["pid"] == counter.pid
    pausing = lab.start("fault", "pause", "1", "60")
    until_state(counter.pid, "T")
    pausing.send_signal(signal.SIGINT)
    pausing.communicate()
    assert pausing.returncode == 130
    assert state(counter.pid) != "T"
    lab("fault", "kill", "1")
    counter.communicate()
    assert counter.returncode == -signal.SIGKILL
    assert lab.stations()["1"]["processes"] == []
    assert "nothing runs on host 1" in lab("fault", "kill", "1")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_pause_that_is_told_to_end_lets_the_processes_go_on(lab: Lab, number: signal.Signals, status: int) -> None:
    lab("up", "2")
    counter = lab.python(1, COUNT)
    assert counter.stdout is not None
    counter.stdout.readline()
    pausing = lab.start("fault", "pause", "1", "60")
    until_state(counter.pid, "T")
    pausing.send_signal(number)
    pausing.communicate()
    assert pausing.returncode == status
    assert state(counter.pid) != "T"
    lab("fault", "kill", "1")
    counter.communicate()


def test_pause_of_a_host_without_processes_says_so_and_does_not_wait(lab: Lab) -> None:
    lab("up", "2")
    # Were it to wait, it would for a day.
    assert "nothing runs on host 0" in lab("fault", "pause", "0", "86400")


def test_up_replaces_a_lab_and_its_processes_and_nothing_else(lab: Lab, stranger: str) -> None:
    lab("up", "3")
    counter = lab.python(2, COUNT)
    assert counter.stdout is not None
    counter.stdout.readline()
    assert "removed what was there: 4 namespaces, 1 processes" in lab("up", "1")
    counter.communicate()
    assert counter.returncode == -signal.SIGKILL
    assert {name for name in namespaces() if name.startswith(lab.name)} == {
        f"{lab.name}-0",
        f"{lab.name}-switch",
        stranger,
    }


def test_up_after_one_that_was_killed_half_way_removes_what_it_made(lab: Lab, stranger: str, tmp_path: Path) -> None:
    lab("up", "2")
    made = read_state(tmp_path / "state")
    assert made is not None
    lab("down")
    commands = make_commands(made.plan)
    for command in commands[: len(commands) // 2]:
        subprocess.run(command, check=True)
    write_state(tmp_path / "state", made.model_copy(update={"complete": False}))
    assert "the lab is not whole" in lab("status", status=2)
    assert "removed what was there: 2 namespaces, 0 processes" in lab("up", "2")
    assert set(lab.stations()) == {"0", "1", "switch"}
    assert stranger in namespaces()


def test_lab_that_lost_a_host_is_not_whole(lab: Lab) -> None:
    lab("up", "2")
    subprocess.run(["ip", "netns", "delete", f"{lab.name}-1"], check=True)
    assert "the lab is not whole" in lab("status", status=2)


def test_down_removes_everything_and_again_does_nothing(lab: Lab) -> None:
    lab("up", "2", "--cpu", "0.5") if find_cpu_control() else lab("up", "2")
    assert "removed 3 namespaces and ended 0 processes" in lab("down")
    assert "removed 0 namespaces and ended 0 processes" in lab("down")
    assert "no lab is up" in lab("status", status=2)


def test_up_that_cannot_note_that_the_lab_is_whole_leaves_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataflow.lab.lab.write_state", full_disk(once_complete=True))
    assert "No space left on device" in lab("up", "2", status=1)
    assert not [name for name in namespaces() if name.startswith(lab.name)]
    assert "no lab is up" in lab("status", status=2)


def test_down_removes_everything_though_the_disk_is_full(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab("up", "2")
    monkeypatch.setattr("dataflow.lab.lab.write_state", full_disk(once_complete=False))
    assert "removed 3 namespaces and ended 0 processes" in lab("down")
    assert "no lab is up" in lab("status", status=2)


def full_disk(*, once_complete: bool) -> Callable[[Path, LabState], None]:
    """A `write_state` that fails, or does once the lab is complete."""

    def write(state_dir: Path, state: LabState) -> None:
        if state.complete or not once_complete:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(state_dir / "lab.json"))
        write_state(state_dir, state)

    return write


@pytest.fixture
def stranger(lab: Lab) -> Iterator[str]:
    """A namespace of somebody else, whose name looks like one of the lab's."""
    name = f"{lab.name}-0-mine"
    subprocess.run(["ip", "netns", "add", name], check=True)
    yield name
    subprocess.run(["ip", "netns", "delete", name], check=True)


def state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def until_state(process: int, letter: str) -> None:
    clock = SystemClock()
    deadline_s = clock.now() + 30
    while state(process) != letter:
        assert clock.now() < deadline_s
        clock.sleep(0.02)
