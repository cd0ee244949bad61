"""The cluster's driver of one node: a `NodeEngine` on an event loop, with task pools and links.

Invariant: the engine is only touched on the event loop, by one event at a time.

Tasks run on threads, unless earlier ones of their chain and role have shown that they are short: then handing them to a
thread and back costs more than they do, and they run on the loop. Of tasks that follow from one another, only so many
run there in a row: the loop must come to the network and to the master's commands.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np

from dataflow.clock import Clock
from dataflow.engine.events import (
    Command,
    CreditGranted,
    Ended,
    Event,
    Failed,
    GrantCredit,
    MessageArrived,
    Report,
    RunTask,
    SendEnd,
    SendMessage,
    Started,
    StopAsked,
    StreamEnded,
    Task,
    TaskFinished,
)
from dataflow.engine.loading import LoadedNode, load_node, message_types
from dataflow.engine.node_engine import NodeEngine
from dataflow.errors import AkoError, OperatorError, WireError
from dataflow.message import Message
from dataflow.operators_api import Artifact
from dataflow.plan.physical import PhysicalPlan, StreamId
from dataflow.reports import NodeStatistics, OperatorReport
from dataflow.runtime.pools import TaskPool, run_task
from dataflow.transport.base import Network
from dataflow.transport.links import Links

SHORT_S = 0.0002
"""Tasks of a chain and role that take less than this on average run on the loop, in seconds."""

IN_A_ROW = 32
"""Short tasks that run on the loop before it turns to anything else; the next one goes to its pool."""

NICENESS = 5
"""Compute threads stand back for the event loop, or messages would wait for them where nodes share cores."""

_MEMORY = 0.9
"""Weight of the past in that average."""


class NodeDriver:
    """Runs one node of a job: `prepare`, `connect`, `start`, `wait`, `close`, in this order, all on one event loop.

    Args:
        plan: the physical plan.
        node: this node's number.
        job: the job's id; peers of another job are refused.
        incarnation: how often this node has been started for the job, from 0.
        network: connects nodes.
        clock: for measurements.
        report: told of reports and artifacts, on the event loop.
        progress: told whenever anything happened.
        bundle_digest: of the code that travels with the job; empty if none does.
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        node: int,
        *,
        job: str,
        incarnation: int,
        network: Network,
        clock: Clock,
        report: Callable[[OperatorReport | Artifact], None],
        progress: Callable[[], None],
        bundle_digest: str = "",
    ) -> None:
        self._plan, self._node, self._job, self._incarnation = plan, node, job, incarnation
        self._bundle_digest = bundle_digest
        self._network, self._clock, self._report, self._progress = network, clock, report, progress
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._pools: dict[str, TaskPool] = {}
        self._typical_s: dict[tuple[str, str], float] = {}
        self._pending: deque[Event] = deque()
        self._in_a_row = 0
        self._links: Links | None = None
        self._engine: NodeEngine | None = None
        self.loaded: LoadedNode | None = None

    async def prepare(self) -> str:
        """Import and open the operators, then listen; returns the address at which peers reach this node.

        Raises:
            AkoError: an operator cannot be made or opened.
        """
        self.loaded = await self._loop.run_in_executor(None, self._load)
        plan = self._plan.nodes[self._node]
        self._pools = {
            "compute": TaskPool("compute", plan.compute_tasks, self._clock, self._task_done, niceness=NICENESS),
            "network": TaskPool("network", plan.network_tasks, self._clock, self._task_done),
        }
        self._engine = NodeEngine(self._plan, self._node, self.loaded)
        self._links = Links(
            self._network,
            node=self._node,
            job=self._job,
            plan_hash=f"{self._plan.digest()}+{self._bundle_digest}",
            incarnation=self._incarnation,
            edge_types=message_types(self._plan),
            on_message=self._message,
            on_end=lambda source, edge: self._handle(StreamEnded(StreamId(edge, source, self._node))),
            on_credit=lambda peer, edge, size: self._handle(CreditGranted(StreamId(edge, self._node, peer), size)),
            on_lost=self._lost,
            rng=np.random.default_rng(np.random.SeedSequence(self._plan.seed, spawn_key=(1, self._node))),
            clock=self._clock,
        )
        return await self._links.listen()

    async def connect(self, addresses: Mapping[int, str]) -> None:
        """Connect to every node that this one sends to.

        Args:
            addresses: of all nodes, by number.

        Raises:
            WireError: a node cannot be reached or refuses.
        """
        assert self._links is not None
        await self._links.connect({peer: addresses[peer] for peer in self._plan.links_from(self._node)})

    def start(self) -> None:
        """Begin: every node is ready."""
        self._handle(Started())

    def stop(self) -> None:
        """Let the sources end; everything under way is finished."""
        self._handle(StopAsked())

    async def wait(self) -> NodeStatistics:
        """Return once every operator has ended and all that was sent has arrived.

        Raises:
            AkoError: what failed the node.
        """
        await self._ended
        assert self._links is not None
        await self._links.drain()
        return self.statistics()

    def statistics(self) -> NodeStatistics:
        """What the engine has counted so far."""
        return self._engine.statistics() if self._engine else NodeStatistics(self._node)

    async def close(self) -> None:
        """Free threads and links. The network is its owner's to close."""
        for pool in self._pools.values():
            pool.close()
        if self._links is not None:
            await self._links.close()
        if self._ended.done() and not self._ended.cancelled():
            self._ended.exception()

    def _load(self) -> LoadedNode:
        loaded = load_node(self._plan, self._node, incarnation=self._incarnation)
        loaded.open()
        return loaded

    def _message(self, source: int, edge: int, message: Message, nbytes: int) -> None:
        self._handle(MessageArrived(StreamId(edge, source, self._node), message, nbytes))

    def _lost(self, peer: int, reason: str) -> None:
        self._fail(
            WireError(
                what=f"the link to node {self._plan.nodes[peer].name} is lost: {reason}",
                where=f"node {self._plan.nodes[self._node].name}",
            )
        )

    def _task_done(self, event: TaskFinished) -> None:
        """Hand an outcome to the loop; called on a pool's thread, perhaps after the loop has ended."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task_came_back, event)

    def _task_came_back(self, event: TaskFinished) -> None:
        self._handle(self._measured(event))

    def _handle(self, event: Event) -> None:
        """Have the engine take in an event, and those that follow from it at once."""
        self._pending.append(event)
        if len(self._pending) > 1:
            return  # called from within the loop below, which will come to it
        self._progress()
        self._in_a_row = 0
        while self._pending:
            if self._engine is not None and not self._ended.done():
                self._take_in(self._engine, self._pending[0])
            self._pending.popleft()

    def _take_in(self, engine: NodeEngine, event: Event) -> None:
        try:
            for command in engine.handle(event, self._clock.now()):
                self._carry_out(command)
        except AkoError as error:
            self._fail(error)
        except Exception as error:  # the event loop would drop it, and the job hang
            what = f"the engine of node {self._plan.nodes[self._node].name} broke: {error!r}"
            failure = OperatorError(what, fix="this is a defect: please report it with the job's log")
            failure.__cause__ = error
            self._fail(failure)

    def _carry_out(self, command: Command) -> None:
        assert self._links is not None
        match command:
            case RunTask(task):
                self._run(task)
            case SendMessage(stream, message):
                self._links.send(stream.target, stream.edge, message)
            case SendEnd(stream):
                self._links.send_end(stream.target, stream.edge)
            case GrantCredit(stream, nbytes):
                self._links.grant(stream.source, stream.edge, nbytes)
            case Report(what):
                self._report(what)
            case Failed(error):
                self._fail(error)
            case Ended():
                self._ended.set_result(None)

    def _run(self, task: Task) -> None:
        short = self._typical_s.get((task.chain, task.role), SHORT_S) < SHORT_S
        if short and self._in_a_row < IN_A_ROW:
            self._in_a_row += 1
            self._pending.append(self._measured(run_task(task, self._clock)))
        else:
            self._pools[task.pool].submit(task)

    def _measured(self, event: TaskFinished) -> TaskFinished:
        key = (event.task.chain, event.task.role)
        known = self._typical_s.get(key, event.busy_s)
        self._typical_s[key] = _MEMORY * known + (1 - _MEMORY) * event.busy_s
        return event

    def _fail(self, error: AkoError) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)
