"""What ``ako ls`` and ``ako status`` show of a job."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from dataflow.cli.jobs import list_jobs, measured_job, show_job
from dataflow.engine.job_life import JobState
from dataflow.observe.events import NodeChange
from dataflow.reports import NodeStatistics
from dataflow.runtime.replies import JobStatus, JobWarning

FAILED = JobStatus(
    id="3f2a",
    name="ako",
    state=JobState.FAILED,
    reason="node right: its job process ended by SIGSEGV",
    stopped_by="",
    nodes=2,
    submitted_s=0.0,
    node_names=("left", "right"),
    failed_node=1,
    last_lines=("one", "two"),
    warnings=(JobWarning(0.5, "checkpoint 20 is left out: the disk\nis too slow"),),
)


class Jobs:
    def __init__(self, jobs: list[JobStatus]) -> None:
        self._jobs = jobs

    def jobs(self) -> list[JobStatus]:
        return self._jobs


def test_status_of_a_failed_job_ends_with_what_the_node_printed_last(capsys: pytest.CaptureFixture[str]) -> None:
    show_job(FAILED)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3f2a ako: FAILED (node right: its job process ended by SIGSEGV)"
    assert lines[-3:] == ["the last that right printed:", "one", "two"]


def test_json_of_a_failed_job_has_the_cause_the_node_and_its_lines() -> None:
    told = measured_job(FAILED)
    assert (told["state"], told["reason"], told["failed_node"]) == ("FAILED", FAILED.reason, 1)
    assert told["last_lines"] == ["one", "two"]


def test_status_tells_what_was_warned_of_and_when(capsys: pytest.CaptureFixture[str]) -> None:
    show_job(FAILED)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert line.startswith("warning: checkpoint 20 is left out: the disk is too slow, at ")
    assert measured_job(FAILED)["warnings"] == [{"wall_s": 0.5, "text": FAILED.warnings[0].text}]


def test_job_that_ended_shows_how_long_it_ran_whoever_set_the_clock(capsys: pytest.CaptureFixture[str]) -> None:
    show_job(replace(FAILED, started_s=5000.0, ended_s=1000.0, ran_s=12.5))
    assert "2 nodes, ran 12.5 s" in capsys.readouterr().out


def test_ls_has_a_line_for_each_job_however_long_the_reason_of_one_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [replace(FAILED, reason="Boom: my\nmulti line " + "x" * 20_000), replace(FAILED, reason="", id="4f2a")]
    monkeypatch.setattr("dataflow.cli.jobs.connect", lambda _master, _state_dir: nullcontext(Jobs(jobs)))
    list_jobs()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) < 400
    assert "Boom: my multi line xxx" in lines[1]


def test_status_of_a_running_job_leaves_out_what_a_node_told_before_it_died(capsys: pytest.CaptureFixture[str]) -> None:
    """Until its next incarnation tells something."""
    told = tuple(NodeStatistics(node, steps=steps, running_s=9.0) for node, steps in ((0, 900), (1, 2000), (2, 1000)))
    names = ("first", "second", "third")
    job = replace(FAILED, state=JobState.RUNNING, failed_node=None, node_names=names, statistics=told)
    dead, there, again = (
        NodeChange(1, life, incarnation, "", 0.0, "second")
        for life, incarnation in (("waiting", 0), ("alive", 0), ("joining", 1))
    )
    every, others = "first second third", "first third"
    for changes, shown in (((), every), ((dead,), others), ((there,), every), ((again,), others)):
        show_job(replace(job, changes=changes))
        table = capsys.readouterr().out.partition("nodes, since the start:")[2]
        assert " ".join(word for word in table.split() if word in names) == shown
        conditions = measured_job(replace(job, changes=changes))["conditions"]
        assert isinstance(conditions, list)
        assert " ".join(each.name for each in conditions) == shown
    ended = measured_job(replace(job, state=JobState.FINISHED, changes=(dead,)))["conditions"]
    assert isinstance(ended, list)
    assert len(ended) == 3
