"""Replay: the engines of a recorded run, given the events of its record again.

Events wait for nothing but their causes: an arrival until the sender's engine has sent the message, credit until the
receiver's has granted it. Time is that of the record. A task's function runs when the engine is about to be told that
it has finished: its inputs were fixed when it started, nobody else touches what it writes until it commits, so no
moment in between makes a difference; and what a broken record leaves unfinished is not done at all.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from dataflow.engine.events import (
    Command,
    CreditGranted,
    Event,
    Failed,
    GoOn,
    GrantCredit,
    Measured,
    MessageArrived,
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
from dataflow.engine.recording import PLAN_FILE, Chunk, Kind, Noted, checksum, chunk_name
from dataflow.errors import AkoError, DataError
from dataflow.graph.logical import canonical_json
from dataflow.graph.routes import reached
from dataflow.operators_api import Artifact
from dataflow.plan.physical import PhysicalPlan, StreamId
from dataflow.reports import OperatorReport, Rates

PROGRESS_EVENTS = 1000
"""Events between two calls of `on_progress`."""

_NOBODY: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())

Read = Callable[[str], bytes | None]
"""Gives the content of an artifact of the recorded run by its name; None if there is none."""


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
        nodes: the loaded nodes, with their live state.
        events: by node, how many events it was given again.
        artifacts: files of the job's results by name.
        reports: (node, report) in the order they came.
        failures: errors with which engines ended, by node.
        broken: nodes whose record breaks off: they were killed, or their last events never left them.
        waiting: by node that could not be given all of its record, the node that it waits for.
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


def recorded_plan(read: Read) -> PhysicalPlan:
    """The plan beside a record, to be compared with: whoever wrote it has chosen the code that it names.

    Args:
        read: gives the record's artifacts.

    Raises:
        DataError: there is no record, or its plan cannot be read.
    """
    data = read(PLAN_FILE)
    if data is None:
        raise DataError(what="the run was not recorded", got=PLAN_FILE, fix="run it with --record")
    try:
        return PhysicalPlan.model_validate_json(data)
    except (ValidationError, AkoError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise DataError(what=f"the plan of the record cannot be read: {why}", where=PLAN_FILE) from error


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
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in report.items()
        if name not in ("node", "time_s")
    }


class _DiffersError(Exception):
    """An event cannot be what the record says."""


class _Replay:
    """A replay under way."""

    def __init__(self, plan: PhysicalPlan, digest: str, read: Read, on_progress: Callable[[int], None]) -> None:
        self._plan, self._digest, self._read, self._on_progress = plan, digest, read, on_progress
        nodes = [load_node(plan, node.index) for node in plan.nodes]
        for loaded in nodes:
            loaded.open()
        self._run = Replayed(plan, nodes, [0] * len(nodes))
        self._engines = [NodeEngine(plan, node, loaded) for node, loaded in enumerate(nodes)]
        self._rates: list[deque[Rates]] = [deque() for _ in nodes]
        self._records = [self._events(node) for node in range(len(nodes))]
        self._next = [next(record, None) for record in self._records]
        self._tasks: list[dict[int, Task]] = [{} for _ in nodes]
        self._commanded = [0] * len(nodes)
        self._offered: dict[Task, Task] = {}
        self._sent: defaultdict[StreamId, deque[MessageArrived | StreamEnded]] = defaultdict(deque)
        self._granted: Counter[StreamId] = Counter()
        members, role = plan.members(), {operator.id: operator.role for operator in plan.graph.operators}
        self._ends = {
            number: (frozenset(members[role[edge.source]]), frozenset(reached(edge.route, members[role[edge.target]])))
            for number, edge in plan.stream_edges().items()
        }
        self._ready = dict.fromkeys(range(len(nodes)))
        self._done = 0

    def run(self) -> Replayed:
        """Give every engine its events, each as soon as what it follows from has happened."""
        run = self._run
        while self._ready:
            node = next(iter(self._ready))
            del self._ready[node]
            try:
                self._advance(node)
            except _DiffersError as error:
                run.difference = Difference(str(error), node, run.events[node])
                return run
        stuck = {node: noted for node, noted in enumerate(self._next) if noted is not None}
        run.waiting = {node: noted.node for node, noted in stuck.items()}
        if stuck and not run.broken:
            node, noted = next(iter(stuck.items()))
            name = self._plan.nodes[noted.node].name
            what = f"{name} never does what this event ({Kind(noted.kind).name}) follows from"
            run.difference = Difference(what, node, run.events[node])
        self._on_progress(self._done)
        return run

    def _advance(self, node: int) -> None:
        """Give an engine its events up to the first whose cause has not happened."""
        engine, run = self._engines[node], self._run
        while (noted := self._next[node]) is not None:
            event = self._event(node, noted)
            if event is None:
                return
            for command in engine.handle(event, noted.now_s):
                self._obey(node, command)
            run.events[node] += 1
            self._next[node] = next(self._records[node], None)
            self._done += 1
            if self._done % PROGRESS_EVENTS == 0:
                self._on_progress(self._done)

    def _events(self, node: int) -> Iterator[Noted]:
        """The events of a node's record."""
        count = 0
        for number in itertools.count():
            name = chunk_name(node, number)
            data = self._read(name)
            if data is None:
                self._run.broken.add(node)
                return
            chunk = Chunk.decode(data, name)
            if chunk.plan != self._digest:
                raise DataError(what="the record is of another plan than the one beside it", where=name)
            if (chunk.node, chunk.first) != (node, count):
                what = f"the chunk is not that of node {node} from event {count} on"
                raise DataError(what, got=f"node {chunk.node}, event {chunk.first}", where=name)
            count += len(chunk)
            self._rates[node] += chunk.measured()
            yield from chunk.events()
            if chunk.last:
                return

    def _event(self, node: int, noted: Noted) -> Event | None:
        """The event that was noted; None if its cause has not happened yet.

        Raises:
            DataError: no engine of this plan can have been given it.
            _DiffersError: it was another one in the run.
        """
        match noted.kind:
            case Kind.MESSAGE_ARRIVED | Kind.STREAM_ENDED:
                return self._arrival(self._stream(noted, noted.node, node), noted)
            case Kind.CREDIT_GRANTED:
                return self._credit(self._stream(noted, node, noted.node), noted.amount)
            case Kind.TASK_FINISHED:
                return self._finished(node, noted)
            case Kind.NODE_LEFT if noted.node < len(self._engines):
                return NodeLeft(noted.node)
            case Kind.MEASURED if self._rates[node]:
                return Measured(self._rates[node].popleft())
            case Kind.TIMER_FIRED if noted.edge < len(self._plan.chains):
                return TimerFired(self._plan.chains[noted.edge].head)
            case Kind.STARTED:
                return Started()
            case Kind.STOP_ASKED:
                return StopAsked()
            case Kind.GO_ON:
                return GoOn()
            case _:
                raise DataError(what="the record has an event that no engine of its plan can be given", got=noted)

    def _stream(self, noted: Noted, source: int, target: int) -> StreamId:
        stream = StreamId(noted.edge, source, target)
        sources, targets = self._ends.get(noted.edge, _NOBODY)
        if source not in sources or target not in targets or source == target:
            raise DataError(what="the record has an event of a stream that its plan does not have", got=stream)
        return stream

    def _arrival(self, stream: StreamId, noted: Noted) -> Event | None:
        """The next message of a stream, or its end, if it is what arrived in the run."""
        sent = self._sent[stream]
        if not sent:
            return None
        event = sent.popleft()
        unlike = _unlike(event, noted)
        if unlike:
            what = f"what {self._plan.nodes[stream.source].name} sends on edge {stream.edge} {unlike}"
            raise _DiffersError(what)
        return event

    def _credit(self, stream: StreamId, nbytes: int) -> Event | None:
        # A link may tell of several grants at once, so only their sum is known.
        if self._granted[stream] < nbytes:
            return None
        self._granted[stream] -= nbytes
        return CreditGranted(stream, nbytes)

    def _finished(self, node: int, noted: Noted) -> Event:
        task = self._tasks[node].pop(noted.amount, None)
        if task is None:
            what = f"task {noted.amount} had finished, and is not under way in the replay"
            raise _DiffersError(what)
        offered = self._offered.pop(task, None)
        if noted.followed:
            if offered is None:
                what = f"a task of {task.chain!r} was followed at once by another, which is not offered in the replay"
                raise _DiffersError(what)
            self._start(node, offered)
        outcome, error = Outcome(), None
        try:
            outcome = task.run()
        except AkoError as raised:
            error = raised
        if (error is not None) != bool(noted.failed):
            what = f"a task of {task.chain!r} " + (f"fails: {error}" if error else "had failed, and does not fail")
            raise _DiffersError(what)
        return TaskFinished(task, outcome, noted.busy_s, error, followed=bool(noted.followed))

    def _start(self, node: int, task: Task) -> None:
        self._tasks[node][self._commanded[node]] = task
        self._commanded[node] += 1

    def _obey(self, node: int, command: Command) -> None:
        run = self._run
        match command:
            case RunTask(task):
                self._start(node, task)
            case Offer(behind, task):
                self._offered[behind] = task
            case SendMessage(stream, message, nbytes):
                self._sent[stream].append(MessageArrived(stream, message, nbytes))
                self._ready[stream.target] = None
            case SendEnd(stream):
                self._sent[stream].append(StreamEnded(stream))
                self._ready[stream.target] = None
            case GrantCredit(stream, nbytes):
                self._granted[stream] += nbytes
                self._ready[stream.source] = None
            case Report(Artifact() as artifact):
                run.artifacts[artifact.name] = artifact.data
            case Report(OperatorReport() as report):
                run.reports.append((node, report))
            case Failed(error):
                run.failures[node] = error


def _unlike(event: MessageArrived | StreamEnded, noted: Noted) -> str:
    """How an event differs from the arrival that was noted; empty if it does not."""
    if isinstance(event, StreamEnded):
        return "" if noted.kind == Kind.STREAM_ENDED else "was a message, and is the end of the stream"
    if noted.kind == Kind.STREAM_ENDED:
        return "was the end of the stream, and is a message"
    if event.nbytes != noted.amount:
        return f"had {noted.amount} bytes, and has {event.nbytes}"
    return "" if checksum(event.message) == noted.checksum else "had other values"
