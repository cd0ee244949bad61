"""The memory driver: all nodes of a plan in one thread, first in first out, taking no time.

Time passes, from timer to timer, only if there is nothing else to do. Everything that is not compute-pool work is done
before the next compute task, so a plan without choices left by asynchrony always runs the same way. An `order` makes
those choices at random instead, to test that they do not matter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from dataflow.engine.events import (
    Adjust,
    Command,
    CreditGranted,
    Ended,
    Event,
    Failed,
    GoOn,
    GrantCredit,
    LeaveAsked,
    MessageArrived,
    NodeJoined,
    NodeLeft,
    Offer,
    Outcome,
    Report,
    RunTask,
    SendEnd,
    SendMessage,
    SetTimer,
    Snapshot,
    Started,
    StopAsked,
    StreamEnded,
    Task,
    TaskFinished,
    TimerFired,
)
from dataflow.engine.loading import LoadedNode, load_node, load_nodes
from dataflow.engine.node_engine import NodeEngine
from dataflow.errors import AkoError, BeginAnewError, JobFailedError
from dataflow.operators_api import Adjustment, Artifact
from dataflow.plan.physical import PhysicalPlan
from dataflow.reports import OperatorReport

_IN_VAIN = 8
"""Timers that fire for each node, on average, without any message being sent, before the driver gives up."""


@dataclass
class MemoryRun:
    """A run in memory, finished or stuck.

    Args:
        nodes: the loaded nodes, with their live state; of one that joined again, its last incarnation.
        reports: (node, report) in the order they came.
        artifacts: files of the job's results by name.
        snapshots: what nodes have kept of themselves, in the order they came.
        ended: nodes that have ended.
        buried: nodes that have died, or left by request, and not joined again.
        deliveries: events handled.
    """

    nodes: list[LoadedNode]
    reports: list[tuple[int, OperatorReport]] = field(default_factory=list)
    artifacts: dict[str, bytes] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    buried: set[int] = field(default_factory=set)
    deliveries: int = 0


class MemoryDriver:
    """Runs a plan's engines to their end.

    Args:
        plan: the physical plan.
        order: picks which stream's, node's or task's event comes next; first in, first out if left out.
        on_report: called with (driver, node, report) as reports come; it may call `stop`, `adjust`, `bury`,
            `leave` and `join`.
        nodes: the loaded nodes, if they are not to be loaded here.
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        *,
        order: np.random.Generator | None = None,
        on_report: Callable[[MemoryDriver, int, OperatorReport], None] | None = None,
        nodes: list[LoadedNode] | None = None,
    ) -> None:
        self.plan = plan
        self.run = MemoryRun(load_nodes(plan) if nodes is None else nodes)
        self.engines = [NodeEngine(plan, node.index, self.run.nodes[node.index]) for node in plan.nodes]
        self.incarnations = [0] * len(self.engines)
        self._order, self._on_report = order, on_report
        self._events: dict[object, deque[tuple[int, Event]]] = {}
        self._offers: dict[Task, Offer] = {}
        self._first: dict[Task, Task] = {}
        self._compute: list[tuple[int, Task]] = []
        everybody = range(len(self.engines))
        self._open = {(node, other) for node in everybody for other in everybody}
        self._unmet: dict[int, set[int]] = {}
        self._leaving: set[int] = set()
        self._timers: list[tuple[float, int, str]] = []
        self._now = 0.0
        self._in_vain = 0

    def execute(self) -> MemoryRun:
        """Open every operator, run until every node that is not vacant or buried has ended, and return what came out.

        Raises:
            AkoError: an operator raised; not a `BeginAnewError`, of which its node dies.
            JobFailedError: the nodes wait for each other for ever.
        """
        for loaded in self.run.nodes:
            loaded.open()
        self.run.buried.update(self.plan.vacant)
        self._open = {link for link in self._open if not self.run.buried.intersection(link)}
        for node in sorted(self._alive()):
            self._put(("control", node), node, Started())
            for vacant in self.plan.vacant:
                self._put(("control", node), node, NodeLeft(vacant))
        while self._step():
            pass
        waiting = sorted(set(range(len(self.engines))) - self.run.ended - self.run.buried)
        if waiting:
            raise JobFailedError(what="nodes wait for each other for ever", got=waiting)
        return self.run

    def stop(self) -> None:
        """Ask every node's sources to end."""
        for node in range(len(self.engines)):
            self._put(("control", node), node, StopAsked())

    def adjust(self, adjustment: Adjustment) -> None:
        """Have every node that has not ended hear of a change of the running job."""
        for node in sorted(self._alive()):
            self._put(("control", node), node, Adjust(adjustment))

    def bury(self, node: int) -> None:
        """Let a node die: what is under way from it or to it is lost, and the others are told that it has left."""
        self._leaving.discard(node)
        self.run.buried.add(node)
        self.run.ended.discard(node)
        self._compute = [(at, task) for at, task in self._compute if at != node]
        for queue, events in list(self._events.items()):
            kept = deque((at, event) for at, event in events if at != node and _sender(event) != node)
            self._events[queue] = kept
            if not kept:
                del self._events[queue]
        self._open = {link for link in self._open if node not in link}
        for unmet in self._unmet.values():
            unmet.discard(node)
        for other in self._alive():
            self._put(("control", other), other, NodeLeft(node))
        self._start_joined()

    def leave(self, node: int) -> None:
        """Have a node leave: it gives the others all that it has begun, and then they are told that it has left."""
        self._leaving.add(node)
        self._put(("control", node), node, LeaveAsked())

    def join(self, node: int) -> None:
        """Have a node that was buried join again, with fresh state, as its next incarnation.

        It starts once the others have been told; those that are buried have left as it sees it, or are through.

        Raises:
            AkoError: an operator cannot be made or opened.
        """
        self.incarnations[node] += 1
        self.run.nodes[node] = loaded = load_node(self.plan, node, incarnation=self.incarnations[node])
        loaded.open()
        self.engines[node] = NodeEngine(self.plan, node, loaded)
        self._unmet[node] = self._alive()
        self.run.buried.discard(node)
        for other in self._unmet[node]:
            self._open.add((node, other))
            if other in self._unmet and (other, node) not in self._open:
                # Before it has begun: else it would take this one for one that has been there from the first on.
                self._put(("control", other), other, NodeLeft(node))
            self._put(("control", other), other, NodeJoined(node, self.incarnations[node]))
        self._start_joined()

    def _start_joined(self) -> None:
        """Start nodes that have joined and that everybody knows of."""
        for node in [node for node, unmet in self._unmet.items() if not unmet]:
            del self._unmet[node]
            if node in self.run.buried:
                continue
            self._put(("control", node), node, Started())
            for other in range(len(self.engines)):
                hears = node in self._unmet.get(other, ())  # of its joining, before this
                if other != node and (node, other) not in self._open and not hears:
                    self._put(("control", node), node, NodeLeft(other, ended=other in self.run.ended))

    def _alive(self) -> set[int]:
        return set(range(len(self.engines))) - self.run.ended - self.run.buried

    def _put(self, queue: object, node: int, event: Event) -> None:
        self._events.setdefault(queue if self._order else None, deque()).append((node, event))

    def _step(self) -> bool:
        """Handle one event, or else run one compute task; whether there was anything."""
        self._let_leave()
        if self._order is not None:
            return self._step_at_random(self._order)
        if self._events:
            self._handle_next(None)
        elif self._compute:
            self._run_task(*self._compute.pop(0))
        else:
            return self._let_time_pass()
        return True

    def _let_leave(self) -> None:
        """Part with nodes that leave, once they have ended and all that they have sent has arrived."""
        for node in self._leaving & self.run.ended:
            if not any(_sender(event) == node for events in self._events.values() for _, event in events):
                self.bury(node)

    def _let_time_pass(self) -> bool:
        """Fire the next timer; False if there is none, or several rounds of all of them have changed nothing."""
        if not self._timers or self._in_vain > _IN_VAIN * len(self.engines):
            return False
        self._in_vain += 1
        self._now, node, chain = heappop(self._timers)
        self._put(("timer", node), node, TimerFired(chain))
        return True

    def _step_at_random(self, order: np.random.Generator) -> bool:
        queues = list(self._events)
        if not queues and not self._compute:
            return self._let_time_pass()
        pick = int(order.integers(len(queues) + len(self._compute)))
        if pick < len(queues):
            self._handle_next(queues[pick])
        else:
            self._run_task(*self._compute.pop(pick - len(queues)))
        return True

    def _handle_next(self, queue: object) -> None:
        events = self._events[queue]
        node, event = events.popleft()
        if not events:
            del self._events[queue]
        self._handle(node, event)

    def _handle(self, node: int, event: Event) -> None:
        self.run.deliveries += 1
        engine = self.engines[node]
        commands = engine.handle(event, 0.0)
        # Else it has died again meanwhile, and may have joined again.
        if isinstance(event, NodeJoined) and event.node in self._unmet and self._is_newest(event):
            self._open.add((node, event.node))
            self._unmet[event.node].discard(node)
            self._start_joined()
        for command in commands:
            if node in self.run.buried or engine is not self.engines[node]:  # it died as it reported
                return
            self._carry_out(node, command)

    def _is_newest(self, event: NodeJoined) -> bool:
        return event.incarnation == self.incarnations[event.node]

    def _carry_out(self, node: int, command: Command) -> None:
        match command:
            case RunTask(task):
                self._start_task(node, task)
            case Offer(behind):
                self._offers[behind] = command
            case SetTimer(chain, after_s):
                heappush(self._timers, (self._now + after_s, node, chain))
            case SendMessage() | SendEnd():
                self._send(node, command)
            case GrantCredit(stream, size) if (node, stream.source) in self._open:
                self._put(("credit", stream), stream.source, CreditGranted(stream, size))
            case Report(what):
                self._report(node, what)
            case GoOn():
                self._put(("control", node), node, command)
            case Ended():
                self.run.ended.add(node)
            case Failed(BeginAnewError()):
                self.bury(node)
            case Failed(error):
                raise error

    def _send(self, node: int, command: SendMessage | SendEnd) -> None:
        stream = command.stream
        if (node, stream.target) not in self._open:
            return
        if isinstance(command, SendEnd):
            self._put(stream, stream.target, StreamEnded(stream))
        else:
            self._in_vain = 0
            self._put(stream, stream.target, MessageArrived(stream, command.message, command.nbytes))

    def _report(self, node: int, what: OperatorReport | Artifact | Snapshot) -> None:
        if isinstance(what, Artifact):
            self.run.artifacts[what.name] = what.data
            return
        if isinstance(what, Snapshot):
            self.run.snapshots.append(what)
            return
        self.run.reports.append((node, what))
        if self._on_report:
            self._on_report(self, node, what)

    def _start_task(self, node: int, task: Task) -> None:
        if task.pool == "compute":
            self._compute.append((node, task))
        else:
            self._run_task(node, task)

    def _run_task(self, node: int, task: Task) -> None:
        offer, queue = self._offers.pop(task, None), self._first.pop(task, task)
        try:
            event = TaskFinished(task, task.run())
            if offer and self._order and self._order.integers(2) and offer.ready():
                event.followed = True
                self._first[offer.task] = queue  # what follows another is not heard of before
                self._start_task(node, offer.task)
        except AkoError as error:
            event = TaskFinished(task, Outcome(), error=error)
        self._put(queue, node, event)


def _sender(event: Event) -> int | None:
    """The node that an event has come from; None if that is no other one."""
    if isinstance(event, MessageArrived | StreamEnded):
        return event.stream.source
    return event.stream.target if isinstance(event, CreditGranted) else None
