"""A job that has not ended, in the master: its coordinator's commands carried out, its events kept.

Invariant: what the coordinator is given is kept before anything that it commands is sent, and every command may be sent
again: a master that takes the job over decides the same again, and tells every node all that it should have been told.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Callable

from dataflow.clock import Clock
from dataflow.engine import coordinator as co
from dataflow.observe.condition import RECENT, MeasuredJob
from dataflow.plan.compile import compile_graph
from dataflow.plan.job import JobSpec
from dataflow.plan.physical import PhysicalPlan
from dataflow.runtime.agent_session import AgentSession
from dataflow.runtime.bundle import Bundle
from dataflow.runtime.history import event_from_text, event_to_text
from dataflow.runtime.store import Store
from dataflow.runtime.wire import statistics_from_wire
from dataflow.transport.encryption import KeyPair
from dataflow.transport.generated import control_pb2 as pb

_CLOSE_S = 5.0
"""Seconds a job process that has ended is given to leave on its own."""


MakeMessage = Callable[[], pb.MasterMessage]


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
        sessions: the agents it was placed on, by node number; without those that a master's death has parted from it.
        live: newest statistics of each running node and how many have come, for those who watch.
        recent: the newest few statistics of each node, oldest first.
    """

    def __init__(
        self, status: pb.JobStatus, spec: JobSpec, bundle: Bundle, store: Store, clock: Clock, deadlines: co.Deadlines
    ) -> None:
        self.status, self.spec, self.bell = status, spec, Bell()
        self.sessions: dict[int, AgentSession] = {}
        self.live: dict[int, tuple[int, pb.NodeStatistics]] = {}
        self.recent: dict[int, deque[pb.NodeStatistics]] = {}
        self.next_event = store.event_count(status.job)
        self._bundle, self._store, self._clock = bundle, store, clock
        self._coordinator = co.JobCoordinator(spec.nodes, spec.stop, deadlines)
        self._plan: PhysicalPlan | None = None
        self._token = secrets.token_urlsafe(32)
        self._pair: KeyPair | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._told: dict[int, list[MakeMessage]] = {}
        self._prepared: set[int] = set()

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
        return self.ended and not any(self.id in session.jobs for session in self.sessions.values())

    def announce(self) -> None:
        """Keep the job's first event."""
        self._change_state(self._coordinator.state, "")

    def place(self, sessions: tuple[AgentSession, ...], pair: KeyPair | None) -> None:
        """Start on these agents, which become busy; encrypted between them if there is a key pair."""
        names = tuple(session.name for session in sessions)
        tasks = tuple(session.tasks for session in sessions)
        self.sessions = dict(enumerate(sessions))
        self.status.node_names[:] = names
        for node, session in enumerate(sessions):
            session.jobs[self.id] = node
        with self._store.transaction(durable=True):
            self._pair = pair
            where = {"tasks": tasks, "token": self._token}
            if pair is not None:
                where |= {"certificate": pair.certificate.decode(), "key": pair.key.decode()}
            self._store.set_placement(self.id, json.dumps(where))
            self._plan = self._compiled(names, tasks)
            self.feed(co.Placed(names))

    def recover(self) -> None:
        """Come to where an earlier master has brought the job; nothing is sent, and what it did is not done again."""
        if placement := self._store.placement(self.id):
            where = json.loads(placement)
            self._token = where["token"]
            if "key" in where:
                self._pair = KeyPair(where["certificate"].encode(), where["key"].encode())
            self._plan = self._compiled(tuple(self.status.node_names), tuple(where["tasks"]))
        # Times are told by the machine's clock that outlives processes, and must not go back for all that.
        now, wall_s, before = self._clock.now(), self._clock.wall(), float("-inf")
        for happened_s, text in self._store.decisions(self.id):
            before = max(before, now - max(0.0, wall_s - happened_s))
            for command in self._decide(event_from_text(text), before):
                if not isinstance(command, co.SetTimer | co.ChangeState | co.Finish):
                    self._do(command)

    def away(self) -> dict[int, str]:
        """Names of the nodes, by number, that run it as far as is known and whose agents are not attached."""
        if self.waiting or self.ended:
            return {}
        return {node: name for node, name in enumerate(self.status.node_names) if node not in self.sessions}

    def rejoin(self, node: int, session: AgentSession, *, held: bool) -> None:
        """The agent of a node is attached again: tell it all that it may not have heard.

        Args:
            node: the node's number.
            session: its agent.
            held: whether the agent still holds what was deployed to it.
        """
        self.sessions[node] = session
        if held:
            session.jobs[self.id] = node
            for make in self._told[node][1:]:
                session.send(make())
        elif node not in self._prepared and self._coordinator.state is co.JobState.DEPLOYING:
            # The earlier master was killed before it could say so, or the agent before anything came of it.
            session.jobs[self.id] = node
            for make in self._told.get(node, []):
                session.send(make())
        else:
            self.feed(co.NodeLost(node, "its agent was restarted"))

    def deployed(self, held: pb.Held) -> bool:
        """Whether this is a node of the job as it is now."""
        return not self.ended and held.node in self._told and held.operation_id == self._operation(held.node)

    def was_away(self, absence: pb.Absence) -> None:
        """Note that the job had no master for a while."""
        self.status.master_away.append(absence)
        self._store.set_status(self.status)
        self._keep(pb.JobEvent(master_away=absence))

    def wait_because(self, reason: str) -> None:
        """It cannot start yet."""
        if (self.status.state, self.status.reason) != (co.JobState.PENDING, reason):
            self.feed(co.Unplaced(reason))

    def feed(self, event: co.Event) -> None:
        """Give the coordinator an event and do what it says."""
        if not self._coordinator.minds(event):
            return
        with self._store.transaction(durable=not isinstance(event, co.NodeReport)):
            self._store.add_decision(self.id, self._clock.wall(), event_to_text(event))
            for command in self._decide(event, self._clock.now()):
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

    def measured(self) -> MeasuredJob:
        """What its nodes have told of themselves lately."""
        told = {node: tuple(map(statistics_from_wire, recent)) for node, recent in sorted(self.recent.items())}
        return MeasuredJob(self.id, self.spec.name, tuple(self.status.node_names), told)

    def passing(self, statistics: pb.NodeStatistics) -> pb.JobEvent:
        """An event that is not kept."""
        event = pb.JobEvent(statistics=statistics)
        self._stamp(event)
        return event

    def _decide(self, event: co.Event, now: float) -> list[co.Command]:
        if isinstance(event, co.NodePrepared):
            self._prepared.add(event.node)
        return self._coordinator.handle(event, now)

    def _compiled(self, names: tuple[str, ...], tasks: tuple[int, ...]) -> PhysicalPlan:
        plan = compile_graph(self.spec.graph, self.spec.nodes, seed=self.spec.seed, names=names)
        nodes = tuple(
            node.model_copy(update={"compute_tasks": each}) for node, each in zip(plan.nodes, tasks, strict=True)
        )
        return plan.model_copy(update={"nodes": nodes})

    def _do(self, command: co.Command) -> None:
        match command:
            case co.Deploy(node):
                self._told[node] = []
                self._prepared.discard(node)
                self._send(node, lambda: pb.MasterMessage(job=self.id, deploy=self._deployment(node)))
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

    def _send(self, node: int, make: MakeMessage) -> None:
        self._told.setdefault(node, []).append(make)
        if node in self.sessions and self.id in self.sessions[node].jobs:
            self.sessions[node].send(make())

    def _operation(self, node: int) -> str:
        return f"{self.id}/{node}/0"

    def _kill(self, nodes: tuple[int, ...], grace_s: float) -> None:
        for node in nodes:
            self._send(node, lambda: pb.MasterMessage(job=self.id, kill=pb.Kill(grace_s=grace_s)))

    def _deployment(self, node: int) -> pb.Deploy:
        return pb.Deploy(
            operation_id=self._operation(node),
            plan_json=self._plan.model_dump_json().encode() if self._plan else b"",
            node=node,
            incarnation=0,
            bundle=self._bundle.data,
            bundle_digest=self._bundle.digest,
            token=self._token,
            record=self.spec.record,
            certificate=self._pair.certificate if self._pair else b"",
            key=self._pair.key if self._pair else b"",
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
