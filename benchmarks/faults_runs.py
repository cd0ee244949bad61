"""What the rows of faults.py have in common: their labs, their runs, and what is made of these."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from own_lab import own_lab

from ako_jobs.jobs import load_job, prepare
from dataflow import Keep
from dataflow.cli.disturbed import Disturbed, run_disturbed
from dataflow.clock import SystemClock
from dataflow.lab.chaos import Fault
from dataflow.lab.chaos_disk import SmallDisk
from dataflow.lab.chaos_report import Outcome, outcomes, unexplained
from dataflow.lab.plan import Host, LabPlan

INTEGERS = "ako_jobs.integers:build"
HOSTS, RATE, LAST_S = 4, 1e9 / 8, 12.0
CLOCK = SystemClock()


@dataclass(frozen=True)
class Row:
    """What was asked for, and what came out."""

    what: str
    asked: str
    got: str
    holds: bool
    of: str


@dataclass(frozen=True)
class Place:
    """A lab, the state directory that it is noted in, and the settings that say which images jobs in it learn."""

    plan: LabPlan
    state_dir: Path
    data: dict[str, str]


@contextmanager
def made(cores: float | None, data: dict[str, str]) -> Iterator[Place]:
    """A lab, gone when the ``with`` block ends."""
    with own_lab((Host(rate=RATE, cores=cores),) * HOSTS) as (plan, state_dir):
        yield Place(plan, state_dir, data)


def disturbed(
    place: Place,
    faults: Sequence[Fault],
    job: str = INTEGERS,
    disk: SmallDisk | None = None,
    **settings: Any,
) -> Disturbed:
    """A run that ends `LAST_S` after the last fault, unless its settings say otherwise; `disk`: for its checkpoints."""
    end_s = max((fault.at_s + fault.for_s for fault in faults), default=0.0) + LAST_S
    prepared = prepare(load_job(job), {"time": end_s} | settings, HOSTS)
    if disk is not None:
        prepared = replace(prepared, spec=prepared.spec.model_copy(update={"keep": Keep(place=str(disk.path))}))
    return run_disturbed(prepared, place.plan, place.state_dir, faults, disk=disk)


def wrong(run: Disturbed) -> list[str]:
    """What does not hold of any run of integers."""
    config: Any = load_job(INTEGERS).config
    found = list(config.violations(run.result.record)) + unexplained(run.injected, run.events)
    return found if run.result.state == "FINISHED" else [*found, f"{run.result.state}: {run.result.reason}"]


def told(runs: Sequence[Disturbed]) -> list[Outcome]:
    return [each for run in runs for each in outcomes(run.injected, run.events) if each.injected.hit]


def within(what: str, asked_s: float, values: Sequence[float | None], part: float = 1.0) -> Row:
    """A row of seconds, of which a part must not be more than so many; one that never happened counts as too many."""
    known = sorted(float("inf") if value is None else value for value in values)
    got = f"{median(known):.2f} s (median), {known[-1]:.2f} s (largest)" if known else "nothing"
    holds = bool(known) and sum(value <= asked_s for value in known) >= part * len(known)
    return Row(what, f"<= {asked_s:g} s", got, holds, f"{len(known)} faults")


def at_least(what: str, asked: float, values: Sequence[float | None]) -> Row:
    known = sorted(value for value in values if value is not None)
    got = f"{median(known):.0%} (median), {known[0]:.0%} (least)" if known else "nothing"
    return Row(what, f">= {asked:.0%}", got, bool(known) and median(known) >= asked, f"{len(known)} faults")


def exact(what: str, runs: Sequence[Disturbed]) -> Row:
    bad = [text for run in runs for text in wrong(run)]
    fine = sum(not wrong(run) for run in runs)
    for text in bad:
        print(text, file=sys.stderr)
    return Row(
        f"{what}: jobs that finish, every replica exact", str(len(runs)), str(fine), not bad, f"{len(runs)} runs"
    )
