"""A job that has not ended, in the master: its coordinator's events kept, its commands carried out.

Invariant: what the coordinator is given is kept before anything that it commands is sent, and every command may be sent
again: a master that takes the job over decides the same again, and tells every node all that it should have been told.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

from dataflow.clock import Clock
from dataflow.engine import coordination as co
from dataflow.engine.arriving import open_places
from dataflow.engine.coordinator import JobCoordinator
from dataflow.engine.deadlines import Deadlines
from dataflow.engine.draining import objection
from dataflow.engine.job_life import ENDED, JobState
from dataflow.engine.membership import BURIED, Life
from dataflow.errors import MasterError
from dataflow.observe.condition import MeasuredJob
from dataflow.plan.job import JobSpec, Resume, adjusted_nodes, irreplaceable_nodes, needed_nodes, vacant_nodes
from dataflow.runtime.agent_session import AgentSession
from dataflow.runtime.bundle import Bundle
from dataflow.runtime.checkpoint_keeper import CheckpointKeeper
from dataflow.runtime.history import event_from_text, event_to_text, on_this_clock, this_boot
from dataflow.runtime.job_news import JobNews
from dataflow.runtime.job_nodes import JobNodes, new_placement, placement_from_text
from dataflow.runtime.resuming import checkpoints_of, keeping, look_again
from dataflow.runtime.store import Store
from dataflow.runtime.wire import members_to_wire, statistics_from_wire
from dataflow.transport.encryption import KeyPair
from dataflow.transport.generated import control_pb2 as pb

_CLOSE_S = 5.0
"""Seconds a job process that has ended is given to leave on its own."""

_TOLD = co.SetTimer | co.FindCheckpoint | co.ChangeState | co.ChangeNode | co.TellAdjustment | co.Finish


class JobRun:
    """Drives one job.

    Args:
        status: where it is; changed in place and kept in the store.
        spec: what was submitted.
        bundle: the user's code.
        store: keeps its events.
        clock: the clock.
        deadlines: see `Deadlines`.
        settle: called when time alone may have ended it.

    Attributes:
        news: what there is to tell of it.
    """

    def __init__(
        self,
        status: pb.JobStatus,
        spec: JobSpec,
        bundle: Bundle,
        store: Store,
        clock: Clock,
        deadlines: Deadlines,
        settle: Callable[[], None],
    ) -> None:
        self.status, self.spec = status, spec
        self._store, self._clock, self._settle = store, clock, settle
        self._nodes = JobNodes(status.job, spec, bundle, store)
        self._coordinator = JobCoordinator(
            spec.places,
            spec.stop,
            deadlines,
            min_nodes=spec.min_nodes,
            needed=needed_nodes(spec),
            irreplaceable=irreplaceable_nodes(spec),
            adjusted=adjusted_nodes(spec),
            vacant=vacant_nodes(spec),
            goes_on=not spec.record,  # a record is of one life
            rng=random.Random(status.job),
        )
        self.news = JobNews(status, store, clock, lambda: self._coordinator.started_s)
        self._timer: asyncio.TimerHandle | None = None
        self._keeper: CheckpointKeeper | None = None
        self._keepers: list[CheckpointKeeper] = []
        self._looking: asyncio.Task[None] | None = None

    @property
    def sessions(self) -> Mapping[int, AgentSession]:
        """The agents of its nodes; see `JobNodes`."""
        return self._nodes.sessions

    @property
    def id(self) -> str:
        """The job's id."""
        return self.status.job

    @property
    def waiting(self) -> bool:
        """Whether it waits for nodes."""
        return self._coordinator.state in (JobState.SUBMITTED, JobState.PENDING)

    @property
    def placeable(self) -> bool:
        """Whether it can be given nodes: not while it is being looked for the checkpoint that they go on from."""
        return self.waiting and not self._coordinator.again.looking

    @property
    def ended(self) -> bool:
        """Whether it has come to its last state."""
        return self._coordinator.state in ENDED

    @property
    def over(self) -> bool:
        """Whether it has ended and none of its processes is left."""
        return self.ended and not any(self.id in session.jobs for session in self.sessions.values())

    @property
    def written(self) -> bool:
        """Of one that is closed: whether all is on the disk, or given up, that came of its checkpoints."""
        return all(each.is_done for each in self._keepers)

    def announce(self) -> None:
        """Keep the job's first event."""
        self._change_state(self._coordinator.state, "")

    def place(self, sessions: tuple[AgentSession, ...], pair: KeyPair | None) -> None:
        """Start on these agents, which become busy; encrypted between them if there is a key pair."""
        vacant = vacant_nodes(self.spec)
        there = dict(zip(sorted(set(range(self.spec.places)) - vacant), sessions, strict=True))
        # No agent can be called like a place that is vacant.
        names = tuple(there[each].name if each in there else f"(free {each})" for each in range(self.spec.places))
        tasks = tuple(there[each].tasks if each in there else 1 for each in range(self.spec.places))
        self._nodes.sessions = there
        self.status.node_names[:] = names
        with self._store.transaction(durable=True):
            placement = new_placement(tasks, pair)
            self._store.set_placement(self.id, placement.to_text())
            self._nodes.place(placement, names)
            self.feed(co.Placed(names))

    def place_for(self, session: AgentSession) -> int | None:
        """The place that a free node may take in the running job; None if there is none for it."""
        nodes, now = self._coordinator.nodes, self._clock.now()
        if self.spec.max_nodes is None or self._coordinator.state is not JobState.RUNNING or self.stopping:
            return None
        if self._nodes.is_given_up(session.life):
            return None
        before = self._node_named(session.name)
        for node in open_places(nodes, now):
            held = self.sessions.get(node)
            if before in (None, node) and (held is None or self.id not in held.jobs):
                return node
        return None

    def welcome(self, node: int, session: AgentSession) -> None:
        """Let a node have a place that is open; it becomes busy."""
        names = list(self.status.node_names)
        names[node] = session.name
        with self._store.transaction(durable=True):
            self.status.node_names[:] = names
            placement = self._nodes.replace(node, session, tuple(names))
            self._store.set_placement(self.id, placement.to_text())
            self.feed(co.NodeArrived(node, session.name))

    @property
    def stopping(self) -> bool:
        """Whether its nodes have been asked to stop."""
        return bool(self._coordinator.stopped_by)

    @property
    def encrypts(self) -> bool:
        """Whether its nodes encrypt what they send each other."""
        return self._nodes.encrypts

    def recover(self) -> None:
        """Come to where an earlier master has brought the job; nothing is sent, and what it did is not done again."""
        if placement := self._store.placement(self.id):
            self._nodes.place(placement_from_text(placement), tuple(self.status.node_names))
        decisions = self._store.decisions(self.id)
        times_s = on_this_clock([time for time, _text in decisions], *self._time())
        for (_time, text), now_s in zip(decisions, times_s, strict=True):
            for command in self._decide(event_from_text(text), now_s):
                if not isinstance(command, _TOLD):
                    self._do(command)
        if self._coordinator.again.looking:
            self._look_for_checkpoint()

    def away(self) -> dict[int, str]:
        """Names of the nodes, by number, that may still have a process and whose agents have not attached again."""
        if self.waiting or self.ended:
            return {}
        names, lives = enumerate(self.status.node_names), self._coordinator.nodes
        absent = {node: name for node, name in names if node not in self.sessions}
        return {node: name for node, name in absent.items() if self.hears(node) or lives[node].life is Life.DYING}

    def rejoin(self, session: AgentSession, *, held: bool, ending: bool) -> None:
        """An agent is attached, for the first time or again: tell it all that it may not have heard.

        Args:
            session: the agent.
            held: whether it holds what was deployed to it last, and its node is not buried.
            ending: whether it holds a process of the job that it has just been told to end.
        """
        node = self._node_named(session.name)
        if node is None or self.waiting or self.ended:
            return
        before, each = self._nodes.attach(node, session), self._coordinator.nodes[node]
        if held:
            self._nodes.repeat(node)
        elif each.life is Life.JOINING and before is None and not self._nodes.is_prepared(node) and self._starts:
            # The earlier master was killed before it could say so, or the agent before anything came of it.
            self._nodes.start_again(node)
        else:
            if each.life not in BURIED or (each.life is Life.DYING and not ending):
                self.feed(co.NodeLost(node, "its agent was restarted"))
            self.feed(co.NodeBack(node))

    def deployed(self, held: pb.Held) -> bool:
        """Whether this is a node of the job as it is now."""
        return not self.ended and held.operation_id == self._nodes.operation(held.node) and self.hears(held.node)

    def node_of(self, session: AgentSession) -> int | None:
        """Number of the node that an agent is or was; None if it is none of the job's."""
        return next((node for node, each in self.sessions.items() if each is session), None)

    def keeps(self, name: str) -> bool:
        """Whether a node of this name is the job's although no process of it is there."""
        node = self._node_named(name)
        return (
            node is not None
            and not self.ended
            and self._coordinator.nodes[node].life in BURIED - {Life.GONE, Life.LEFT, Life.VACANT}
        )

    def objection(self, name: str) -> str:
        """Why a node of this name cannot leave the job, and what to do; empty if it can, or is none of its nodes."""
        node = self._node_named(name)
        if node is None or not self._starts:
            return ""
        members = {role: tuple(nodes) for role, nodes in self._nodes.plan.members().items()}
        nodes, names = self._coordinator.nodes, self.status.node_names
        if why := self._coordinator.why_not_drained(node):
            return why
        return objection(nodes, node, names, members)

    def drain(self, name: str) -> None:
        """Have a node of this name leave, if it is one of the job's."""
        node = self._node_named(name)
        if node is not None and not self.waiting and not self.ended:
            self.feed(co.DrainAsked(node))

    def start_number(self, node: int) -> int | None:
        """Which of its processes a node's newest is; see `JobNodes.start_number`."""
        return self._nodes.start_number(node)

    def hears(self, node: int) -> bool:
        """Whether what a node says counts: not once it is buried, or before it is placed again."""
        return not self.waiting and self._coordinator.nodes[node].life not in BURIED

    def runs(self, node: int) -> bool:
        """Whether a node is expected to make progress: every member counts beats, also one that waits for its start."""
        return self._starts and self._coordinator.nodes[node].life is Life.ALIVE

    def wait_because(self, reason: str) -> None:
        """It cannot start yet."""
        told = self._coordinator.why_it_waits(reason)
        if (self.status.state, self.status.reason) != (JobState.PENDING, told):
            self.feed(co.Unplaced(reason))

    def feed(self, event: co.Event) -> None:
        """Give the coordinator an event and do what it says."""
        if not self._coordinator.minds(event):
            return
        with self._store.transaction(durable=not isinstance(event, co.NodeReport)):
            time = self._time()
            self._store.add_decision(self.id, time, event_to_text(event))
            for command in self._decide(event, time[0]):
                self._do(command)
        self.news.bell.ring()

    def adjust(self, operation_id: str, text: str) -> int:
        """Have the running job changed; the number of the change.

        Raises:
            MasterError: that cannot be done now, and why; nothing is changed.
        """
        adjusting = self._coordinator.adjusting
        if not adjusting.is_known(operation_id):
            why = self._coordinator.why_not_adjusted()
            if self.spec.record:
                why = why or "it is recorded, and the record would not have the change; run it without --record"
            if why:
                raise MasterError(what=f"the job cannot be changed now: {why}", where=self.id)
            self._store.check_disk("the change")
            self.feed(co.AdjustAsked(operation_id, text))
        return adjusting.newest

    def checkpoint(self, node: int, chunk: pb.CheckpointChunk) -> None:
        """Keep a part of what a node has kept of itself."""
        if self._keeper is None:
            folder = checkpoints_of(self._store, self.id, self.spec)
            make = keeping(folder, self.id, self.spec, self._nodes.plan, self._clock)
            self._keeper = CheckpointKeeper(make, self.news.warn)
            self._keepers = [*(each for each in self._keepers if not each.is_done), self._keeper]
            for each in range(self.spec.places):
                if not self.hears(each) or self._coordinator.nodes[each].incarnation:
                    self._keeper.leave(each)
                if self.hears(each):
                    self._keeper.join(each)  # changes nothing for one that has been there from the first on
        self._keeper.take(node, chunk)

    def close(self) -> None:
        """Let go of what only a job that runs needs."""
        if self._keeper is not None:
            self._keeper.close()
        if self._looking is not None:
            self._looking.cancel()
        self._nodes.close()

    def measured(self) -> MeasuredJob:
        """What its nodes have told of themselves lately, but for those that have died or left."""
        told, nodes = {}, self._coordinator.nodes
        for node, recent in sorted(self.news.told):
            # What one that is started again told before it died is of the past until it tells something anew.
            if self.hears(node) and recent[-1].incarnation == nodes[node].incarnation:
                told[node] = tuple(map(statistics_from_wire, recent))
        return MeasuredJob(self.id, self.spec.name, tuple(self.status.node_names), told)

    def _time(self) -> tuple[float, float, str]:
        """What both hands of the clock show, and since which start of the machine; see `on_this_clock`."""
        return self._clock.now(), self._clock.wall(), this_boot()

    def _decide(self, event: co.Event, now: float) -> list[co.Command]:
        if isinstance(event, co.NodePrepared):
            self._nodes.note_prepared(event.node)
        if isinstance(event, co.CheckpointFound) and event.number is not None:
            own = Resume(job=self.id, number=event.number)
            self._nodes.go_on(own if event.own else self.spec.resume or own)
        return self._coordinator.handle(event, now)

    def _do(self, command: co.Command) -> None:
        match command:
            case co.Deploy(node, incarnation):
                self._nodes.deploy(node, incarnation, anew=self._coordinator.state is JobState.DEPLOYING)
            case co.Connect(node, members, answers):
                connect = members_to_wire(members, answers)
                self._nodes.tell(node, lambda: pb.MasterMessage(job=self.id, connect=connect))
            case co.Start(node):
                self._nodes.tell(node, lambda: pb.MasterMessage(job=self.id, start=pb.Start()))
            case co.StopNodes(nodes, reason):
                for node in nodes:
                    self._nodes.tell(node, lambda: pb.MasterMessage(job=self.id, stop=pb.Stop(reason=reason)))
            case co.Leave(node):
                self._nodes.tell(node, lambda: pb.MasterMessage(job=self.id, leave=pb.Leave()))
            case co.CloseNodes(nodes):
                self._kill(nodes, _CLOSE_S)
            case co.KillNodes(nodes):
                self._kill(nodes, 0.0)
            case co.ChangeNode():
                self._change_node(command)
            case co.AdjustNodes(nodes, number, stage, text):
                told = pb.Adjust(number=number, stage=stage, text=text)
                for node in nodes:
                    self._nodes.tell(node, lambda: pb.MasterMessage(job=self.id, adjust=told))
            case _:
                self._do_about_job(command)

    def _do_about_job(self, command: co.Command) -> None:
        match command:
            case co.SetTimer(at_s):
                self._set_timer(at_s)
            case co.ChangeState(state, reason):
                self._change_state(state, reason)
            case co.Finish(state, reason, stopped_by, node):
                self._change_state(state, reason, stopped_by, node)
            case co.TellAdjustment():
                self.news.tell_adjustment(command)
            case co.FindCheckpoint():
                self._look_for_checkpoint()

    def _look_for_checkpoint(self) -> None:
        """Look for the newest whole checkpoint, once all that had come of any is kept."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()
        self.news.told.forget()
        self._nodes.close()
        self._looking = asyncio.get_running_loop().create_task(self._find_checkpoint(keeper))

    async def _find_checkpoint(self, keeper: CheckpointKeeper | None) -> None:
        if keeper is not None:
            await keeper.closed()
        found, broken = await look_again(self._store, self.id, self.spec)
        if self.ended:
            return
        for each in broken:
            self.news.warn(each)
        with self._store.transaction(durable=True):
            self.feed(found)
            if not self.ended:
                self.news.end_life()
        self._settle()

    @property
    def _starts(self) -> bool:
        return self._coordinator.state in (JobState.DEPLOYING, JobState.RUNNING)

    def _node_named(self, name: str) -> int | None:
        return next((node for node, each in enumerate(self.status.node_names) if each == name), None)

    def _kill(self, nodes: tuple[int, ...], grace_s: float) -> None:
        for node in nodes:
            self._nodes.tell(node, lambda: pb.MasterMessage(job=self.id, kill=pb.Kill(grace_s=grace_s)))

    def _change_node(self, command: co.ChangeNode) -> None:
        if command.life is Life.GONE and command.node in self.sessions:
            placement = self._nodes.give_up(self.sessions[command.node].life)
            self._store.set_placement(self.id, placement.to_text())
        if self._keeper is not None and command.life in BURIED:
            self._keeper.leave(command.node)
        elif self._keeper is not None and command.life is Life.ALIVE:
            self._keeper.join(command.node)
        self.news.change_node(command)

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, at_s - self._clock.now())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self.feed(co.Tick())
        self._settle()

    def _change_state(self, state: JobState, reason: str, stopped_by: str = "", node: int | None = None) -> None:
        if state in ENDED and self._timer is not None:
            self._timer.cancel()
        self.news.change_state(state, reason, stopped_by, node)
