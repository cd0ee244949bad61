"""What a master says of its jobs and nodes, as values. Imports no NumPy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dataflow.engine.job_life import ENDED, JobState
from dataflow.observe.events import NodeChange
from dataflow.reports import NodeStatistics, OperatorReport
from dataflow.runtime.wire import change_from_wire, report_from_wire, statistics_from_wire
from dataflow.transport.generated import control_pb2 as pb


@dataclass(frozen=True, slots=True)
class JobWarning:
    """Something wrong that a job goes on without.

    Args:
        wall_s: when it was found, in seconds since 1970-01-01 UTC.
        text: what it is.
    """

    wall_s: float
    text: str


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as the master sees it.

    Args:
        id: its id.
        name: the name its specification gives it.
        state: where it is in its life.
        reason: what it waits for, or what made it fail.
        stopped_by: what made a finished job stop: target, patience, time, epochs or cancel.
        nodes: number of nodes it wants.
        submitted_s, started_s, ended_s: seconds since 1970-01-01 UTC; `None` before.
        ran_s: seconds for which it ran, whoever set a clock meanwhile; `None` until it has ended.
        node_names: names of the nodes it was placed on, by node number.
        last_report: its newest report.
        master_away: from when until when there was no master while it ran, in seconds since 1970-01-01 UTC.
        statistics: newest statistics of each node; filled in by `Client.job` and `Client.wait`.
        earlier: the few that nodes told before these while the job runs, oldest first; filled in like them.
        failed_node: number of the node that made it fail; None if none did.
        last_lines: the last 50 lines that this node printed; filled in like the statistics.
        changes: the newest change of every node that has died since the job began to run.
        warnings: the newest 20, oldest first.
    """

    id: str
    name: str
    state: JobState
    reason: str
    stopped_by: str
    nodes: int
    submitted_s: float
    started_s: float | None = None
    ended_s: float | None = None
    ran_s: float | None = None
    node_names: tuple[str, ...] = ()
    last_report: OperatorReport | None = None
    master_away: tuple[tuple[float, float], ...] = ()
    statistics: tuple[NodeStatistics, ...] = field(default=())
    earlier: tuple[NodeStatistics, ...] = field(default=())
    failed_node: int | None = None
    last_lines: tuple[str, ...] = ()
    changes: tuple[NodeChange, ...] = ()
    warnings: tuple[JobWarning, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a job process printed.

    Args:
        node: number of the node.
        wall_s: seconds since 1970-01-01 UTC, at the node.
        text: the line, without its end.
    """

    node: int
    wall_s: float
    text: str


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """An attached node.

    Args:
        name: its name.
        host: where other nodes reach it.
        cores: cores it may use.
        tasks: compute tasks a job gets on it.
        job: id of the job that runs on it; empty if it is free.
        silent_s: seconds since the master last heard of it.
        progress: progress counter of the job's process.
        drained: it was asked to leave its jobs, and gets no more.
    """

    name: str
    host: str
    cores: int
    tasks: int
    job: str
    silent_s: float
    progress: int
    drained: bool = False


def job_status(
    message: pb.JobStatus,
    statistics: Iterable[pb.NodeStatistics] = (),
    earlier: Iterable[pb.NodeStatistics] = (),
    last_lines: Iterable[str] = (),
) -> JobStatus:
    """What a message says of a job; the rest is in others, if it is asked for."""
    return JobStatus(
        id=message.job,
        name=message.name,
        state=JobState(message.state),
        reason=message.reason,
        stopped_by=message.stopped_by,
        nodes=message.nodes,
        submitted_s=message.submitted_s,
        started_s=message.started_s or None,
        ended_s=message.ended_s or None,
        ran_s=message.ran_s or None,
        node_names=tuple(message.node_names),
        last_report=report_from_wire(message.last_report) if message.HasField("last_report") else None,
        master_away=tuple((each.from_s, each.to_s) for each in message.master_away),
        statistics=tuple(statistics_from_wire(each) for each in statistics),
        earlier=tuple(statistics_from_wire(each) for each in earlier),
        failed_node=message.failed_node if message.HasField("failed_node") else None,
        last_lines=tuple(last_lines),
        changes=tuple(change_from_wire(each) for _, each in sorted(message.changes.items())),
        warnings=tuple(JobWarning(each.wall_s, each.text) for each in message.warnings),
    )


def node_status(message: pb.NodeStatus) -> NodeStatus:
    """What a message says of a node."""
    return NodeStatus(
        message.name,
        message.host,
        message.cores,
        message.tasks,
        message.job,
        message.silent_s,
        message.progress,
        message.drained,
    )
