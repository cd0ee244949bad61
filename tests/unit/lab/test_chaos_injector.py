"""When faults are done that wait for something, on threads of their own; nothing is killed."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dataflow.lab import chaos_injector
from dataflow.lab.chaos import Fault, Kind, Since
from dataflow.lab.chaos_injector import Injector
from dataflow.lab.plan import Host, LabPlan, Station

PLAN = LabPlan(name="ako-lab-0", hosts=(Host(rate=1e6),) * 2)
PATIENCE_S = 10.0


class Machine:
    """What an injector sees of its lab: the job processes of host 1, and what it has signalled."""

    def __init__(self, state_dir: Path) -> None:
        self.cluster: Any = SimpleNamespace(state_dir=state_dir)
        self.there: list[int] = []
        self.killed: list[int] = []
        self.looked = threading.Semaphore(0)
        self.struck = threading.Semaphore(0)

    def job_processes(self, station: Station) -> list[int]:
        assert station.name == "1"
        found = list(self.there)
        self.looked.release()
        return found

    def kill(self, process: int, number: int) -> None:
        assert number == signal.SIGKILL
        self.killed.append(process)
        self.struck.release()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(chaos_injector, "job_processes", made.job_processes)
    monkeypatch.setattr(os, "kill", made.kill)
    monkeypatch.setattr(chaos_injector, "_POLL_S", 0.001)
    return made


def killing(at_s: float, since: Since) -> Fault:
    return Fault(at_s, Kind.KILL, 0.0, 1, since=since)


def test_kill_of_a_process_comes_before_the_job_runs_and_the_next_when_there_is_another(machine: Machine) -> None:
    faults = [killing(0.0, Since.PROCESS), killing(0.0, Since.PROCESS)]
    with Injector(PLAN, machine.cluster, faults) as injector:
        assert machine.looked.acquire(timeout=PATIENCE_S)
        assert machine.killed == []
        machine.there = [7]
        assert machine.struck.acquire(timeout=PATIENCE_S)
        for _ in range(5):  # the one that was struck is still there
            assert machine.looked.acquire(timeout=PATIENCE_S)
        assert machine.killed == [7]
        machine.there = [8]
        assert machine.struck.acquire(timeout=PATIENCE_S)
    assert machine.killed == [7, 8]
    assert [each.hit for each in injector.injected] == [True, True]


def test_kill_at_a_checkpoint_waits_for_the_next_that_is_begun(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "job" / "000000001").mkdir(parents=True)
    machine.there = [7]
    with Injector(PLAN, machine.cluster, [killing(0.0, Since.CHECKPOINT)]) as injector:
        injector.begin()
        assert machine.looked.acquire(timeout=PATIENCE_S)
        assert machine.killed == []
        while not machine.killed:  # one that is made before the folder has been looked at does not count
            number = len(list((tmp_path / "checkpoints" / "job").iterdir())) + 1
            (tmp_path / "checkpoints" / "job" / f"{number:09}").mkdir()
            machine.struck.acquire(timeout=0.05)
    assert machine.killed == [7]
    assert len(injector.injected) == 1


@pytest.mark.parametrize("since", tuple(Since))
def test_fault_whose_moment_does_not_come_is_not_done(machine: Machine, since: Since) -> None:
    with Injector(PLAN, machine.cluster, [killing(0.0, since)]) as injector:
        pass
    assert (machine.killed, injector.injected) == ([], ())
