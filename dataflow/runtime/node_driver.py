"""The cluster's driver of one node: a `NodeEngine` with its task pools, and links to the other nodes.

Invariant: everything but the engine and its tasks happens on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from dataflow.clock import Clock
from dataflow.engine.events import (
    Adjust,
    Command,
    CreditGranted,
    Ended,
    Failed,
    GrantCredit,
    LeaveAsked,
    Measured,
    MessageArrived,
    NodeJoined,
    NodeLeft,
    Report,
    SendEnd,
    SendMessage,
    SetTimer,
    Snapshot,
    Started,
    StopAsked,
    StreamEnded,
    TimerFired,
)
from dataflow.engine.loading import LoadedNode, load_node, message_types
from dataflow.engine.membership import Members, changes
from dataflow.engine.node_engine import NodeEngine
from dataflow.engine.recording import RecordedEngine
from dataflow.engine.resumption import Resumption, resume
from dataflow.errors import AkoError, WireError
from dataflow.operators_api import Adjustment, Artifact
from dataflow.plan.physical import PhysicalPlan, StreamId
from dataflow.reports import NodeStatistics, OperatorReport, Rates
from dataflow.runtime.engine_runner import EngineRunner
from dataflow.runtime.trouble import LinkBroken, Paused, Trouble
from dataflow.runtime.vitals import Vitals
from dataflow.runtime.watchdog import TaskBoard
from dataflow.transport.base import Network
from dataflow.transport.link_options import DEFAULT_OPTIONS
from dataflow.transport.links import Links

BEAT_S = 0.2
"""Seconds between two beats of the event loop, which show that the process runs."""

OPTIONS = replace(DEFAULT_OPTIONS, patience_s=1.9)
"""Of the links: one that is down for two seconds, with what it takes to find out, costs one of its nodes its place."""


class NodeDriver:
    """Runs one node of a job: `prepare`, `connect`, `start`, `wait`, `close`, in this order, all on one event loop.

    Args:
        plan: the physical plan.
        node: this node's number.
        job: the job's id; peers of another job are refused.
        incarnation: how often this node has been started for the job, from 0.
        network: connects nodes.
        clock: for measurements.
        report: told of reports, artifacts, snapshots and trouble, on the event loop.
        board: told whenever anything happens, and what every thread does.
        cores: processors that the node may use.
        watchdog_s: seconds that any task may run; None: as long as it likes.
        bundle_digest: of the code that travels with the job; empty if none does.
        record: note the events that the engine is given; see `dataflow.engine.recording`.
        resumption: what the node takes from a checkpoint; None if it begins anew.
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
        report: Callable[[OperatorReport | Artifact | Snapshot | Trouble], None],
        board: TaskBoard,
        cores: int = 1,
        watchdog_s: float | None = None,
        bundle_digest: str = "",
        record: bool = False,
        resumption: Resumption | None = None,
    ) -> None:
        self._plan, self._node, self._job, self._incarnation = plan, node, job, incarnation
        self._bundle_digest, self._record, self._resumption = bundle_digest, record, resumption
        self._network, self._clock, self._report, self._board = network, clock, report, board
        self._cores, self._watchdog_s = cores, watchdog_s
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._links: Links | None = None
        self._runner: EngineRunner | None = None
        self._vitals: Vitals | None = None
        self._minds_rates = False
        self._beating: asyncio.Task[None] | None = None
        self._members: Members | None = None
        self._heard = 0
        self._absent: set[int] = set()
        self._meeting, self._changed = asyncio.Lock(), asyncio.Event()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.loaded: LoadedNode | None = None

    async def prepare(self, files: Sequence[bytes] = ()) -> str:
        """Import and open the operators, then listen; returns the address at which peers reach this node.

        Args:
            files: contents of the files that `resumption` names.

        Raises:
            AkoError: an operator cannot be made or opened, or the state does not fit the checkpoint.
        """
        self.loaded = await self._loop.run_in_executor(None, self._load, files)
        digest = self._plan.digest()
        engine = (
            RecordedEngine(self._plan, self._node, self.loaded, digest=digest, incarnation=self._incarnation)
            if self._record
            else NodeEngine(self._plan, self._node, self.loaded)
        )
        self._minds_rates = engine.minds_rates
        self._board.watch(self._watchdog_s, {chain.head: chain.operators for chain in self._plan.chains_on(self._node)})
        self._runner = runner = EngineRunner(
            engine,
            self._plan.nodes[self._node],
            clock=self._clock,
            carry_out=self._carry_out,
            board=self._board,
            cores=self._cores,
            on_paused=lambda number: self._report(Paused(number)),
        )
        self._beating = asyncio.ensure_future(self._beat(runner))
        self._links = Links(
            self._network,
            node=self._node,
            job=self._job,
            plan_hash=f"{self._plan.on_any_machines().digest()}+{self._bundle_digest}",
            incarnation=self._incarnation,
            edge_types=message_types(self._plan),
            on_message=lambda source, edge, message, size: runner.feed(
                MessageArrived(StreamId(edge, source, self._node), message, size)
            ),
            on_end=lambda source, edge: runner.feed(StreamEnded(StreamId(edge, source, self._node))),
            on_credit=lambda peer, edge, size: runner.feed(CreditGranted(StreamId(edge, self._node, peer), size)),
            on_lost=self._lost,
            rng=np.random.default_rng(np.random.SeedSequence(self._plan.seed, spawn_key=(1, self._node))),
            options=replace(OPTIONS, ack_nbytes=min(OPTIONS.ack_nbytes, self._plan.window_nbytes // 2)),
            clock=self._clock,
        )
        self._vitals = Vitals(self._plan, self._node, runner, self._links, self._measured)
        return await self._links.listen()

    @property
    def epoch(self) -> int:
        """Number of the newest membership whose newcomers the engine has heard of before it ended."""
        return self._heard

    async def connect(self, members: Members) -> None:
        """Connect to every member that this node sends to, or to those of a later membership.

        Of a link that cannot be made the master is told, as of any that breaks; it decides whose end this is.

        Args:
            members: the membership.

        Raises:
            AuthError: a member refuses the job's token.
        """
        assert self._links is not None
        await self.meet(members)
        while True:
            self._changed.clear()
            try:
                await self._links.connect(self._receivers(self._members or members))
            except WireError:
                await self._changed.wait()
            else:
                return

    def resume(self, pause: int) -> None:
        """Go on after the pause of this number: the master has heard of it, and this node is a member still."""
        assert self._runner is not None
        self._runner.resume(pause)

    async def meet(self, members: Members) -> None:
        """Take in a membership: nobody else is talked to, and who has joined is connected to.

        What the engine has said of the time before is done before anybody joins, so that nothing of that reaches
        another incarnation than it was meant for.
        """
        async with self._meeting:
            await self._meet(members)

    async def _meet(self, members: Members) -> None:
        assert self._links is not None
        assert self._runner is not None
        if self._members is not None and members.epoch <= self._members.epoch:
            return
        now = changes(self._members, members, self._node)
        if not now.joined:
            self._links.set_membership(members.epoch, members.incarnations)
        for peer in now.left:
            self._runner.feed(NodeLeft(peer, ended=peer in members.ended))
        if now.joined:
            await self._runner.settled()
            self._links.set_membership(members.epoch, members.incarnations)
        if self._members is None:
            self._absent = set(range(len(self._plan.nodes))) - {self._node} - members.addresses.keys()
        self._members = members
        self._links.open(self._receivers(members))
        for peer, incarnation in now.joined.items():
            if peer in self._absent:  # before the start: else it would seem to have been there from the first on
                self._absent.remove(peer)
                self._runner.feed(NodeLeft(peer))
            self._runner.feed(NodeJoined(peer, incarnation))
        self._changed.set()
        if now.joined:
            await self._runner.settled()
        if not self._ended.done():  # else it may have ended before it heard of them
            self._heard = members.epoch

    def start(self) -> None:
        """Begin: every member is ready."""
        assert self._runner is not None
        assert self._vitals is not None
        self._vitals.start()
        self._runner.feed(Started())
        ended = self._members.ended if self._members else ()
        for peer in sorted(self._absent):
            self._runner.feed(NodeLeft(peer, ended=peer in ended))
        self._absent.clear()

    def stop(self) -> None:
        """Let the sources end; everything under way is finished."""
        assert self._runner is not None
        self._runner.feed(StopAsked())

    def leave(self) -> None:
        """Give the others all that was begun, and end without waiting for them."""
        assert self._runner is not None
        self._runner.feed(LeaveAsked())

    def adjust(self, adjustment: Adjustment) -> None:
        """Have the operators hear of a change of the running job."""
        assert self._runner is not None
        self._runner.feed(Adjust(adjustment))

    async def wait(self) -> NodeStatistics:
        """Return once every operator has ended and all that was sent has arrived.

        Raises:
            AkoError: what failed the node.
        """
        await self._ended
        assert self._links is not None
        while True:
            self._changed.clear()
            try:
                await self._links.drain()
            except WireError:
                await self._changed.wait()  # the master has heard of the link, and decides whose end this is
            else:
                return await self.statistics()

    async def statistics(self) -> NodeStatistics:
        """What has been counted and measured so far."""
        return await self._vitals.statistics() if self._vitals else NodeStatistics(self._node)

    async def close(self) -> None:
        """Free threads and links. The network is its owner's to close."""
        if self._beating is not None:
            self._beating.cancel()
        for timer in self._timers.values():
            timer.cancel()
        if self._vitals is not None:
            self._vitals.stop()
        if self._runner is not None:
            self._runner.close()
        if self._links is not None:
            await self._links.close()
        if self._ended.done() and not self._ended.cancelled():
            self._ended.exception()

    def _measured(self, rates: Rates) -> None:
        assert self._runner is not None
        if self._minds_rates:
            self._runner.feed(Measured(rates))

    def _timer_fired(self, chain: str) -> None:
        assert self._runner is not None
        if not self._ended.done():
            self._runner.feed(TimerFired(chain))

    def _load(self, files: Sequence[bytes]) -> LoadedNode:
        loaded = load_node(self._plan, self._node, incarnation=self._incarnation)
        if self._resumption is not None:
            loaded = resume(loaded, self._plan, self._node, self._resumption, files)
        loaded.open()
        return loaded

    async def _beat(self, runner: EngineRunner) -> None:
        while True:
            runner.beat()
            await asyncio.sleep(BEAT_S)

    def _receivers(self, members: Members) -> dict[int, str]:
        """Addresses of the members that this node sends to."""
        receivers = self._plan.links_from(self._node)
        return {peer: address for peer, address in members.addresses.items() if peer in receivers}

    def _lost(self, peer: int, reason: str) -> None:
        name = self._plan.nodes[peer].name
        # Links with other incarnations than those of the membership have been dropped, and tell nothing.
        incarnation = self._members.incarnations.get(peer, 0) if self._members else 0
        self._report(LinkBroken(peer, f"the link to node {name} is lost: {reason}", incarnation))

    def _carry_out(self, command: Command) -> None:
        assert self._links is not None
        if self._ended.done():
            return
        try:
            match command:
                case SendMessage(stream, message):
                    self._links.send(stream.target, stream.edge, message)
                case SendEnd(stream):
                    self._links.send_end(stream.target, stream.edge)
                case GrantCredit(stream, nbytes):
                    self._links.grant(stream.source, stream.edge, nbytes)
                case SetTimer(chain, after_s):
                    self._timers[chain] = self._loop.call_later(after_s, self._timer_fired, chain)
                case Report(what):
                    self._report(what)
                case Failed(error):
                    self._fail(error)
                case Ended():
                    self._ended.set_result(None)
        except AkoError as error:
            self._fail(error)

    def _fail(self, error: AkoError) -> None:
        assert self._runner is not None
        self._runner.halt()
        if not self._ended.done():
            self._ended.set_exception(error)
