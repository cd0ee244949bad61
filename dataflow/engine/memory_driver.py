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
    CreditGranted,
    Ended,
    Event,
    Failed,
    GoOn,
    GrantCredit,
    MessageArrived,
    Offer,
    Outcome,
    Report,
    RunTask,
    SendEnd,
    SendMessage,
    SetTimer,
    Started,
    StopAsked,
    StreamEnded,
    Task,
    TaskFinished,
    TimerFired,
)
from dataflow.engine.loading import LoadedNode, load_nodes
from dataflow.engine.node_engine import NodeEngine
from dataflow.errors import AkoError, JobFailedError
from dataflow.operators_api import Artifact
from dataflow.plan.physical import PhysicalPlan
from dataflow.reports import OperatorReport

_IN_VAIN = 8
"""Timers that fire for each node, on average, without any message being sent, before the driver gives up."""


@dataclass
class MemoryRun:
    """A run in memory, finished or stuck.

    Args:
        nodes: the loaded nodes, with their live state.
        reports: (node, report) in the order they came.
        artifacts: files of the job's results by name.
        ended: nodes that have ended.
        deliveries: events handled.
    """

    nodes: list[LoadedNode]
    reports: list[tuple[int, OperatorReport]] = field(default_factory=list)
    artifacts: dict[str, bytes] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    deliveries: int = 0


class MemoryDriver:
    """Runs a plan's engines to their end.

    Args:
        plan: the physical plan.
        order: picks which stream's, node's or task's event comes next; first in, first out if left out.
        on_report: called with (driver, node, report) as reports come; it may call `stop`.
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        *,
        order: np.random.Generator | None = None,
        on_report: Callable[[MemoryDriver, int, OperatorReport], None] | None = None,
    ) -> None:
        self.plan = plan
        self.run = MemoryRun(load_nodes(plan))
        self.engines = [NodeEngine(plan, node.index, self.run.nodes[node.index]) for node in plan.nodes]
        self._order, self._on_report = order, on_report
        self._events: dict[object, deque[tuple[int, Event]]] = {}
        self._offers: dict[Task, Offer] = {}
        self._first: dict[Task, Task] = {}
        self._compute: list[tuple[int, Task]] = []
        self._timers: list[tuple[float, int, str]] = []
        self._now = 0.0
        self._in_vain = 0

    def execute(self) -> MemoryRun:
        """Open every operator, run until every node has ended, and return what came out.

        Raises:
            AkoError: an operator raised.
            JobFailedError: the nodes wait for each other for ever.
        """
        for loaded in self.run.nodes:
            loaded.open()
        for node in range(len(self.engines)):
            self._put(("control", node), node, Started())
        while self._step():
            pass
        waiting = sorted(set(range(len(self.engines))) - self.run.ended)
        if waiting:
            raise JobFailedError(what="nodes wait for each other for ever", got=waiting)
        return self.run

    def stop(self) -> None:
        """Ask every node's sources to end."""
        for node in range(len(self.engines)):
            self._put(("control", node), node, StopAsked())

    def _put(self, queue: object, node: int, event: Event) -> None:
        self._events.setdefault(queue if self._order else None, deque()).append((node, event))

    def _step(self) -> bool:
        """Handle one event, or else run one compute task; whether there was anything."""
        if self._order is not None:
            return self._step_at_random(self._order)
        if self._events:
            self._handle_next(None)
        elif self._compute:
            self._run_task(*self._compute.pop(0))
        else:
            return self._let_time_pass()
        return True

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
        for command in self.engines[node].handle(event, 0.0):
            match command:
                case RunTask(task):
                    self._start_task(node, task)
                case Offer(behind):
                    self._offers[behind] = command
                case SetTimer(chain, after_s):
                    heappush(self._timers, (self._now + after_s, node, chain))
                case SendMessage(stream, message, size):
                    self._in_vain = 0
                    self._put(stream, stream.target, MessageArrived(stream, message, size))
                case SendEnd(stream):
                    self._put(stream, stream.target, StreamEnded(stream))
                case GrantCredit(stream, size):
                    self._put(("credit", stream), stream.source, CreditGranted(stream, size))
                case Report(what):
                    self._report(node, what)
                case GoOn():
                    self._put(("control", node), node, command)
                case Ended():
                    self.run.ended.add(node)
                case Failed(error):
                    raise error

    def _report(self, node: int, what: OperatorReport | Artifact) -> None:
        if isinstance(what, Artifact):
            self.run.artifacts[what.name] = what.data
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
