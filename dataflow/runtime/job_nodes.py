"""The nodes of a job as its master reaches them: what they have been told, and are told again.

Invariant: a node whose agent is attached and holds it has been sent all that its incarnation was told, in that order;
of a node that is away, what it is told is kept until its agent is back.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from dataflow.plan.job import JobSpec, Resume
from dataflow.plan.physical import PhysicalPlan
from dataflow.runtime.agent_session import AgentSession
from dataflow.runtime.bundle import Bundle
from dataflow.runtime.resuming import goes_on_from, state_chunks
from dataflow.runtime.store import Store
from dataflow.state import StateKind
from dataflow.transport.encryption import KeyPair
from dataflow.transport.generated import control_pb2 as pb

_BACKLOG = 64
"""Messages that may wait for an agent before it is sent more of a checkpoint."""

_BACKLOG_S = 0.005

MakeMessage = Callable[[], pb.MasterMessage]


@dataclass(frozen=True, slots=True)
class Placement:
    """How a job's nodes are started.

    Args:
        tasks: how many each runs at a time, by node number.
        token: what they know each other by.
        pair: what they encrypt with; None if they do not.
        given_up: lives of agents that were given up in the job, and are not started in it again.
    """

    tasks: tuple[int, ...]
    token: str
    pair: KeyPair | None
    given_up: tuple[str, ...] = ()

    def to_text(self) -> str:
        """As JSON text, to be kept."""
        where: dict[str, object] = {"tasks": self.tasks, "token": self.token, "given_up": self.given_up}
        if self.pair is not None:
            where |= {"certificate": self.pair.certificate.decode(), "key": self.pair.key.decode()}
        return json.dumps(where)

    def plan(self, spec: JobSpec, names: tuple[str, ...]) -> PhysicalPlan:
        """The plan of a job whose nodes have these names."""
        plan = spec.plan(names)
        nodes = tuple(
            node.model_copy(update={"compute_tasks": each}) for node, each in zip(plan.nodes, self.tasks, strict=True)
        )
        return plan.model_copy(update={"nodes": nodes})


def new_placement(tasks: tuple[int, ...], pair: KeyPair | None) -> Placement:
    """A placement with a token of its own."""
    return Placement(tasks, secrets.token_urlsafe(32), pair)


def placement_from_text(text: str) -> Placement:
    """The placement of what `Placement.to_text` made."""
    where = json.loads(text)
    pair = KeyPair(where["certificate"].encode(), where["key"].encode()) if "key" in where else None
    return Placement(tuple(where["tasks"]), where["token"], pair, tuple(where.get("given_up", ())))


@dataclass(slots=True)
class _Deployed:
    """A node as it was started last.

    Args:
        incarnation: which it is for the others.
        start: how often a process had been started for it before.
        anew: the job had not begun, so it has missed nothing.
        prepared: it has said that it is prepared.
        told: what it was told since.
    """

    incarnation: int
    start: int
    anew: bool
    prepared: bool = False
    told: list[MakeMessage] = field(default_factory=list)


class JobNodes:
    """The nodes of one job.

    Args:
        job: the job's id.
        spec: what was submitted.
        bundle: the user's code.
        store: has the checkpoints that nodes go on from.

    Attributes:
        sessions: the agents of the nodes, by node number; of a node that was lost, the one that is gone; none of those
            that have not attached since the master was restarted.
    """

    def __init__(self, job: str, spec: JobSpec, bundle: Bundle, store: Store) -> None:
        self.sessions: dict[int, AgentSession] = {}
        self._job, self._spec, self._bundle, self._store = job, spec, bundle, store
        self._placement: Placement | None = None
        self._plan: PhysicalPlan | None = None
        self._deployed: dict[int, _Deployed] = {}
        self._sending: dict[int, asyncio.Task[None]] = {}

    @property
    def plan(self) -> PhysicalPlan:
        """The plan that they run; only of a job that was placed."""
        assert self._plan is not None
        return self._plan

    def place(self, placement: Placement, names: tuple[str, ...]) -> None:
        """Have the nodes be started like this from now on."""
        self._placement, self._plan = placement, placement.plan(self._spec, names)

    def go_on(self, resume: Resume) -> None:
        """Have all nodes go on from a checkpoint, once they are placed again."""
        self._spec = self._spec.model_copy(update={"resume": resume})

    def replace(self, node: int, session: AgentSession, names: tuple[str, ...]) -> Placement:
        """Have an agent run a node from the next deployment on; how the nodes are started now."""
        assert self._placement is not None
        tasks = tuple(session.tasks if each == node else one for each, one in enumerate(self._placement.tasks))
        self.sessions[node] = session
        self.place(replace(self._placement, tasks=tasks), names)
        return self._placement

    def give_up(self, life: str) -> Placement:
        """Start no node on this agent again; how the nodes are started now."""
        assert self._placement is not None
        self._placement = replace(self._placement, given_up=(*self._placement.given_up, life))
        return self._placement

    def is_given_up(self, life: str) -> bool:
        """Whether no node is started on an agent again."""
        return self._placement is not None and life in self._placement.given_up

    @property
    def encrypts(self) -> bool:
        """Whether the nodes encrypt what they send each other."""
        return self._placement is not None and self._placement.pair is not None

    def deploy(self, node: int, incarnation: int, *, anew: bool) -> None:
        """Have a node started, which has been told nothing yet; `anew`: the job has not begun."""
        before = self._deployed.get(node)
        self._deployed[node] = _Deployed(incarnation, 0 if before is None else before.start + 1, anew)
        self._start(node)

    def start_number(self, node: int) -> int | None:
        """How often a process had been started for a node before the newest one; None if none was."""
        deployed = self._deployed.get(node)
        return None if deployed is None else deployed.start

    def tell(self, node: int, make: MakeMessage) -> None:
        """Tell a node something, now, and again to an agent that may not have heard."""
        self._deployed[node].told.append(make)
        self._say(node, make())

    def note_prepared(self, node: int) -> None:
        """Note that a node has said that it is prepared: it has all of the checkpoint that it goes on from."""
        self._deployed[node].prepared = True
        if sending := self._sending.pop(node, None):
            sending.cancel()

    def is_prepared(self, node: int) -> bool:
        """Whether a node has said, since it was started last, that it is prepared."""
        return self._deployed[node].prepared

    def attach(self, node: int, session: AgentSession) -> AgentSession | None:
        """The agent of a node is attached; returns the one before."""
        before, self.sessions[node] = self.sessions.get(node), session
        return before

    def repeat(self, node: int) -> None:
        """Tell a node whose agent holds it again all that it was told; of a checkpoint it may have a part only."""
        self.sessions[node].jobs[self._job] = node
        if not self.is_prepared(node):
            self._send_state(node)
        self._repeat(node)

    def start_again(self, node: int) -> None:
        """Have a node started as it was to be, and tell it again all that it was told."""
        self._start(node)
        self._repeat(node)

    def operation(self, node: int) -> str | None:
        """The operation that started a node last; None if nothing was."""
        deployed = self._deployed.get(node)
        return None if deployed is None else f"{self._job}/{node}/{deployed.start}"

    def close(self) -> None:
        """Send no more of any checkpoint."""
        for task in self._sending.values():
            task.cancel()

    def _repeat(self, node: int) -> None:
        for make in self._deployed[node].told:
            self.sessions[node].send(make())

    def _say(self, node: int, message: pb.MasterMessage) -> None:
        if node in self.sessions and self._job in self.sessions[node].jobs:
            self.sessions[node].send(message)

    def _start(self, node: int) -> None:
        """Have the agent of a node start its process; of one that is away, once it is attached again."""
        if node not in self.sessions:
            return
        self.sessions[node].jobs[self._job] = node
        deployed = self._deployed[node]
        deploy = self._deployment(node, deployed)
        deploy.resumes = self._goes_on_from(node) is not None
        self._say(node, pb.MasterMessage(job=self._job, deploy=deploy))
        self._send_state(node)

    def _goes_on_from(self, node: int) -> tuple[Resume, frozenset[StateKind]] | None:
        deployed = self._deployed[node]
        return goes_on_from(self._job, self._spec, node, deployed.incarnation, anew=deployed.anew)

    def _send_state(self, node: int) -> None:
        """Begin to send a node the checkpoint that it goes on from, if there is one, and no more of what was begun."""
        if before := self._sending.pop(node, None):
            before.cancel()
        if found := self._goes_on_from(node):
            self._sending[node] = asyncio.get_running_loop().create_task(self._send_chunks(node, *found))

    async def _send_chunks(self, node: int, resume: Resume, kinds: frozenset[StateKind]) -> None:
        async with aclosing(state_chunks(self._store, resume, self.plan, node, kinds)) as chunks:
            async for chunk in chunks:
                while self.sessions[node].backlog > _BACKLOG and self._job in self.sessions[node].jobs:
                    await asyncio.sleep(_BACKLOG_S)
                self._say(node, pb.MasterMessage(job=self._job, state=chunk))

    def _deployment(self, node: int, deployed: _Deployed) -> pb.Deploy:
        assert self._placement is not None
        pair = self._placement.pair
        return pb.Deploy(
            operation_id=self.operation(node) or "",
            plan_json=self.plan.model_dump_json().encode(),
            node=node,
            incarnation=deployed.incarnation,
            start=deployed.start,
            bundle=self._bundle.data,
            bundle_digest=self._bundle.digest,
            token=self._placement.token,
            record=self._spec.record,
            certificate=pair.certificate if pair else b"",
            key=pair.key if pair else b"",
            watchdog_s=self._spec.watchdog_s or 0.0,
        )
