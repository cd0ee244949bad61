"""Which waiting job gets which free nodes. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that waits for nodes.

    Args:
        job: its id.
        nodes: how many nodes it needs.
    """

    job: str
    nodes: int


@dataclass(frozen=True, slots=True)
class Placements:
    """What `place_jobs` decided.

    Args:
        placed: names of the nodes of each job that can start, by job id.
        reasons: why each other job has to wait, by job id.
    """

    placed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


def place_jobs(waiting: Sequence[Waiting], free: Sequence[str], attached: int) -> Placements:
    """Give free nodes to waiting jobs, first come, first served.

    A job for which the attached nodes would suffice if they were free holds back those behind it, so that small jobs
    cannot starve it; one that needs more nodes than there are does not.

    Args:
        waiting: jobs in the order in which they were submitted.
        free: names of nodes without a job, in the order in which they are to be taken.
        attached: number of nodes that are attached, free or not.
    """
    placed: dict[str, tuple[str, ...]] = {}
    reasons: dict[str, str] = {}
    left = list(free)
    blocking = ""
    for job in waiting:
        if not blocking and job.nodes <= len(left):
            placed[job.job], left = tuple(left[: job.nodes]), left[job.nodes :]
            continue
        need = f"needs {job.nodes} {'node' if job.nodes == 1 else 'nodes'}, {attached} attached"
        if job.nodes <= attached:
            reasons[job.job] = f"{need}, {attached - len(left)} busy" + (f"; behind job {blocking}" if blocking else "")
            blocking = blocking or job.job
        else:
            busy = attached - len(left)
            reasons[job.job] = f"{need}, {busy} busy" if busy else need
    return Placements(placed, reasons)
