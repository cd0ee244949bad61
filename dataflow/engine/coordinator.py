"""The coordinator of one job: what happened goes in, what to do comes out. No thread, socket, clock or file.

A job's life is `TRANSITIONS`, a table; an event is first reduced to at most one `Trigger`, and the table says where
that leads. Invariant: the state changes by the table only, exactly one `Finish` is commanded, and none after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from dataflow.reports import NodeStatistics, OperatorReport

if TYPE_CHECKING:
    from dataflow.plan.job import StopRules

StoppedBy = Literal["", "target", "patience", "time", "epochs", "cancel"]


class JobState(StrEnum):
    """Where a job is in its life."""

    SUBMITTED = "SUBMITTED"
    """The master has it."""
    PENDING = "PENDING"
    """It waits for nodes."""
    DEPLOYING = "DEPLOYING"
    """Its nodes import, open data, compile kernels and connect."""
    RUNNING = "RUNNING"
    """Every node was ready and has been started."""
    CANCELLING = "CANCELLING"
    """Its nodes have been asked to stop."""
    FINISHED = "FINISHED"
    """It ended by itself or by a stop rule."""
    FAILED = "FAILED"
    """A node failed or was lost."""
    CANCELLED = "CANCELLED"
    """Somebody stopped it."""


ENDED = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELLED})
"""States that a job does not leave."""


class Trigger(StrEnum):
    """What events come down to."""

    PLACED = "placed"
    UNPLACED = "no nodes"
    ALL_READY = "all nodes ready"
    NOT_READY_IN_TIME = "not ready in time"
    ALL_ENDED = "all nodes ended"
    DRAINING_TOOK_TOO_LONG = "draining took too long"
    NODE_FAILED = "node failed"
    NODE_LOST = "node lost"
    RULE_BROKEN = "stop rule cannot be followed"
    CANCEL = "cancel"
    GRACE_OVER = "grace over"


_S, _T = JobState, Trigger

TRANSITIONS: dict[tuple[JobState, Trigger], JobState] = {
    (_S.SUBMITTED, _T.PLACED): _S.DEPLOYING,
    (_S.SUBMITTED, _T.UNPLACED): _S.PENDING,
    (_S.SUBMITTED, _T.CANCEL): _S.CANCELLED,
    (_S.PENDING, _T.PLACED): _S.DEPLOYING,
    (_S.PENDING, _T.UNPLACED): _S.PENDING,
    (_S.PENDING, _T.CANCEL): _S.CANCELLED,
    (_S.DEPLOYING, _T.ALL_READY): _S.RUNNING,
    (_S.DEPLOYING, _T.NOT_READY_IN_TIME): _S.FAILED,
    (_S.DEPLOYING, _T.NODE_FAILED): _S.FAILED,
    (_S.DEPLOYING, _T.NODE_LOST): _S.FAILED,
    (_S.DEPLOYING, _T.CANCEL): _S.CANCELLING,
    (_S.RUNNING, _T.ALL_ENDED): _S.FINISHED,
    (_S.RUNNING, _T.DRAINING_TOOK_TOO_LONG): _S.FINISHED,
    (_S.RUNNING, _T.NODE_FAILED): _S.FAILED,
    (_S.RUNNING, _T.NODE_LOST): _S.FAILED,
    (_S.RUNNING, _T.RULE_BROKEN): _S.FAILED,
    (_S.RUNNING, _T.CANCEL): _S.CANCELLING,
    (_S.CANCELLING, _T.ALL_ENDED): _S.CANCELLED,
    (_S.CANCELLING, _T.GRACE_OVER): _S.CANCELLED,
}
"""The life of a job. A trigger that a state does not list changes nothing there."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Nodes were found. `names`: their names by node number."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unplaced:
    """No nodes yet, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class NodePrepared:
    """A node has loaded its operators and listens at `address`."""

    node: int
    address: str


@dataclass(frozen=True, slots=True)
class NodeReady:
    """A node is connected to those it sends to."""

    node: int


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A message on a reported port."""

    node: int
    report: OperatorReport


@dataclass(frozen=True, slots=True)
class NodeEnded:
    """A node's sources have ended and everything has drained."""

    node: int
    statistics: NodeStatistics


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """A node's job process failed.

    Args:
        node: its number.
        text: the error.
        where: operator and the user's ``file:line``, as far as known.
        link: what failed is a link to another node, perhaps because that one failed first.
    """

    node: int
    text: str
    where: str = ""
    link: bool = False


@dataclass(frozen=True, slots=True)
class NodeLost:
    """Nothing is heard of a node any more, and why."""

    node: int
    reason: str = "its agent was lost"


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """Somebody wants the job stopped."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: the answer to the last `SetTimer`; harmless at any other time."""


Event = (
    Placed | Unplaced | NodePrepared | NodeReady | NodeReport | NodeEnded | NodeFailed | NodeLost | CancelAsked | Tick
)


@dataclass(frozen=True, slots=True)
class Deploy:
    """Start the job's process on a node and have it prepare."""

    node: int


@dataclass(frozen=True, slots=True)
class Connect:
    """Have a node connect to the others. `addresses`: ``host:port`` by node number."""

    node: int
    addresses: dict[int, str]


@dataclass(frozen=True, slots=True)
class Start:
    """Start a node."""

    node: int


@dataclass(frozen=True, slots=True)
class StopNodes:
    """Have nodes stop their sources and drain."""

    nodes: tuple[int, ...]
    reason: StoppedBy


@dataclass(frozen=True, slots=True)
class CloseNodes:
    """Let the processes of nodes that have ended go; kill those that do not."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KillNodes:
    """Kill the processes of nodes."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Give a `Tick` at this time, in seconds on the clock of `now`, instead of at that of any earlier `SetTimer`."""

    at_s: float


@dataclass(frozen=True, slots=True)
class ChangeState:
    """Tell everybody that the job has come to a state, and why."""

    state: JobState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """Tell everybody that the job has ended, and how. The last command of a job."""

    state: JobState
    reason: str
    stopped_by: StoppedBy


Command = Deploy | Connect | Start | StopNodes | CloseNodes | KillNodes | SetTimer | ChangeState | Finish


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long the coordinator waits, in seconds.

    Args:
        preflight_s: from placing a job until every node is ready.
        grace_s: from asking nodes to stop for a cancellation until they are killed.
        drain_s: from asking nodes to stop for a stop rule until they are killed; the job is finished all the same.
        blame_s: from a failed link until it counts as the cause, and not as the effect of a node's failure.
    """

    preflight_s: float = 120.0
    grace_s: float = 2.0
    drain_s: float = 60.0
    blame_s: float = 1.0


@dataclass(slots=True)
class _Series:
    """The watched metrics as they are reported.

    Args:
        held: reports in a row that reached the target.
        best: of the metric that patience watches.
        since_best: reports since then.
    """

    held: int = 0
    best: float = float("-inf")
    since_best: int = 0

    def add(self, value: float, target: float | None, patient: float) -> None:
        """Take in a report's `value` of the target's metric and that of patience's, which is `patient`."""
        self.held = self.held + 1 if target is not None and value >= target else 0
        better = patient > self.best
        self.best = patient if better else self.best
        self.since_best = 0 if better else self.since_best + 1


class JobCoordinator:
    """Decides what happens to one job.

    Args:
        nodes: number of nodes of the job.
        rules: when to stop it.
        deadlines: how long to wait for what.

    A master that takes a job over gives a fresh coordinator the same events at the same times, and has it where it was.

    Attributes:
        state: where the job is.
        stopped_by: the first stop rule that held, or cancel; empty before.
        started_s: when it began to run, on the clock of `now`; None before.
    """

    def __init__(self, nodes: int, rules: StopRules, deadlines: Deadlines | None = None) -> None:
        self.state = JobState.SUBMITTED
        self.stopped_by: StoppedBy = ""
        self.started_s: float | None = None
        self._rules = rules
        self._deadlines = deadlines or Deadlines()
        self._names = tuple(f"node-{index}" for index in range(nodes))
        self._addresses: dict[int, str] = {}
        self._ready: set[int] = set()
        self._gone: set[int] = set()
        self._series = _Series()
        self._deadline_s: float | None = None
        self._suspicion = ""

    def minds(self, event: Event) -> bool:
        """Whether an event can change anything: of what nodes report, only what a stop rule watches does."""
        return not isinstance(event, NodeReport) or (
            bool(self._rules.report) and self._rules.report == event.report.port
        )

    def handle(self, event: Event, now: float) -> list[Command]:
        """What to do about an event.

        Args:
            event: what happened. One that means nothing in the present state is ignored.
            now: seconds on a clock that never goes back.
        """
        if self.state in ENDED:
            return []
        commands: list[Command]
        match event:
            case Placed(names):
                commands = self._go(Trigger.PLACED, now, names=names)
            case Unplaced(reason):
                commands = self._go(Trigger.UNPLACED, now, reason)
            case NodePrepared(node, address):
                commands = self._on_prepared(node, address)
            case NodeReady(node):
                commands = self._on_ready(node, now)
            case NodeReport(_, report):
                commands = self._on_report(report, now)
            case NodeEnded(node):
                commands = self._on_gone(node, now)
            case NodeFailed():
                commands = self._on_failed(event, now)
            case NodeLost(node, reason):
                commands = self._on_broken(Trigger.NODE_LOST, node, f"node {self._names[node]} was lost: {reason}", now)
            case CancelAsked():
                commands = self._go(Trigger.CANCEL, now, "cancelled")
            case Tick():
                commands = self._on_tick(now)
        return commands

    def _on_prepared(self, node: int, address: str) -> list[Command]:
        if self.state is not JobState.DEPLOYING or node in self._addresses:
            return []
        self._addresses[node] = address
        if len(self._addresses) < len(self._names):
            return []
        return [Connect(each, dict(sorted(self._addresses.items()))) for each in self._all]

    def _on_ready(self, node: int, now: float) -> list[Command]:
        if self.state is not JobState.DEPLOYING or len(self._addresses) < len(self._names):
            return []
        self._ready.add(node)
        return self._go(Trigger.ALL_READY, now) if len(self._ready) == len(self._names) else []

    def _on_report(self, report: OperatorReport, now: float) -> list[Command]:
        rules = self._rules
        if (
            self.state is not JobState.RUNNING
            or self.stopped_by
            or self._suspicion
            or report.port != rules.report
            or not rules.report
        ):
            return []
        values: list[float] = []
        patient = rules.patience_metric if rules.patience is not None else ""
        for metric in (rules.metric, patient or rules.metric):
            value = report.fields.get(metric)
            if isinstance(value, bool) or not isinstance(value, int | float):
                fields = ", ".join(sorted(report.fields))
                reason = f"the stop rule watches {metric!r}, which {report.port} does not report; it has: {fields}"
                return self._go(Trigger.RULE_BROKEN, now, reason)
            values.append(value)
        self._series.add(values[0], rules.target, values[1])
        if self._series.held >= rules.hold:
            return self._stop("target", now)
        if rules.patience is not None and self._series.since_best >= rules.patience:
            return self._stop("patience", now)
        return []

    def _on_gone(self, node: int, now: float) -> list[Command]:
        if self.state not in (JobState.RUNNING, JobState.CANCELLING):
            return []
        self._gone.add(node)
        return self._go(Trigger.ALL_ENDED, now) if len(self._gone) == len(self._names) else []

    def _on_failed(self, event: NodeFailed, now: float) -> list[Command]:
        node, where = event.node, event.where
        reason = f"node {self._names[node]}: {event.text}" + (f" at {where}" if where not in event.text else "")
        if event.link and self.state in (JobState.DEPLOYING, JobState.RUNNING) and node not in self._gone:
            return self._suspect(reason, now)
        return self._on_broken(Trigger.NODE_FAILED, node, reason, now)

    def _on_broken(self, trigger: Trigger, node: int, reason: str, now: float) -> list[Command]:
        if self.state is JobState.CANCELLING:
            return self._on_gone(node, now)
        # What becomes of a process that has done its part changes nothing.
        return [] if node in self._gone else self._go(trigger, now, reason)

    def _on_tick(self, now: float) -> list[Command]:
        if self._deadline_s is None:
            return []
        if now < self._deadline_s:
            return [SetTimer(self._deadline_s)]
        if self._suspicion:
            return self._go(Trigger.NODE_FAILED, now, self._suspicion)
        if self.state is JobState.DEPLOYING:
            late = ", ".join(name for node, name in enumerate(self._names) if node not in self._ready)
            seconds = self._deadlines.preflight_s
            return self._go(Trigger.NOT_READY_IN_TIME, now, f"nodes not ready after {seconds:g} s: {late}")
        if self.state is JobState.CANCELLING:
            return self._go(Trigger.GRACE_OVER, now, "cancelled; the nodes had to be killed")
        if not self.stopped_by:
            return self._stop("time", now)
        late = ", ".join(name for node, name in enumerate(self._names) if node not in self._gone)
        return self._go(Trigger.DRAINING_TOOK_TOO_LONG, now, f"killed nodes that did not drain: {late}")

    def _suspect(self, reason: str, now: float) -> list[Command]:
        """A link has failed: if no node fails by itself within a moment, that was the cause."""
        if self._suspicion:
            return []
        self._suspicion = reason
        return [self._timer(now + self._deadlines.blame_s)]

    def _stop(self, stopped_by: StoppedBy, now: float) -> list[Command]:
        """A stop rule holds: the job keeps RUNNING until its nodes have drained."""
        self.stopped_by = stopped_by
        return [StopNodes(self._all, stopped_by), self._timer(now + self._deadlines.drain_s)]

    def _go(self, trigger: Trigger, now: float, reason: str = "", names: tuple[str, ...] = ()) -> list[Command]:
        """Follow the table, and do what belongs to entering the state it names."""
        target = TRANSITIONS.get((self.state, trigger))
        if target is None:
            return []
        source, self.state, self._deadline_s = self.state, target, None
        self._names, self._suspicion = names or self._names, ""
        return self._enter(target, source, trigger, now, reason)

    def _enter(self, target: JobState, source: JobState, trigger: Trigger, now: float, reason: str) -> list[Command]:
        """What belongs to coming from `source` to `target`."""
        commands: list[Command] = [] if target in ENDED else [ChangeState(target, reason)]
        match target:
            case JobState.DEPLOYING:
                commands += [Deploy(node) for node in self._all]
                commands.append(self._timer(now + self._deadlines.preflight_s))
            case JobState.RUNNING:
                self.started_s = now
                commands += [Start(node) for node in self._all]
                if self._rules.time_s is not None:
                    commands.append(self._timer(now + self._rules.time_s))
            case JobState.CANCELLING:
                self.stopped_by = "cancel"
                commands += [StopNodes(self._all, "cancel"), self._timer(now + self._deadlines.grace_s)]
            case JobState.FINISHED:
                self.stopped_by = self.stopped_by or "epochs"
                commands += [self._let_go(trigger), Finish(target, reason, self.stopped_by)]
            case JobState.CANCELLED:
                self.stopped_by = "cancel"
                if source is JobState.CANCELLING:
                    commands.append(self._let_go(trigger))
                commands.append(Finish(target, reason or "cancelled", "cancel"))
            case JobState.FAILED:
                self.stopped_by = ""
                commands += [KillNodes(self._all), Finish(target, reason, "")]
        return commands

    def _let_go(self, trigger: Trigger) -> Command:
        return CloseNodes(self._all) if trigger is Trigger.ALL_ENDED else KillNodes(self._all)

    def _timer(self, at_s: float) -> SetTimer:
        self._deadline_s = at_s
        return SetTimer(at_s)

    @property
    def _all(self) -> tuple[int, ...]:
        return tuple(range(len(self._names)))


def transition_diagram() -> str:
    """The life of a job as a Mermaid state diagram, made from `TRANSITIONS`."""
    lines = [f"    {source} --> {target}: {trigger.value}" for (source, trigger), target in TRANSITIONS.items()]
    ends = [f"    {state} --> [*]" for state in JobState if state in ENDED]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {JobState.SUBMITTED}", *lines, *ends])
