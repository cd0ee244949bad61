"""Events of a job as a client sees them: changes of state, reports, statistics."""

from __future__ import annotations

from dataclasses import dataclass

from dataflow.reports import NodeStatistics, OperatorReport


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node of a running job has died, is being started again, or has joined.

    Args:
        node: its number.
        life: what has become of it: the value of a `dataflow.engine.membership.Life`.
        incarnation: how often it had been started before.
        reason: why it died; empty otherwise.
        wall_s: seconds since 1970-01-01 UTC, at the master.
        name: of the node that it happened to, another one may have its number later; empty in a simulation.
    """

    node: int
    life: str
    incarnation: int
    reason: str
    wall_s: float
    name: str = ""

    def __str__(self) -> str:
        """What has happened, in words and one line."""
        again = f", incarnation {self.incarnation}" if self.incarnation else ""
        why = f": {self.reason.partition(chr(10))[0]}" if self.reason else ""
        return f"{_WORDS[self.life]}{again}{why}"


@dataclass(frozen=True, slots=True)
class AdjustmentStep:
    """How far a change is that somebody has asked for while the job runs, or that the job has planned.

    Args:
        number: of the change.
        stage: ``asked``, ``dropped``, ``begun`` on the first node, or ``settled`` on all.
        reason: why it was dropped; empty otherwise.
        touched: nodes that had something to change, once it is settled.
        inside_s: the longest time that one of these took until it was settled, in seconds.
        outside_s: the longest time that any other node took until its new neighbours had spoken; no pause.
    """

    number: int
    stage: str
    reason: str = ""
    touched: tuple[int, ...] = ()
    inside_s: float = 0.0
    outside_s: float = 0.0

    def __str__(self) -> str:
        """What has happened, in words and one line."""
        head = f"change {self.number} of the running job"
        if self.stage == "settled":
            spans = f"{self.inside_s:.3f} s; all others {self.outside_s:.3f} s"
            return f"{head} is settled: it touched {len(self.touched)} nodes, for at most {spans}"
        return f"{head} is {self.stage}" + (f": {self.reason}" if self.reason else "")


_WORDS = {
    "joining": "is being started",
    "alive": "has joined",
    "ended": "has ended",
    "dying": "is dead",
    "waiting": "is dead and will be started again",
    "away": "is dead until its agent comes back",
    "gone": "is dead and is not started again",
    "left": "has left the job",
}


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something that happened to a job. Exactly one of its parts from `state` on is set.

    Args:
        index: its number among the job's events, from 0. Statistics of a running node pass by and are not kept:
            they carry the index of the next event that is.
        wall_s: seconds since 1970-01-01 UTC, at the master.
        elapsed_s: seconds since the job started running; 0 before.
        state: the state the job has come to, a `JobState`'s name.
        reason: why, for a change of state.
        stopped_by: what made a finished job stop: target, patience, time, epochs or cancel.
        node: number of the node, for a report or a change.
        report: a message emitted on a reported port.
        statistics: what a node has counted since the start.
        change: what has become of a node.
        adjustment: how far a change of the running job is.
        warning: what is wrong that the job goes on without.
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
    change: NodeChange | None = None
    adjustment: AdjustmentStep | None = None
    warning: str = ""
    master_away: tuple[float, float] | None = None
