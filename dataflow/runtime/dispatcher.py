"""The master's jobs and agents: who runs what, and what happens when one of them speaks or falls silent."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Mapping, Sequence

from pydantic import ValidationError

from dataflow.clock import Clock
from dataflow.engine import coordination as co
from dataflow.engine.deadlines import Deadlines
from dataflow.engine.job_life import ENDED, JobState
from dataflow.engine.scheduling import Waiting, place_jobs
from dataflow.errors import ConfigError, MasterError, WireError, in_words
from dataflow.graph.checks import check
from dataflow.observe.condition import MeasuredJob
from dataflow.plan.compile import compile_graph
from dataflow.plan.job import JobSpec
from dataflow.runtime import descriptors
from dataflow.runtime.agent_session import AgentSession
from dataflow.runtime.bundle import Bundle
from dataflow.runtime.job_run import JobRun
from dataflow.runtime.over_jobs import OverJobs
from dataflow.runtime.process import CANNOT_START, how_it_ended
from dataflow.runtime.process_messages import passes, relay
from dataflow.runtime.resuming import checkpoints_of, choose
from dataflow.runtime.store import Store, StoredJob
from dataflow.transport.encryption import KeyPair
from dataflow.transport.generated import control_pb2 as pb

STALLED_S = 1.9
"""A job process whose progress counter stands still for so long, while heartbeats come, does nothing any more."""

GRACE_S = 10.0
"""Seconds that agents are given to attach again to a master that was restarted."""

_SWEEP_S = 0.1
_ALIVE_S = 0.5


Encrypt = Callable[[Sequence[str]], KeyPair | None]
"""Makes the key pair of a job, given the hosts of its nodes; None: they do not encrypt."""


def _plain(_hosts: Sequence[str]) -> KeyPair | None:
    return None


class Dispatcher:
    """All jobs that have not ended, and all attached agents.

    Args:
        store: where jobs are kept.
        clock: the clock.
        deadlines: see `Deadlines`.
        lost_after_s: seconds of silence after which an agent counts as lost; see `AgentSession.lost`.
        encrypt: makes the key pair with which the nodes of a job encrypt, given their hosts; None: they do not.
        keep_jobs: how many jobs that are over are kept, with what they made; all if None.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        deadlines: Deadlines,
        lost_after_s: float,
        encrypt: Encrypt = _plain,
        keep_jobs: int | None = None,
    ) -> None:
        self._store, self._clock, self._deadlines, self._lost_after_s = store, clock, deadlines, lost_after_s
        self._encrypt, self._over = encrypt, OverJobs(store, clock, keep_jobs)
        self._runs: dict[str, JobRun] = {}
        self._sessions: dict[str, AgentSession] = {}
        self._leaving = False

    def recover(self) -> None:
        """Take over the jobs of an earlier master, which go on; nodes have `GRACE_S` to attach again."""
        now_s, alive_s = self._clock.wall(), self._store.alive_s()
        absence = pb.Absence(from_s=now_s if alive_s is None else alive_s, to_s=now_s)
        over = list[str]()
        for status in sorted(self._store.statuses(), key=lambda status: status.ended_s):
            if JobState(status.state) not in ENDED:
                job = self._store.job(status.job)
                run = self._runs[job.job] = self._make(job, JobSpec.model_validate_json(job.spec_json))
                run.recover()
                if run.away():
                    run.news.was_away(absence)
            else:
                over.append(status.job)
        self._over.recover(over)
        self._store.set_alive_s(now_s)
        if self._runs:
            asyncio.get_running_loop().call_later(GRACE_S, self._grace_over)
        self._settle()

    def shut_down(self) -> None:
        """Let go of the agents, because the master has been told to leave; jobs go on, and the next one finds them."""
        self._leaving = True
        for session in self._sessions.values():
            session.end()

    async def chosen(self, spec_json: bytes, bundle: Bundle) -> tuple[bytes, Bundle]:
        """What to submit for a job: it itself, or if it goes on from a checkpoint, it with the one that was chosen.

        Raises:
            ConfigError: the specification is no valid one; or see `choose`.
            CheckpointError, MasterError: see `choose`.
        """
        spec = _parsed(spec_json)
        if spec.resume is None:
            return spec_json, bundle
        spec, bundle = await choose(self._store, spec, bundle)
        return spec.model_dump_json().encode(), bundle

    def submit(self, operation_id: str, spec_json: bytes, bundle: Bundle) -> str:
        """Queue a job; see `Client.submit`.

        Raises:
            ConfigError: the specification is no valid one.
            GraphError: the graph fails its checks.
            PlanError: the graph cannot be placed on that many nodes.
            MasterError: the operation id was used for another job, or the job that it goes on from is no more.
        """
        spec = _parsed(spec_json)
        check(spec.graph)
        compile_graph(spec.graph, spec.nodes)
        spec.plan()
        checkpoints_of(self._store, "", spec)
        if spec.resume is not None and spec.resume.job:
            self._store.find(spec.resume.job)  # it may have been removed since the checkpoint was chosen
        status = pb.JobStatus(
            job=secrets.token_hex(6),
            name=spec.name,
            state=JobState.SUBMITTED,
            nodes=spec.nodes,
            submitted_s=self._clock.wall(),
        )
        stored = StoredJob(status.job, spec_json, bundle, status)
        run = self._make(stored, spec)
        with self._store.transaction(durable=True):
            job = self._store.add_job(operation_id, stored)
            if job == status.job:
                run.announce()
        if job == status.job:
            self._runs[job] = run
            self._settle()
        return job

    def cancel(self, job: str) -> None:
        """Ask a job to stop."""
        if job in self._runs:
            self._runs[job].feed(co.CancelAsked())
            self._settle()

    def drain(self, name: str, operation_id: str) -> None:
        """Have a node leave its jobs, which go on, and give it no more until its agent is started anew.

        The agent may be away: it may have to come back to a master that was restarted, or its machine be dead. It may
        have been started anew, too, before an operation is asked for again that was carried out: that is over.

        Raises:
            MasterError: no node of this name was ever attached, or a job cannot do without it; or the disk is full.
        """
        life = self._store.life(name)
        if life is None:
            known = ", ".join(sorted(self._sessions, key=_in_order)) or "none is attached"
            raise MasterError(what="there is no such node", got=name, fix=f"one of: {known}")
        if self._store.has_drained(name, operation_id):
            return
        runs = list(self._runs.values())
        for run in runs:
            if reason := run.objection(name):
                raise MasterError(what=f"node {name} cannot leave job {run.id} ({run.spec.name}): {reason}")
        with self._store.transaction(durable=True):
            self._store.set_drained(name, life, operation_id)
            self._store.check_disk("the request")
            if name in self._sessions:
                self._sessions[name].drained = True
            for run in runs:
                run.drain(name)
        self._settle()

    def adjust(self, job: str, operation_id: str, text: str) -> int:
        """Have the nodes of a running job change something; the number of the change.

        Raises:
            MasterError: that cannot be done now, and why; nothing is changed.
        """
        if job not in self._runs:
            raise MasterError(what="the job cannot be changed any more: it has ended", where=job)
        number = self._runs[job].adjust(operation_id, text)
        self._settle()
        return number

    def run(self, job: str) -> JobRun | None:
        """The job, unless it is over."""
        return self._runs.get(job)

    def measured(self) -> list[MeasuredJob]:
        """What the nodes of every job that runs, or was over lately, told last; see `OverJobs`."""
        return [*self._over.measured(), *(run.measured() for run in self._runs.values() if run.news.told)]

    def nodes(self) -> list[pb.NodeStatus]:
        """Every attached node."""
        now = self._clock.now()
        return [session.status(now) for session in self._sessions.values()]

    def attach(self, hello: pb.Hello) -> AgentSession:
        """Let an agent in, and have it end what it holds of jobs that are over or that nobody knows.

        Raises:
            MasterError: another one of that name is attached already, or this one has made another connection since.
            ConfigError: this process has too few descriptors for another one.
        """
        before = self._sessions.get(hello.name)
        if before is None:
            descriptors.require(descriptors.OF_A_NODE, "the master, for another node,")
        elif before.life != hello.life or before.connection > hello.connection:
            fix = "give it another --name"
            raise MasterError(what="a node of this name is attached already", got=hello.name, fix=fix)
        if before is not None:  # its connection broke, which it was the first to notice
            before.end()
            before.jobs = {}
        kept = self._store.kept(hello.name, hello.life)
        self._store.set_kept(hello.name, hello.life, kept)
        session = self._sessions[hello.name] = AgentSession(hello, self._clock.now(), kept, self._store.on_disk)
        session.drained = self._store.is_drained(hello.name, hello.life)
        held, newest = set(), {each.job: each for each in hello.held}  # those before end already
        for each in newest.values():
            run = self._runs.get(each.job)
            if 0 < each.exited <= kept:
                continue  # it has not heard yet that this is known
            if run is not None and run.deployed(each):
                held.add(each.job)
            else:
                session.jobs[each.job] = each.node
                session.send(pb.MasterMessage(job=each.job, kill=pb.Kill()))
        for run in list(self._runs.values()):
            run.rejoin(session, held=run.id in held, ending=run.id in session.jobs)
        self._settle()
        return session

    def detach(self, session: AgentSession, reason: str) -> None:
        """An agent has gone, and why."""
        if self._leaving or self._sessions.get(session.name) is not session:
            return
        del self._sessions[session.name]
        session.end()
        session.jobs = {}
        for run in list(self._runs.values()):
            if (node := run.node_of(session)) is not None:
                run.feed(co.NodeLost(node, reason))
        self._settle()

    def heard(self, session: AgentSession, message: pb.AgentMessage) -> None:
        """An agent has said something; what has a number is kept, and has its effect, once."""
        if self._leaving or self._sessions.get(session.name) is not session:
            return
        session.heard_s = self._clock.now()
        body = message.WhichOneof("body")
        if body == "heartbeat":
            self._heard_progress(session, message.heartbeat.progress)
        elif not message.number:
            self._take(session, message)
        elif message.number > session.kept:
            with self._store.transaction(durable=not passes(message)):
                self._take(session, message)
                self._store.set_kept(session.name, session.life, message.number)
            session.kept = message.number
        session.acknowledge(at_once=body == "heartbeat")

    async def sweep(self) -> None:
        """Detach agents that have fallen silent, for ever."""
        told_s = self._clock.now()
        while True:
            before = self._clock.now()
            await asyncio.sleep(_SWEEP_S)
            now = self._clock.now()
            late_s = max(0.0, now - before - _SWEEP_S)
            if now - told_s >= _ALIVE_S:
                told_s = now
                self._store.set_alive_s(self._clock.wall())
            for session in list(self._sessions.values()):
                # For so long it was this process that did not run: what the agents sent has not been read yet.
                session.heard_s = min(now, session.heard_s + late_s)
                if session.lost(now, self._lost_after_s):
                    self.detach(session, f"no heartbeat for {now - session.heard_s:.1f} s")

    def _take(self, session: AgentSession, message: pb.AgentMessage) -> None:
        match message.WhichOneof("body"):
            case "from_process":
                self._from_process(session, message.from_process)
            case "log_lines":
                self._log_lines(session, message.log_lines)
            case "exited":
                self._exited(session, message.exited)

    def _grace_over(self) -> None:
        for run in list(self._runs.values()):
            for node in run.away():
                reason = f"its agent did not come back within {GRACE_S:g} s of the master's restart"
                run.feed(co.NodeLost(node, reason))
            run.feed(co.Tick())  # what was due while there was no master; and sets the timer for what is due later
        self._settle()

    def _make(self, job: StoredJob, spec: JobSpec) -> JobRun:
        return JobRun(job.status, spec, job.bundle, self._store, self._clock, self._deadlines, self._settle)

    def _settle(self) -> None:
        """Forget jobs that are over, and place those that wait."""
        for job, run in list(self._runs.items()):
            if run.over:
                self._over.add(run)
                del self._runs[job]
        self._over.tidy(self._runs.values())
        if not self._store.on_disk():
            return  # nodes would not be told of it
        waiting = [Waiting(run.id, run.spec.nodes) for run in self._runs.values() if run.placeable]
        # By name, not by who attached first: a job that runs again gets the same nodes in the same order.
        kept = {name for name in self._sessions for run in self._runs.values() if run.keeps(name)}
        staying = [session for session in self._sessions.values() if not session.drained]
        idle = (session.name for session in staying if not session.jobs)
        free = sorted((name for name in idle if name not in kept), key=_in_order)
        placements = place_jobs(waiting, free, len(staying))
        for job, names in placements.placed.items():
            sessions = tuple(self._sessions[name] for name in names)
            self._runs[job].place(sessions, self._encrypt([session.host for session in sessions]))
        for job, reason in placements.reasons.items():
            self._runs[job].wait_because(reason)
        # Nodes that a waiting job could use, once there are enough, join no other.
        if not any(each.job in placements.reasons and each.nodes <= len(staying) for each in waiting):
            for name in free:
                self._let_join(self._sessions[name])

    def _let_join(self, session: AgentSession) -> None:
        """Let a free node join the first job that has a place for it."""
        for run in self._runs.values():
            if session.jobs or (node := run.place_for(session)) is None:
                continue
            hosts = [session.host, *(each.host for each in run.sessions.values())]
            if run.encrypts or self._encrypt(hosts) is None:  # what is said in the clear now stays on this machine
                run.welcome(node, session)

    def _part(self, session: AgentSession, job: str) -> tuple[JobRun | None, int | None]:
        """A job, and the number of the node in it that an agent runs; None if another agent has its place by now."""
        run, node = self._runs.get(job), session.jobs.get(job)
        return run, node if run is not None and node is not None and run.sessions.get(node) is session else None

    def _from_process(self, session: AgentSession, message: pb.FromProcess) -> None:
        run, node = self._part(session, message.job)
        if run is None or node is None or message.start != run.start_number(node):
            return
        if not (run.ended or run.hears(node) or message.message.HasField("paused")):
            return
        try:
            relay(message.message, run, node, self._store, self._clock.now())
        except WireError as error:
            run.feed(co.NodeFailed(node, str(error)))
        self._settle()

    def _heard_progress(self, session: AgentSession, progress: Mapping[str, int]) -> None:
        """Bury nodes whose job process has come to a stop under an agent that is well."""
        now = self._clock.now()
        for job, still_s in session.progressed(progress, now).items():
            run, node = self._part(session, job)
            if run is not None and node is not None and still_s >= STALLED_S and run.runs(node):
                run.feed(co.NodeStalled(node, f"its job process did nothing for {still_s:.1f} s"))
        self._settle()

    def _log_lines(self, session: AgentSession, message: pb.LogLines) -> None:
        run, node = self._part(session, message.job)
        if run is not None and node is not None:
            run.news.log(node, message.lines)

    def _exited(self, session: AgentSession, message: pb.ProcessExited) -> None:
        run, node = self._part(session, message.job)
        if run is not None and node is not None and message.start != run.start_number(node):
            return  # one that was buried, and its successor has been started
        session.jobs.pop(message.job, None)
        if run is not None and node is not None:
            reason = message.reason or f"its job process ended {how_it_ended(message.status)}"
            run.feed(co.NodeExited(node, reason, refused=message.status == CANNOT_START))
        self._settle()


def _parsed(spec_json: bytes) -> JobSpec:
    try:
        return JobSpec.model_validate_json(spec_json)
    except ValidationError as error:
        raise ConfigError(what=f"the job's specification is not valid: {in_words(error)}") from error


def _in_order(name: str) -> tuple[tuple[str, int], ...]:
    """Sorts node-2 before node-10."""
    return tuple((text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", name))
