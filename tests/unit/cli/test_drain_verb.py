"""When ``ako node drain`` ends, and how."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from dataflow.cli import node as verb
from dataflow.cli.main import main
from dataflow.engine.draining import DRAINED
from dataflow.engine.job_life import JobState
from dataflow.observe.events import JobEvent, NodeChange
from dataflow.runtime.replies import JobStatus, NodeStatus

JOB = JobStatus("3f2a", "ako", JobState.RUNNING, "", "", 2, 0.0, node_names=("stays", "leaves"))


def change(node: int, life: str, incarnation: int, reason: str) -> NodeChange:
    return NodeChange(node, life, incarnation, reason, 0.0)


class Master:
    """Stands for a master whose agents have yet to attach again: no node is attached."""

    def __init__(self, job: JobStatus, changes: list[NodeChange]) -> None:
        self.known, self.changes, self.asked = job, changes, list[str]()
        self.then = job

    def jobs(self) -> list[JobStatus]:
        return [self.known]

    def job_status(self, state: JobState, reason: str = "") -> None:
        """Have the job be in a state once its events are over."""
        self.then = dataclasses.replace(self.known, state=state, reason=reason)

    def job(self, job: str) -> JobStatus:
        assert job == self.known.id
        return self.then

    def nodes(self) -> list[NodeStatus]:
        return []

    def drain(self, name: str) -> None:
        self.asked.append(name)

    def watch(self, job: str) -> Iterator[JobEvent]:
        assert job == self.known.id
        yield JobEvent(0, 0.0, 0.0, state=JobState.PENDING)
        while self.changes:
            yield JobEvent(0, 0.0, 0.0, change=self.changes.pop(0))


def drain(master: Master, monkeypatch: pytest.MonkeyPatch) -> int:
    @contextlib.contextmanager
    def connect(*_: Any) -> Iterator[Master]:
        yield master

    monkeypatch.setattr(verb, "connect", connect)
    code = main(["node", "drain", "leaves"])
    assert master.asked == ["leaves"]
    return code


def test_it_ends_when_the_job_says_that_the_node_has_left_and_not_when_it_is_not_attached(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    later = change(1, "joining", 1, "another has come in the place of leaves")
    master = Master(JOB, [change(0, "left", 0, DRAINED), change(1, "left", 0, DRAINED), later])
    assert drain(master, monkeypatch) == 0
    assert master.changes == [later]
    assert "it may be switched off" in capsys.readouterr().out


def test_node_that_dies_while_it_leaves_is_told_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert drain(Master(JOB, [change(1, "left", 0, "its job process ended by SIGKILL")]), monkeypatch) == 1
    told = capsys.readouterr()
    assert "switched off" not in told.out
    assert "node leaves died before it had left job 3f2a; what it had begun may be lost" in told.err


def test_it_ends_when_the_job_is_over(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    master = Master(JOB, [])
    master.job_status(JobState.FINISHED)
    assert drain(master, monkeypatch) == 0
    told = capsys.readouterr().out
    assert "job 3f2a is FINISHED, before node leaves had left it" in told
    assert "has left job" not in told


def test_job_that_fails_meanwhile_is_told_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    master = Master(JOB, [])
    master.job_status(JobState.FAILED, "nobody is left")
    assert drain(master, monkeypatch) == 1
    told = capsys.readouterr()
    assert "switched off" not in told.out
    assert "job 3f2a failed before node leaves had left it, which gets no more jobs (got nobody is left)" in told.err


def test_what_became_of_earlier_processes_of_the_place_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = change(1, "alive", 1, "")
    job = JobStatus("3f2a", "ako", JobState.RUNNING, "", "", 2, 0.0, node_names=("stays", "leaves"), changes=(now,))
    master = Master(job, [change(1, "gone", 0, "it crashed"), now, change(1, "left", 1, DRAINED)])
    assert drain(master, monkeypatch) == 0
    assert master.changes == []


def test_it_does_not_wait_for_a_job_that_waits_for_nodes_as_all_of_it_have_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master = Master(dataclasses.replace(JOB, state=JobState.PENDING, changes=(change(1, "dying", 0, "it hung"),)), [])
    monkeypatch.setattr(master, "watch", None)
    assert drain(master, monkeypatch) == 0


@pytest.mark.parametrize("then", [JobState.PENDING, JobState.DEPLOYING])
def test_node_that_dies_with_all_others_while_it_leaves_is_told_of(
    then: JobState, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    master = Master(JOB, [change(1, "dying", 0, "it hung"), change(0, "left", 0, DRAINED)])
    master.then = dataclasses.replace(JOB, state=then, node_names=("stays", "other"), reason="all its nodes have died")
    assert drain(master, monkeypatch) == 1
    told = capsys.readouterr()
    assert "switched off" not in told.out
    assert "died before it had left job 3f2a, as all others of it, and the job begins again" in told.err
