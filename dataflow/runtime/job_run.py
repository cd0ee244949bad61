"""A job that has not ended, in the master: its coordinator's commands carried out, its events kept."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import deque
from collections.abc import Callable

from dataflow.clock import Clock
from dataflow.engine import coordinator as co
from dataflow.engine.membership import BURIED, Life
from dataflow.observe.condition import RECENT, MeasuredJob
from dataflow.plan.compile import compile_graph
from dataflow.plan.job import JobSpec, needed_nodes
from dataflow.plan.physical import PhysicalPlan
from dataflow.runtime.agent_session import AgentSession
from dataflow.runtime.bundle import Bundle
from dataflow.runtime.store import Store
from dataflow.runtime.wire import members_to_wire, statistics_from_wire
from dataflow.transport.generated import control_pb2 as pb

_CLOSE_S = 5.0
"""Seconds a job process that has ended is given to leave on its own."""


_APART_S = 0.9


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
        sessions: the agents it was placed on, by node number; of a node that was lost, the one that is gone.
        live: newest statistics of each running node and how many have come, for those who watch.
        recent: the newest statistics of each node, behind a few that were told about a second apart.
        told_s: when a node told the newest of them, on the clock.
    """

    def __init__(
        self, status: pb.JobStatus, spec: JobSpec, bundle: Bundle, store: Store, clock: Clock, deadlines: co.Deadlines
    ) -> None:
        self.status, self.spec, self.bell = status, spec, Bell()
        self.sessions: list[AgentSession] = []
        self.live: dict[int, tuple[int, pb.NodeStatistics]] = {}
        self.recent: dict[int, deque[pb.NodeStatistics]] = {}
        self.told_s: dict[int, float] = {}
        self._kept_s: dict[int, float] = {}
        self.next_event = store.event_count(status.job)
        self._bundle, self._store, self._clock = bundle, store, clock
        self._coordinator = co.JobCoordinator(
            spec.nodes,
            spec.stop,
            deadlines,
            state=co.JobState(status.state),
            min_nodes=spec.min_nodes,
            needed=needed_nodes(spec),
            rng=random.Random(status.job),
        )
        self._plan: PhysicalPlan | None = None
        self._token = secrets.token_urlsafe(32)
        self._timer: asyncio.TimerHandle | None = None

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
        self.sessions = list(sessions)
        self.status.node_names[:] = names
        for node, session in enumerate(sessions):
            session.jobs[self.id] = node
        self.feed(co.Placed(names))

    def node_of(self, session: AgentSession) -> int | None:
        """Number of the node that an agent is or was; None if it is none of the job's."""
        return self.sessions.index(session) if session in self.sessions else None

    def keeps(self, name: str) -> bool:
        """Whether a node of this name is the job's although no process of it is there."""
        return not self.ended and any(
            session.name == name and self._coordinator.nodes[node].life in BURIED - {Life.GONE}
            for node, session in enumerate(self.sessions)
        )

    def come_back(self, session: AgentSession) -> None:
        """An agent is attached; if it is that of a node that was lost, it is to go on with it."""
        for node, before in enumerate(self.sessions):
            if before.name == session.name and before is not session:
                self.sessions[node] = session
                self.feed(co.NodeBack(node))

    def hears(self, node: int) -> bool:
        """Whether what a node says counts: not, once it is buried."""
        return self._coordinator.nodes[node].life not in BURIED

    def runs(self, node: int) -> bool:
        """Whether a node is expected to make progress."""
        each = self._coordinator.nodes[node]
        return self._coordinator.state is co.JobState.RUNNING and each.life is Life.ALIVE and each.running

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
        now, recent = self._clock.now(), self.recent.setdefault(statistics.node, deque(maxlen=RECENT))
        self.told_s[statistics.node] = now
        if recent and now - self._kept_s[statistics.node] < _APART_S:
            recent[-1] = statistics
        else:
            recent.append(statistics)
            self._kept_s[statistics.node] = now
        count, _ = self.live.pop(statistics.node, (0, statistics))
        if final:
            self._keep(pb.JobEvent(statistics=statistics))
        else:
            self.live[statistics.node] = (count + 1, statistics)
            self.bell.ring()

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
            case co.Deploy(node, incarnation):
                self.sessions[node].jobs[self.id] = node
                self._send(node, lambda: pb.MasterMessage(job=self.id, deploy=self._deployment(node, incarnation)))
            case co.Connect(node, members):
                self._send(node, lambda: pb.MasterMessage(job=self.id, connect=members_to_wire(members)))
            case co.Start(node):
                self._send(node, lambda: pb.MasterMessage(job=self.id, start=pb.Start()))
            case co.StopNodes(nodes, reason):
                for node in nodes:
                    self._send(node, lambda: pb.MasterMessage(job=self.id, stop=pb.Stop(reason=reason)))
            case co.CloseNodes(nodes):
                self._kill(nodes, _CLOSE_S)
            case co.KillNodes(nodes):
                self._kill(nodes, 0.0)
            case co.ChangeNode():
                self._change_node(command)
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

    def _deployment(self, node: int, incarnation: int) -> pb.Deploy:
        return pb.Deploy(
            operation_id=f"{self.id}/{node}/{incarnation}",
            plan_json=self._plan.model_dump_json().encode() if self._plan else b"",
            node=node,
            incarnation=incarnation,
            bundle=self._bundle.data,
            bundle_digest=self._bundle.digest,
            token=self._token,
            record=self.spec.record,
        )

    def _change_node(self, command: co.ChangeNode) -> None:
        change = pb.NodeChange(
            node=command.node,
            life=command.life,
            incarnation=command.incarnation,
            epoch=command.epoch,
            reason=command.reason,
            wall_s=self._clock.wall(),
        )
        self.status.changes[command.node].CopyFrom(change)
        self._store.set_status(self.status)
        self._keep(pb.JobEvent(change=change))

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
