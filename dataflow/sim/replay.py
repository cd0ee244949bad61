"""Replay: the engines of a recorded run, given the events of its record again.

Events wait for nothing but their causes: an arrival until the sender's engine has sent the message, credit until the
receiver's has granted it. Time is that of the record. A task's function runs when the engine is about to be told that
it has finished: its inputs were fixed when it started, nobody else touches what it writes until it commits, so no
moment in between makes a difference; and what a broken record leaves unfinished is not done at all.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dataflow.engine.events import (
    Command,
    CreditGranted,
    Event,
    Failed,
    GoOn,
    GrantCredit,
    LeaveAsked,
    Measured,
    MessageArrived,
    NodeJoined,
    NodeLeft,
    Offer,
    Outcome,
    Report,
    RunTask,
    SendEnd,
    SendMessage,
    Started,
    StopAsked,
    StreamEnded,
    Task,
    TaskFinished,
    TimerFired,
)
from dataflow.engine.loading import LoadedNode, load_node
from dataflow.engine.node_engine import NodeEngine
from dataflow.engine.recording import PLAN_FILE, Kind, Noted, checksum
from dataflow.errors import AkoError, DataError
from dataflow.graph.logical import canonical_json
from dataflow.operators_api import Artifact
from dataflow.plain import plain
from dataflow.plan.physical import PhysicalPlan, StreamId
from dataflow.reports import OperatorReport
from dataflow.sim.record import NodeRecord, Read, recorded_lives, recorded_plan

PROGRESS_EVENTS = 1000
"""Events between two calls of `on_progress`."""

_NOBODY: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replay first differs from its record.

    Args:
        what: what differs.
        node: number of the node; None if all events were as recorded, and what came of them was not.
        event: number of the event among those of its node, from 0.
    """

    what: str
    node: int | None = None
    event: int | None = None


@dataclass
class Replayed:
    """What came of a replay.

    Args:
        plan: what was run.
        nodes: the loaded nodes, with their live state; of one that was started again, its last incarnation.
        events: by node, how many events its incarnations were given again.
        artifacts: files of the job's results by name.
        reports: (node, report) in the order they came.
        failures: errors with which engines ended, by node.
        broken: nodes of which a record breaks off: they were killed, or their last events never left them.
        waiting: by node that could not be given all of its records, the node that it waits for.
        difference: the first difference from the record; None if there is none.
    """

    plan: PhysicalPlan
    nodes: list[LoadedNode]
    events: list[int]
    artifacts: dict[str, bytes] = field(default_factory=dict)
    reports: list[tuple[int, OperatorReport]] = field(default_factory=list)
    failures: dict[int, AkoError] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)
    waiting: dict[int, int] = field(default_factory=dict)
    difference: Difference | None = None

    @property
    def complete(self) -> bool:
        """Whether every event that any engine was given in the run has been replayed."""
        return not self.broken and not self.waiting and self.difference is None


def replay(plan: PhysicalPlan, read: Read, on_progress: Callable[[int], None] = lambda events: None) -> Replayed:
    """Replay a recorded run as far as its record goes, or to the first difference.

    Args:
        plan: what was run, made from its job again: the code that it names is imported and called.
        read: gives the record's artifacts.
        on_progress: told how many events have been replayed, now and then.

    Raises:
        DataError: there is no record, or it is damaged, or of another plan.
        AkoError: an operator cannot be made or opened.
    """
    recorded, digest = recorded_plan(read), plan.digest()
    if recorded.digest() != digest:
        was, now = (json.loads(canonical_json(each)) for each in (recorded, plan))
        other = " and ".join(name for name in now if now[name] != was[name])
        what = f"the job builds another plan than the one of the record: other {other}"
        fix = "name the job that was recorded, as it was: --job my_job.py, or use the version of ako that recorded it"
        raise DataError(what, where=PLAN_FILE, fix=fix)
    return _Replay(plan, digest, read, on_progress).run()


def compare(replayed: Replayed, read: Read, reports: Sequence[Mapping[str, Any]]) -> Difference | None:
    """The first difference between a run and its replay: in its events, then in artifacts, then in reports.

    Of a run that was not replayed to its end, what both have is compared.

    Args:
        replayed: the replay.
        read: gives the run's artifacts.
        reports: the run's, as in its record: fields beside ``node``, ``port`` and ``time_s``.
    """
    if replayed.difference is not None:
        return replayed.difference
    for name, data in sorted(replayed.artifacts.items()):
        kept = read(name)
        if kept is None and replayed.complete:
            return Difference(f"the run has no {name}")
        if kept is not None and kept != data:
            return Difference(f"{name} differs")
    for node, plan in enumerate(replayed.plan.nodes):
        ours = [_said({**report.fields, "port": report.port}) for at, report in replayed.reports if at == node]
        theirs = [_said(report) for report in reports if report.get("node") == node]
        if replayed.complete and len(ours) != len(theirs):
            return Difference(f"{plan.name} made {len(theirs)} reports, and {len(ours)} in the replay")
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
            if mine != other:
                return Difference(f"report {number} of {plan.name} was {other}, and is {mine} in the replay")
    return None


def _said(report: Mapping[str, Any]) -> dict[str, Any]:
    """What an operator said in a report, as a run's record has it."""
    said: dict[str, Any] = plain({name: value for name, value in report.items() if name not in ("node", "time_s")})
    return said


class _DiffersError(Exception):
    """An event cannot be what the record says."""


@dataclass(eq=False)
class _Life:
    """An incarnation of a node.

    Args:
        node: number of the node.
        incarnation: which.
        engine: its engine.
        record: what was noted of it.
        peers: incarnations of the other nodes as it knows them; 0 where it has heard of no other.
        tasks: those under way, by number.
        commanded: how many there were.
        done: events that it was given.
    """

    node: int
    incarnation: int
    engine: NodeEngine
    record: NodeRecord
    peers: dict[int, int] = field(default_factory=dict)
    tasks: dict[int, Task] = field(default_factory=dict)
    commanded: int = 0
    done: int = 0


_Stream = tuple[StreamId, int, int]
"""A stream and the incarnations of its two ends."""


class _Replay:
    """A replay under way."""

    def __init__(self, plan: PhysicalPlan, digest: str, read: Read, on_progress: Callable[[int], None]) -> None:
        self._plan, self._digest, self._read, self._on_progress = plan, digest, read, on_progress
        self._run = Replayed(plan, [], [0] * len(plan.nodes))
        self._lives = [self._life(*each) for each in recorded_lives(plan, read)]
        self._records = [iter(life.record) for life in self._lives]
        self._next = [next(record, None) for record in self._records]
        self._number = {(life.node, life.incarnation): number for number, life in enumerate(self._lives)}
        self._offered: dict[Task, Task] = {}
        self._sent: defaultdict[_Stream, deque[MessageArrived | StreamEnded]] = defaultdict(deque)
        self._granted: Counter[_Stream] = Counter()
        self._reports: list[tuple[_Life, OperatorReport]] = []
        self._artifacts: list[tuple[_Life, Artifact]] = []
        members = plan.members()
        self._ends = {
            number: tuple(map(frozenset, plan.graph.ends(edge, members)))
            for number, edge in plan.stream_edges().items()
        }
        self._ready = dict.fromkeys(range(len(self._lives)))
        self._done = 0

    def run(self) -> Replayed:
        """Give every engine its events, each as soon as what it follows from has happened."""
        run = self._run
        while self._ready:
            number = next(iter(self._ready))
            del self._ready[number]
            try:
                self._advance(number)
            except _DiffersError as error:
                life = self._lives[number]
                run.difference = Difference(str(error), life.node, life.done)
                return self._whole()
        stuck = {self._lives[number]: noted for number, noted in enumerate(self._next) if noted is not None}
        run.waiting = {life.node: noted.node for life, noted in stuck.items()}
        if stuck and not any(life.record.broken for life in self._lives):
            life, noted = next(iter(stuck.items()))
            name = self._plan.nodes[noted.node].name
            what = f"{name} never does what this event ({Kind(noted.kind).name}) follows from"
            run.difference = Difference(what, life.node, life.done)
        self._on_progress(self._done)
        return self._whole()

    def _whole(self) -> Replayed:
        """What has come of the lives, each node's in their order."""
        self._run.broken = {life.node for life in self._lives if life.record.broken}
        in_order = sorted(self._reports, key=lambda said: said[0].incarnation)
        self._run.reports = [(life.node, report) for life, report in in_order]
        for _, artifact in sorted(self._artifacts, key=lambda made: made[0].incarnation):
            self._run.artifacts[artifact.name] = artifact.data
        return self._run

    def _life(self, node: int, incarnation: int) -> _Life:
        loaded = load_node(self._plan, node, incarnation=incarnation)
        loaded.open()
        self._run.nodes[node : node + 1] = [loaded]
        record = NodeRecord(self._read, self._digest, node, incarnation)
        return _Life(node, incarnation, NodeEngine(self._plan, node, loaded), record)

    def _advance(self, number: int) -> None:
        """Give an engine its events up to the first whose cause has not happened."""
        life = self._lives[number]
        while (noted := self._next[number]) is not None:
            event = self._event(life, noted)
            if event is None:
                return
            for command in life.engine.handle(event, noted.now_s):
                self._obey(life, command)
            life.done += 1
            self._run.events[life.node] += 1
            self._next[number] = next(self._records[number], None)
            self._done += 1
            if self._done % PROGRESS_EVENTS == 0:
                self._on_progress(self._done)

    def _event(self, life: _Life, noted: Noted) -> Event | None:
        """The event that was noted; None if its cause has not happened yet.

        Raises:
            DataError: no engine of this plan can have been given it.
            _DiffersError: it was another one in the run.
        """
        match noted.kind:
            case Kind.MESSAGE_ARRIVED | Kind.STREAM_ENDED:
                return self._arrival(self._stream(noted, life, sends=False), noted)
            case Kind.CREDIT_GRANTED:
                return self._credit(self._stream(noted, life, sends=True), noted.amount)
            case Kind.TASK_FINISHED:
                return self._finished(life, noted)
            case Kind.NODE_LEFT if noted.node < len(self._plan.nodes):
                return NodeLeft(noted.node, ended=bool(noted.amount))
            case Kind.NODE_JOINED if noted.node < len(self._plan.nodes):
                life.peers[noted.node] = noted.amount
                return NodeJoined(noted.node, noted.amount)
            case Kind.TIMER_FIRED if noted.edge < len(self._plan.chains):
                return TimerFired(self._plan.chains[noted.edge].head)
            case Kind.MEASURED if life.record.rates:
                return Measured(life.record.rates.popleft())
            case Kind.STARTED:
                return Started()
            case Kind.STOP_ASKED:
                return StopAsked()
            case Kind.LEAVE_ASKED:
                return LeaveAsked()
            case Kind.GO_ON:
                return GoOn()
            case _:
                raise DataError(what="the record has an event that no engine of its plan can be given", got=noted)

    def _stream(self, noted: Noted, life: _Life, *, sends: bool) -> _Stream:
        source, target = (life.node, noted.node) if sends else (noted.node, life.node)
        stream = StreamId(noted.edge, source, target)
        sources, targets = self._ends.get(noted.edge, _NOBODY)
        if source not in sources or target not in targets or source == target:
            raise DataError(what="the record has an event of a stream that its plan does not have", got=stream)
        return self._between(stream, life)

    def _between(self, stream: StreamId, life: _Life) -> _Stream:
        """A stream with the incarnations of its ends, one of which is `life`."""
        if stream.source == life.node:
            return stream, life.incarnation, life.peers.get(stream.target, 0)
        return stream, life.peers.get(stream.source, 0), life.incarnation

    def _arrival(self, stream: _Stream, noted: Noted) -> Event | None:
        """The next message of a stream, or its end, if it is what arrived in the run."""
        sent = self._sent[stream]
        if not sent:
            return None
        event = sent.popleft()
        unlike = _unlike(event, noted)
        if unlike:
            what = f"what {self._plan.nodes[stream[0].source].name} sends on edge {stream[0].edge} {unlike}"
            raise _DiffersError(what)
        return event

    def _credit(self, stream: _Stream, nbytes: int) -> Event | None:
        # A link may tell of several grants at once, so only their sum is known.
        if self._granted[stream] < nbytes:
            return None
        self._granted[stream] -= nbytes
        return CreditGranted(stream[0], nbytes)

    def _finished(self, life: _Life, noted: Noted) -> Event:
        task = life.tasks.pop(noted.amount, None)
        if task is None:
            what = f"task {noted.amount} had finished, and is not under way in the replay"
            raise _DiffersError(what)
        offered = self._offered.pop(task, None)
        if noted.followed:
            if offered is None:
                what = f"a task of {task.chain!r} was followed at once by another, which is not offered in the replay"
                raise _DiffersError(what)
            self._start(life, offered)
        outcome, error = Outcome(), None
        try:
            outcome = task.run()
        except AkoError as raised:
            error = raised
        if (error is not None) != bool(noted.failed):
            what = f"a task of {task.chain!r} " + (f"fails: {error}" if error else "had failed, and does not fail")
            raise _DiffersError(what)
        return TaskFinished(task, outcome, noted.busy_s, error, followed=bool(noted.followed))

    def _start(self, life: _Life, task: Task) -> None:
        life.tasks[life.commanded] = task
        life.commanded += 1

    def _obey(self, life: _Life, command: Command) -> None:
        match command:
            case RunTask(task):
                self._start(life, task)
            case Offer(behind, task):
                self._offered[behind] = task
            case SendMessage(stream, message, nbytes):
                self._sent[self._between(stream, life)].append(MessageArrived(stream, message, nbytes))
                self._wake(stream.target, life)
            case SendEnd(stream):
                self._sent[self._between(stream, life)].append(StreamEnded(stream))
                self._wake(stream.target, life)
            case GrantCredit(stream, nbytes):
                self._granted[self._between(stream, life)] += nbytes
                self._wake(stream.source, life)
            case Report(Artifact() as artifact):
                self._artifacts.append((life, artifact))
            case Report(OperatorReport() as report):
                self._reports.append((life, report))
            case Failed(error):
                self._run.failures[life.node] = error

    def _wake(self, peer: int, life: _Life) -> None:
        """Have a node look again for what it waits for, as the incarnation that `life` knows."""
        number = self._number.get((peer, life.peers.get(peer, 0)))
        if number is not None:
            self._ready[number] = None


def _unlike(event: MessageArrived | StreamEnded, noted: Noted) -> str:
    """How an event differs from the arrival that was noted; empty if it does not."""
    if isinstance(event, StreamEnded):
        return "" if noted.kind == Kind.STREAM_ENDED else "was a message, and is the end of the stream"
    if noted.kind == Kind.STREAM_ENDED:
        return "was the end of the stream, and is a message"
    if event.nbytes != noted.amount:
        return f"had {noted.amount} bytes, and has {event.nbytes}"
    return "" if checksum(event.message) == noted.checksum else "had other values"
