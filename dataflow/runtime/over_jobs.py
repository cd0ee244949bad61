"""Jobs that are over, in the master: which of them are kept, and for a while what their nodes had measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from dataflow.clock import Clock
from dataflow.observe.condition import MeasuredJob
from dataflow.runtime.job_run import JobRun
from dataflow.runtime.store import Store

PAST_S = 60.0
"""Seconds for which what the nodes of a job measured is kept once it is over."""


class OverJobs:
    """All jobs that have ended and of which no process is left.

    Args:
        store: where they are kept.
        clock: the clock.
        keep: how many are kept, with what they made; all if None.
    """

    def __init__(self, store: Store, clock: Clock, keep: int | None) -> None:
        self._store, self._clock, self._keep = store, clock, keep
        self._past: deque[tuple[float, MeasuredJob]] = deque()
        self._jobs: list[str] = []
        self._writing: dict[str, JobRun] = {}

    def recover(self, jobs: Sequence[str]) -> None:
        """Take over the jobs that ended under an earlier master, in that order."""
        for job in jobs:
            self._store.set_over(job)  # unless that is known: the earlier master may have ended just before
        self._jobs = self._store.over()

    def add(self, run: JobRun) -> None:
        """Let go of what only a job that runs needs."""
        self._store.drop_partial_artifacts(run.id)
        run.close()
        self._store.set_over(run.id)
        self._past.append((self._clock.now(), run.measured()))
        self._jobs.append(run.id)
        self._writing[run.id] = run
        run.news.bell.ring()

    def measured(self) -> list[MeasuredJob]:
        """What the nodes of every job that was over less than `PAST_S` seconds ago told last."""
        self._forget_past()
        return [job for _, job in self._past]

    def tidy(self, others: Collection[JobRun]) -> None:
        """Remove the jobs that ended first, if more are kept than are to be, but none that one of `others` needs."""
        self._forget_past()
        if self._store.on_disk():  # else the next master would have some of them go on
            self._writing = {job: run for job, run in self._writing.items() if not run.written}
        beyond = 0 if self._keep is None else len(self._jobs) - self._keep
        if beyond > 0:
            runs = (*others, *self._writing.values())
            stay = {run.spec.resume.job for run in runs if run.spec.resume is not None} | self._writing.keys()
            for job in [job for job in self._jobs[:beyond] if job not in stay]:
                self._store.remove(job)
                self._jobs.remove(job)

    def _forget_past(self) -> None:
        while self._past and self._clock.now() - self._past[0][0] >= PAST_S:
            self._past.popleft()
