"""Events of a job as a client sees them: changes of state, reports, statistics."""

from __future__ import annotations

from dataclasses import dataclass

from dataflow.reports import NodeStatistics, OperatorReport


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something that happened to a job. Exactly one of `state`, `report`, `statistics` and `master_away` is set.

    Args:
        index: its number among the job's events, from 0. Statistics of a running node pass by and are not kept:
            they carry the index of the next event that is.
        wall_s: seconds since 1970-01-01 UTC, at the master.
        elapsed_s: seconds since the job started running; 0 before.
        state: the state the job has come to, a `JobState`'s name.
        reason: why, for a change of state.
        stopped_by: what made a finished job stop: target, patience, time, epochs or cancel.
        node: number of the node, for a report.
        report: a message emitted on a reported port.
        statistics: what a node has counted since the start.
        master_away: from when until when there was no master, in seconds since 1970-01-01 UTC.
    """

    index: int
    wall_s: float
    elapsed_s: float
    state: str = ""
    reason: str = ""
    stopped_by: str = ""
    node: int = 0
    report: OperatorReport | None = None
    statistics: NodeStatistics | None = None
    master_away: tuple[float, float] | None = None
