"""A job in the lab while faults befall it: what was done, and all that was heard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ako_jobs.jobs import Prepared
from ako_jobs.run import Result, execute
from dataflow.engine.job_life import JobState
from dataflow.lab.chaos import Fault
from dataflow.lab.chaos_disk import SmallDisk
from dataflow.lab.chaos_injector import Injected, Injector
from dataflow.lab.cluster import lab_cluster
from dataflow.lab.plan import LabPlan
from dataflow.observe.events import JobEvent
from dataflow.runtime.local_cluster import LocalCluster


@dataclass(frozen=True)
class Disturbed:
    """A run with faults.

    Args:
        result: what became of the job.
        events: all of its events, in order, statistics that passed by among them.
        injected: the faults that were done.
        running_s: when it began to run, in seconds since 1970-01-01 UTC; None if it never did.
    """

    result: Result
    events: tuple[JobEvent, ...]
    injected: tuple[Injected, ...]
    running_s: float | None


def run_disturbed(
    prepared: Prepared,
    plan: LabPlan,
    state_dir: Path,
    faults: Sequence[Fault],
    *,
    disk: SmallDisk | None = None,
    out: Path | None = None,
    on_event: Callable[[JobEvent], None] = lambda _event: None,
) -> Disturbed:
    """Run a job in a lab and do faults to it, from the moment that it runs.

    Args:
        prepared: the job.
        plan: the lab, which is up.
        state_dir: of the lab.
        faults: in the order of their time; those that are left when the job ends are not done.
        disk: where it keeps checkpoints, to be filled.
        out: new folder for what the job makes.
        on_event: called with each event.

    Raises:
        AkoError: the job could not be started, or a fault not done.
    """
    events: list[JobEvent] = []
    begun: list[float] = []
    made: list[Injector] = []

    @contextmanager
    def cluster(nodes: int, *, ahead: Sequence[str] = ()) -> Iterator[LocalCluster]:
        with ExitStack() as opened:
            found = opened.enter_context(lab_cluster(plan, state_dir, nodes, ahead=ahead))
            made.append(opened.enter_context(Injector(plan, found, faults, disk)))
            yield found

    def hear(event: JobEvent) -> None:
        events.append(event)
        if event.state == JobState.RUNNING and not begun:
            begun.append(event.wall_s)
            made[0].begin()
        on_event(event)

    result = execute(prepared, out=out, cluster=cluster, on_event=hear)
    return Disturbed(result, tuple(events), made[0].injected, begun[0] if begun else None)
