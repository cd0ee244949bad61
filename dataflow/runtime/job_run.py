"""A job that has not ended, in the master: its coordinator's commands carried out, its events kept."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Coroutine

from dataflow.clock import Clock
from dataflow.engine import coordinator as co
from dataflow.engine.checkpoints import EVERY_KIND, resumption
from dataflow.errors import AkoError
from dataflow.observe.condition import RECENT, MeasuredJob
from dataflow.plan.compile import compile_graph
from dataflow.plan.job import JobSpec, Resume
from dataflow.plan.physical import PhysicalPlan
from dataflow.runtime.agent_session import AgentSession
from dataflow.runtime.bundle import Bundle
from dataflow.runtime.checkpoint_keeper import CheckpointKeeper
from dataflow.runtime.checkpoint_store import contents, load_manifest, newest_whole
from dataflow.runtime.resuming import checkpoints_of, keeping, resumed_folder
from dataflow.runtime.store import Store
from dataflow.runtime.wire import CHUNK_NBYTES, statistics_from_wire
from dataflow.state import StateKind
from dataflow.transport.generated import control_pb2 as pb

_CLOSE_S = 5.0
"""Seconds a job process that has ended is given to leave on its own."""

_BACKLOG = 64
"""Messages that may wait for an agent before it is sent more of a checkpoint."""

_BACKLOG_S = 0.005


class Bell:
    """Wakes everybody who waits for news, any number of times."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake all who hold a ticket."""
        self._event.set()
        self._event = asyncio.Event()

    def ticket(self) -> asyncio.Event:
        """Take it before looking, then wait for it: no news is missed in between."""
        return self._event


class JobRun:
    """Drives one job.

    Args:
        status: where it is; changed in place and kept in the store.
        spec: what was submitted.
        bundle: the user's code.
        store: keeps its events.
        clock: the clock.
        deadlines: see `Deadlines`.

    Attributes:
        bell: rings when there is news for those who watch or read logs.
        sessions: the agents it was placed on, by node number.
        live: newest statistics of each running node and how many have come, for those who watch.
        recent: the newest few statistics of each node, oldest first.
    """

    def __init__(
        self, status: pb.JobStatus, spec: JobSpec, bundle: Bundle, store: Store, clock: Clock, deadlines: co.Deadlines
    ) -> None:
        self.status, self.spec, self.bell = status, spec, Bell()
        self.sessions: tuple[AgentSession, ...] = ()
        self.live: dict[int, tuple[int, pb.NodeStatistics]] = {}
        self.recent: dict[int, deque[pb.NodeStatistics]] = {}
        self.next_event = store.event_count(status.job)
        self._bundle, self._store, self._clock = bundle, store, clock
        self._coordinator = co.JobCoordinator(spec.nodes, spec.stop, deadlines, state=co.JobState(status.state))
        self._plan: PhysicalPlan | None = None
        self._token = secrets.token_urlsafe(32)
        self._timer: asyncio.TimerHandle | None = None
        self._keeper: CheckpointKeeper | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def id(self) -> str:
        """The job's id."""
        return self.status.job

    @property
    def waiting(self) -> bool:
        """Whether it waits for nodes."""
        return self._coordinator.state in (co.JobState.SUBMITTED, co.JobState.PENDING)

    @property
    def ended(self) -> bool:
        """Whether it has come to its last state."""
        return self._coordinator.state in co.ENDED

    @property
    def over(self) -> bool:
        """Whether it has ended and none of its processes is left."""
        return self.ended and not any(self.id in session.jobs for session in self.sessions)

    def announce(self) -> None:
        """Keep the job's first event."""
        self._change_state(self._coordinator.state, "")

    def place(self, sessions: tuple[AgentSession, ...]) -> None:
        """Start on these agents, which become busy."""
        names = tuple(session.name for session in sessions)
        plan = compile_graph(self.spec.graph, self.spec.nodes, seed=self.spec.seed, names=names)
        self._plan = plan.model_copy(
            update={
                "nodes": tuple(
                    node.model_copy(update={"compute_tasks": session.tasks})
                    for node, session in zip(plan.nodes, sessions, strict=True)
                )
            }
        )
        self.sessions = sessions
        self.status.node_names[:] = names
        for node, session in enumerate(sessions):
            session.jobs[self.id] = node
        self.feed(co.Placed(names))

    def wait_because(self, reason: str) -> None:
        """It cannot start yet."""
        if (self.status.state, self.status.reason) != (co.JobState.PENDING, reason):
            self.feed(co.Unplaced(reason))

    def feed(self, event: co.Event) -> None:
        """Give the coordinator an event and do what it says."""
        for command in self._coordinator.handle(event, self._clock.now()):
            self._do(command)
        self.bell.ring()

    def report(self, node: int, report: pb.OperatorReport) -> None:
        """Keep a report."""
        self.status.last_report.CopyFrom(report)
        self._store.set_status(self.status)
        self._keep(pb.JobEvent(report=pb.NodeReport(node=node, report=report)))

    def statistics(self, statistics: pb.NodeStatistics, *, final: bool) -> None:
        """Show a node's statistics to those who watch; keep the newest, and the final ones as an event."""
        self._store.set_statistics(self.id, statistics)
        self.recent.setdefault(statistics.node, deque(maxlen=RECENT)).append(statistics)
        count, _ = self.live.pop(statistics.node, (0, statistics))
        if final:
            self._keep(pb.JobEvent(statistics=statistics))
        else:
            self.live[statistics.node] = (count + 1, statistics)
            self.bell.ring()

    def checkpoint(self, node: int, chunk: pb.CheckpointChunk) -> None:
        """Keep a part of what a node has kept of itself."""
        assert self._plan is not None
        if self._keeper is None:
            folder = checkpoints_of(self._store, self.id, self.spec)
            self._keeper = CheckpointKeeper(keeping(folder, self.id, self.spec, self._plan, self._clock), self.warn)
        self._keeper.take(node, chunk)

    def warn(self, text: str) -> None:
        """Tell everybody of something wrong that the job goes on without."""
        self._keep(pb.JobEvent(warning=pb.JobWarning(text=text)))

    def close(self) -> None:
        """Let go of what only a job that runs needs."""
        if self._keeper is not None:
            self._keeper.close()
        for task in self._tasks:
            task.cancel()

    def measured(self) -> MeasuredJob:
        """What its nodes have told of themselves lately."""
        told = {node: tuple(map(statistics_from_wire, recent)) for node, recent in sorted(self.recent.items())}
        return MeasuredJob(self.id, self.spec.name, tuple(self.status.node_names), told)

    def passing(self, statistics: pb.NodeStatistics) -> pb.JobEvent:
        """An event that is not kept."""
        event = pb.JobEvent(statistics=statistics)
        self._stamp(event)
        return event

    def _do(self, command: co.Command) -> None:
        match command:
            case co.Deploy(node):
                self._deploy(node)
            case co.Connect(node, addresses):
                self._send(node, lambda: pb.MasterMessage(job=self.id, connect=pb.Connect(addresses=addresses)))
            case co.Start(node):
                self._send(node, lambda: pb.MasterMessage(job=self.id, start=pb.Start()))
            case co.StopNodes(nodes, reason):
                for node in nodes:
                    self._send(node, lambda: pb.MasterMessage(job=self.id, stop=pb.Stop(reason=reason)))
            case co.CloseNodes(nodes):
                self._kill(nodes, _CLOSE_S)
            case co.KillNodes(nodes):
                self._kill(nodes, 0.0)
            case co.SetTimer(at_s):
                self._set_timer(at_s)
            case co.ChangeState(state, reason):
                self._change_state(state, reason)
            case co.Finish(state, reason, stopped_by):
                self._change_state(state, reason, stopped_by)

    def _send(self, node: int, make: Callable[[], pb.MasterMessage]) -> None:
        if node < len(self.sessions) and self.id in self.sessions[node].jobs:
            self.sessions[node].send(make())

    def _kill(self, nodes: tuple[int, ...], grace_s: float) -> None:
        for node in nodes:
            self._send(node, lambda: pb.MasterMessage(job=self.id, kill=pb.Kill(grace_s=grace_s)))

    def _deploy(self, node: int) -> None:
        self._send(node, lambda: pb.MasterMessage(job=self.id, deploy=self._deployment(node)))
        if self.spec.resume is not None:
            self._start_task(self._send_checkpoint(node, self.spec.resume, EVERY_KIND))

    async def _send_checkpoint(self, node: int, resume: Resume, kinds: frozenset[StateKind]) -> None:
        """Send a node what it goes on from.

        Args:
            node: its number.
            resume: which checkpoint; the newest that is whole if it has no number, as for a node started again alone.
            kinds: of the state elements that go on: of such a node, those that nobody else has.
        """
        assert self._plan is not None
        try:
            folder = resumed_folder(self._store, resume)
            if resume.number is None:
                manifest, _ = await asyncio.to_thread(newest_whole, folder)
            else:  # it was verified when it was chosen, and nodes compare what they get
                manifest = await asyncio.to_thread(load_manifest, folder, resume.number)
            how = resumption(manifest, self._plan, node, kinds=kinds)
            await self._send_state(node, pb.StateChunk(resumption_json=how.model_dump_json().encode()))
            for file in how.files:
                pieces = contents(folder, manifest.number, file.file)
                while piece := await asyncio.to_thread(next, pieces, b""):
                    for start in range(0, len(piece), CHUNK_NBYTES):
                        await self._send_state(node, pb.StateChunk(data=piece[start : start + CHUNK_NBYTES]))
        except (AkoError, OSError) as error:
            await self._send_state(node, pb.StateChunk(failure=str(error)))

    async def _send_state(self, node: int, chunk: pb.StateChunk) -> None:
        while self.sessions[node].backlog > _BACKLOG and self.id in self.sessions[node].jobs:
            await asyncio.sleep(_BACKLOG_S)
        self._send(node, lambda: pb.MasterMessage(job=self.id, state=chunk))

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _deployment(self, node: int) -> pb.Deploy:
        return pb.Deploy(
            operation_id=f"{self.id}/{node}/0",
            plan_json=self._plan.model_dump_json().encode() if self._plan else b"",
            node=node,
            incarnation=0,
            bundle=self._bundle.data,
            bundle_digest=self._bundle.digest,
            token=self._token,
            record=self.spec.record,
            resumes=self.spec.resume is not None,
        )

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, at_s - self._clock.now())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self.feed, co.Tick())

    def _change_state(self, state: co.JobState, reason: str, stopped_by: str = "") -> None:
        status = self.status
        status.state, status.reason, status.stopped_by = state, reason, stopped_by
        if state is co.JobState.RUNNING:
            status.started_s = self._clock.wall()
        if state in co.ENDED:
            status.ended_s = self._clock.wall()
            if self._timer is not None:
                self._timer.cancel()
        self._store.set_status(status)
        self._keep(pb.JobEvent(state=pb.StateChange(state=state, reason=reason, stopped_by=stopped_by)))

    def _keep(self, event: pb.JobEvent) -> None:
        self._stamp(event)
        self._store.add_event(self.id, event)
        self.next_event += 1
        self.bell.ring()

    def _stamp(self, event: pb.JobEvent) -> None:
        event.index, event.wall_s = self.next_event, self._clock.wall()
        started_s = self._coordinator.started_s
        event.elapsed_s = 0.0 if started_s is None else self._clock.now() - started_s
