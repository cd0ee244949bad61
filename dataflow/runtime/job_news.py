"""What a master tells of a job: its status, its events, its logs, and what its nodes say of themselves.

All but the statistics that pass by is kept in the store, for those who ask later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dataflow.clock import Clock
from dataflow.engine import coordination as co
from dataflow.engine.job_life import ENDED, JobState
from dataflow.runtime.bell import Bell
from dataflow.runtime.store import Store
from dataflow.runtime.told_statistics import ToldStatistics
from dataflow.transport.generated import control_pb2 as pb

_WARNINGS = 20
"""The newest warnings, which a job's status has; its events have all."""


class JobNews:
    """What there is to tell of one job that has not ended.

    Args:
        status: where it is; changed in place.
        store: keeps what is told.
        clock: the clock.
        started_s: when it began to run, in seconds on the clock; None before.

    Attributes:
        bell: rings when there is news for those who watch or read logs.
        told: what its nodes have told of themselves lately.
    """

    def __init__(self, status: pb.JobStatus, store: Store, clock: Clock, started_s: Callable[[], float | None]) -> None:
        self.status, self.bell, self.told = status, Bell(), ToldStatistics()
        self._store, self._clock, self._started_s = store, clock, started_s
        self._next = store.event_count(status.job)

    def change_state(self, state: JobState, reason: str, stopped_by: str = "", node: int | None = None) -> None:
        """Note where the job is in its life; `node` made it fail."""
        status = self.status
        if state is JobState.FINISHED and status.lost_artifacts:
            lost = f"artifacts that could not be kept: {', '.join(status.lost_artifacts)}"
            reason = "; ".join([*filter(None, [reason]), lost])
        status.state, status.reason, status.stopped_by = state, reason, stopped_by
        if state is JobState.FAILED and node is not None:
            status.failed_node = node
        if state is JobState.RUNNING and not status.started_s:
            status.started_s = self._clock.wall()
        if state in ENDED:
            status.ended_s, status.ran_s = self._clock.wall(), self._elapsed_s()
        self._store.set_status(status)
        self._keep(pb.JobEvent(state=pb.StateChange(state=state, reason=reason, stopped_by=stopped_by)))

    def change_node(self, change: co.ChangeNode) -> None:
        """Note what has become of a node."""
        told = pb.NodeChange(
            node=change.node,
            life=change.life,
            incarnation=change.incarnation,
            epoch=change.epoch,
            reason=change.reason,
            wall_s=self._clock.wall(),
            name=self.status.node_names[change.node],
        )
        self.status.changes[change.node].CopyFrom(told)
        self._store.set_status(self.status)
        self._keep(pb.JobEvent(change=told))

    def tell_adjustment(self, step: co.TellAdjustment) -> None:
        """Say how far a change of the running job is."""
        told = pb.AdjustmentStep(
            number=step.number,
            stage=step.stage,
            reason=step.reason,
            touched=step.touched,
            inside_s=step.inside_s,
            outside_s=step.outside_s,
        )
        self._keep(pb.JobEvent(adjustment=told))

    def was_away(self, absence: pb.Absence) -> None:
        """Note that the job had no master for a while."""
        self.status.master_away.append(absence)
        self._store.set_status(self.status)
        self._keep(pb.JobEvent(master_away=absence))

    def report(self, node: int, report: pb.OperatorReport) -> None:
        """Keep a report."""
        self.status.last_report.CopyFrom(report)
        self._store.set_status(self.status)
        self._keep(pb.JobEvent(report=pb.NodeReport(node=node, report=report)))

    def statistics(self, statistics: pb.NodeStatistics, *, final: bool) -> None:
        """Show a node's statistics to those who watch; keep the newest, and the final ones as an event.

        The newest of an incarnation that has died are its final ones, once the next one tells some.
        """
        newest = self.told.newest(statistics.node)
        if newest is None or newest.incarnation != statistics.incarnation:
            for before in self._store.statistics(self.status.job):
                if before.node == statistics.node and before.incarnation != statistics.incarnation:
                    self._keep(pb.JobEvent(statistics=before))
        self._store.set_statistics(self.status.job, statistics)
        self.told.take(statistics, self._clock.now(), final=final)
        if final:
            self._keep(pb.JobEvent(statistics=statistics))
        else:
            self.bell.ring()

    def end_life(self) -> None:
        """Keep what the nodes that have died told last as events: those that come count from 0."""
        for statistics in self._store.statistics(self.status.job):
            self._keep(pb.JobEvent(statistics=statistics))
        self._store.drop_statistics(self.status.job)

    def warn(self, text: str) -> None:
        """Tell everybody of something wrong that the job goes on without."""
        warning = pb.JobWarning(text=text, wall_s=self._clock.wall())
        self.status.warnings.append(warning)
        del self.status.warnings[:-_WARNINGS]
        self._store.set_status(self.status)
        self._keep(pb.JobEvent(warning=warning))

    def lose(self, node: int, name: str, why: str) -> None:
        """Say that an artifact of a node could not be kept; the job goes on."""
        if name not in self.status.lost_artifacts:
            self.status.lost_artifacts.append(name)
            self._store.set_status(self.status)
        line = pb.LogLine(wall_s=self._clock.wall(), text=f"warning: {why}; the job goes on without it")
        self.log(node, [line])

    def log(self, node: int, lines: Sequence[pb.LogLine]) -> None:
        """Keep lines that a node has printed."""
        for line in lines:
            line.node = node
        self._store.add_log_lines(self.status.job, lines)
        self.bell.ring()

    def passing(self, seen: dict[int, int]) -> list[pb.JobEvent]:
        """What nodes have told, as events that are not kept; see `ToldStatistics.news`."""
        events = [pb.JobEvent(statistics=statistics) for statistics in self.told.news(seen)]
        for event in events:
            self._stamp(event)
        return events

    def _keep(self, event: pb.JobEvent) -> None:
        self._stamp(event)
        self._store.add_event(self.status.job, event)
        self._next += 1
        self.bell.ring()

    def _stamp(self, event: pb.JobEvent) -> None:
        event.index, event.wall_s, event.elapsed_s = self._next, self._clock.wall(), self._elapsed_s()

    def _elapsed_s(self) -> float:
        """Seconds since it began to run; 0 before."""
        started_s = self._started_s()
        return 0.0 if started_s is None else self._clock.now() - started_s
