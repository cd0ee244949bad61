"""The client: submit jobs to a master, follow them, fetch what they made. Synchronous; imports no NumPy.

A client's first call answers or raises within `DEADLINE_S` while the master cannot be reached. One that has been
answered before waits for a master that goes away: its calls are made again, its streams go on where they were, for as
long as its patience lasts. Every call may be made again, for those that change something carry an operation id.

Invariant: calls are made, and the channel is closed, on threads of the client's own. Ctrl-C is raised on the main
thread wherever that is, and after an interrupt inside of gRPC, closing the channel waits for ever (grpc issue 19973).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import grpc

from dataflow.clock import Clock, SystemClock
from dataflow.engine.job_life import ENDED, JobState
from dataflow.errors import AkoError, AuthError, ConfigError, MasterError
from dataflow.observe.events import JobEvent, NodeChange
from dataflow.reports import NodeStatistics, OperatorReport
from dataflow.runtime import threads
from dataflow.runtime.auth import AUTHORITY_FILE, AUTHORITY_VARIABLE, TOKEN_VARIABLE
from dataflow.runtime.bundle import Bundle
from dataflow.runtime.wire import (
    CHANNEL_OPTIONS,
    change_from_wire,
    event_from_wire,
    report_from_wire,
    statistics_from_wire,
)
from dataflow.transport.authorization import token_metadata
from dataflow.transport.encryption import open_channel
from dataflow.transport.generated import control_pb2 as pb
from dataflow.transport.generated.control_pb2_grpc import MasterStub

if TYPE_CHECKING:
    from dataflow.plan.job import JobSpec

DEADLINE_S = 5.0
"""Seconds within which the master must answer."""

PATIENCE_S = 600.0
"""Seconds for which a master that was there may be away."""

_AGAIN_S = 0.2
_NOTICED_S = 0.5
"""Seconds after which a Ctrl-C is noticed at the latest: one that the system gives to another thread, or just before
this one begins to wait, does not wake it."""

_UPLOAD_NBYTES_PER_S = 1 << 20
_VERIFY_S = 60.0
"""Seconds more that the master is given to look for a whole checkpoint."""

_THREADS = 1000
"""Calls at a time; threads are made when they are needed."""


_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class MasterAwayError(MasterError):
    """The master cannot be reached now."""


@dataclass(frozen=True, slots=True)
class JobWarning:
    """Something wrong that a job goes on without.

    Args:
        wall_s: when it was found, in seconds since 1970-01-01 UTC.
        text: what it is.
    """

    wall_s: float
    text: str


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as the master sees it.

    Args:
        id: its id.
        name: the name its specification gives it.
        state: where it is in its life.
        reason: what it waits for, or what made it fail.
        stopped_by: what made a finished job stop: target, patience, time, epochs or cancel.
        nodes: number of nodes it wants.
        submitted_s, started_s, ended_s: seconds since 1970-01-01 UTC; `None` before.
        ran_s: seconds for which it ran, whoever set a clock meanwhile; `None` until it has ended.
        node_names: names of the nodes it was placed on, by node number.
        last_report: its newest report.
        master_away: from when until when there was no master while it ran, in seconds since 1970-01-01 UTC.
        statistics: newest statistics of each node; filled in by `Client.job` and `Client.wait`.
        earlier: the few that nodes told before these while the job runs, oldest first; filled in like them.
        failed_node: number of the node that made it fail; None if none did.
        last_lines: the last 50 lines that this node printed; filled in like the statistics.
        changes: the newest change of every node that has died since the job began to run.
        warnings: the newest 20, oldest first.
    """

    id: str
    name: str
    state: JobState
    reason: str
    stopped_by: str
    nodes: int
    submitted_s: float
    started_s: float | None = None
    ended_s: float | None = None
    ran_s: float | None = None
    node_names: tuple[str, ...] = ()
    last_report: OperatorReport | None = None
    master_away: tuple[tuple[float, float], ...] = ()
    statistics: tuple[NodeStatistics, ...] = field(default=())
    earlier: tuple[NodeStatistics, ...] = field(default=())
    failed_node: int | None = None
    last_lines: tuple[str, ...] = ()
    changes: tuple[NodeChange, ...] = ()
    warnings: tuple[JobWarning, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a job process printed.

    Args:
        node: number of the node.
        wall_s: seconds since 1970-01-01 UTC, at the node.
        text: the line, without its end.
    """

    node: int
    wall_s: float
    text: str


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """An attached node.

    Args:
        name: its name.
        host: where other nodes reach it.
        cores: cores it may use.
        tasks: compute tasks a job gets on it.
        job: id of the job that runs on it; empty if it is free.
        silent_s: seconds since the master last heard of it.
        progress: progress counter of the job's process.
        drained: it was asked to leave its jobs, and gets no more.
    """

    name: str
    host: str
    cores: int
    tasks: int
    job: str
    silent_s: float
    progress: int
    drained: bool = False


class Client:
    """A connection to a master. Use it in a ``with`` statement, or `close` it.

    Args:
        address: the master's ``host:port``.
        token: the cluster's token; see `dataflow.runtime.auth.find_token`.
        authority: certificate of who must have signed the master's; see `dataflow.runtime.auth.find_authority`. None:
            what is said is not encrypted.
        patience_s: for how long a master that has answered may be away.
        clock: the clock.

    Raises:
        ConfigError: the machine gives it too few threads.

    All methods raise `MasterError` if the master cannot be reached or refuses, and `AuthError` if the token is wrong.
    Where a job is asked for by id, the beginning of exactly one id will do.
    """

    def __init__(
        self,
        address: str,
        token: str,
        authority: bytes | None = None,
        *,
        patience_s: float = PATIENCE_S,
        clock: Clock | None = None,
    ) -> None:
        threads.require(threads.OF_A_PROCESS, "a client of a master")
        self.address = address
        self._patience_s, self._clock, self._answered = patience_s, clock or SystemClock(), False
        self._metadata = token_metadata(token)
        self._channel = open_channel(address, authority, CHANNEL_OPTIONS)
        self._stub: Any = MasterStub(self._channel)  # type: ignore[no-untyped-call]
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ako-client")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the connection."""
        self._apart(self._channel.close)

    def submit(self, spec: JobSpec, bundle: Bundle | None = None, operation_id: str = "") -> str:
        """Put a job into the master's queue.

        Args:
            spec: the job.
            bundle: the user's code that the graph names; None if it names installed modules only.
            operation_id: submitting again with the same id gives the same job, unless it has been removed since
                (``ako master --keep-jobs``); a fresh one if left out.

        Returns:
            The job's id.

        Raises:
            ConfigError: the master refuses the job, and why; or its tensors are phantoms.
        """
        if spec.graph.tensor_scale != 1:
            what = "the job's tensors stand for larger ones, which only a simulation can count"
            raise ConfigError(what, got=spec.name, fix="add --sim, or leave out phantom=true")
        request = pb.SubmitRequest(
            operation_id=operation_id or secrets.token_hex(16),
            spec_json=spec.model_dump_json().encode(),
            bundle=bundle.data if bundle else b"",
            bundle_digest=bundle.digest if bundle else "",
        )
        if not self._answered:  # else a master that is not there could not be told from one that is away for a moment
            self.nodes()
        extra_s = request.ByteSize() / _UPLOAD_NBYTES_PER_S + (_VERIFY_S if spec.resume else 0.0)
        reply = self._call(self._stub.Submit, request, extra_s=extra_s)
        return str(reply.job)

    def jobs(self) -> list[JobStatus]:
        """Every job the master knows, oldest first; without statistics."""
        return [_job_status(job) for job in self._call(self._stub.ListJobs, pb.ListJobsRequest()).jobs]

    def job(self, job: str) -> JobStatus:
        """One job, with the newest statistics of its nodes."""
        reply = self._get(job)
        return _job_status(reply.status, reply.statistics, reply.earlier, reply.last_lines)

    def spec_json(self, job: str) -> str:
        """The `JobSpec` with which a job was submitted, as JSON text."""
        return str(self._get(job).spec_json.decode())

    def cancel(self, job: str, operation_id: str = "") -> None:
        """Ask a job to stop. Returns before it has; a job that has ended is left as it is."""
        operation_id = operation_id or secrets.token_hex(16)
        self._call(self._stub.Cancel, pb.CancelRequest(operation_id=operation_id, job=job))

    def adjust(self, job: str, text: str, operation_id: str = "") -> int:
        """Have the nodes of a running job change something; `watch` tells how far that is.

        Args:
            job: its id.
            text: what is to be changed; its operators know what that means.
            operation_id: asking again with the same id changes nothing more; a fresh one if left out.

        Returns:
            The number of the change.

        Raises:
            MasterError: it cannot be made now, and why; nothing is changed.
        """
        operation_id = operation_id or secrets.token_hex(16)
        request = pb.AdjustRequest(operation_id=operation_id, job=job, text=text)
        return int(self._call(self._stub.Adjust, request).number)

    def watch(self, job: str, since: int = 0) -> Iterator[JobEvent]:
        """A job's events in order; ends when the job has ended.

        Args:
            job: its id.
            since: index of the first event wanted; after a break, one more than that of the last event seen.
        """
        request = pb.WatchRequest(job=self._resolve(job), since=since)
        last = None
        for message in self._stream_on(self._stub.Watch, request):
            # Those statistics that pass by carry the index of the next event that is kept.
            request.since = message.index + (message.WhichOneof("body") != "statistics")
            if message != last:
                last = message
                yield event_from_wire(message)

    def wait(self, job: str) -> JobStatus:
        """Return when a job has ended."""
        for _event in self.watch(job):
            pass
        return self.job(job)

    def logs(self, job: str, *, follow: bool = False) -> Iterator[LogLine]:
        """What a job's processes printed: what the master has kept, and with `follow` all until the job has ended."""
        request = pb.LogsRequest(job=self._resolve(job), follow=follow)
        for reply in self._stream_on(self._stub.Logs, request):
            request.since = reply.next
            for line in reply.lines:
                yield LogLine(line.node, line.wall_s, line.text)

    def artifacts(self, job: str) -> Iterator[tuple[str, bytes]]:
        """Name and content of every file that a job has produced so far, by name."""
        parts: list[bytes] = []
        given = set[str]()
        for chunk in self._stream_on(self._stub.Artifacts, pb.ArtifactsRequest(job=self._resolve(job))):
            if not chunk.start:
                parts = []
            parts.append(chunk.data)
            if chunk.last and chunk.name not in given:
                given.add(chunk.name)
                yield chunk.name, b"".join(parts)

    def nodes(self) -> list[NodeStatus]:
        """Every attached node, in the order in which they attached."""
        return [
            NodeStatus(
                node.name, node.host, node.cores, node.tasks, node.job, node.silent_s, node.progress, node.drained
            )
            for node in self._call(self._stub.ListNodes, pb.ListNodesRequest()).nodes
        ]

    def drain(self, name: str, operation_id: str = "") -> None:
        """Have a node leave its jobs, which go on, and get no more. Returns before it has: see `NodeStatus`.

        Raises:
            MasterError: no node of this name was ever attached, or a job cannot do without it; nothing has happened.
        """
        operation_id = operation_id or secrets.token_hex(16)
        self._call(self._stub.DrainNode, pb.DrainNodeRequest(operation_id=operation_id, name=name))

    def _get(self, job: str) -> pb.GetJobReply:
        reply: pb.GetJobReply = self._call(self._stub.GetJob, pb.GetJobRequest(job=job))
        return reply

    def _resolve(self, job: str) -> str:
        """The whole id. A stream has no deadline, so this is also what tells in time that the master is gone."""
        return self._get(job).status.job

    def _call(self, method: Any, request: object, extra_s: float = 0.0) -> Any:
        away_s: float | None = None
        while True:
            try:
                with _errors(self.address):
                    reply = self._apart(method, request, timeout=DEADLINE_S + extra_s, metadata=self._metadata)
            except MasterAwayError as error:
                away_s = self._be_patient(error, away_s)
            else:
                self._answered = True
                return reply

    def _stream_on(self, method: Any, request: object) -> Iterator[Any]:
        """The messages of a stream; made again after a break with what `request` asks for by then."""
        away_s: float | None = None
        while True:
            try:
                for message in self._stream(method, request):
                    away_s = None
                    yield message
            except MasterAwayError as error:
                away_s = self._be_patient(error, away_s)
            else:
                return

    def _be_patient(self, error: MasterAwayError, away_s: float | None) -> float:
        """Wait a moment for a master that has been away since `away_s`; since when it has been.

        Raises:
            MasterAwayError: `error`, if it was never there, or has been away for too long.
        """
        now = self._clock.now()
        away_s = now if away_s is None else away_s
        if not self._answered or now - away_s > self._patience_s:
            raise error
        self._clock.sleep(_AGAIN_S)
        return away_s

    def _stream(self, method: Any, request: object) -> Iterator[Any]:
        call = self._apart(method, request, metadata=self._metadata)
        try:
            with _errors(self.address):
                while (message := self._apart(next, call, None)) is not None:
                    yield message
        finally:
            call.cancel()

    def _apart(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """What a function gives on another thread; Ctrl-C ends the waiting, not the function."""
        given = self._threads.submit(function, *arguments, **named)
        while True:
            try:
                return given.result(_NOTICED_S)
            except TimeoutError:
                if given.done():
                    return given.result()


@contextmanager
def _errors(address: str) -> Iterator[None]:
    """Turn gRPC's errors into ours."""
    try:
        yield
    except grpc.RpcError as error:
        raise _translated(error, address) from error


def _translated(error: Any, address: str) -> AkoError:
    code, details = error.code(), error.details()
    if code in _AWAY:
        said = (details or "").lower()
        if "certificate is not yet valid" in said or "certificate has expired" in said:
            what = "by this machine's clock the master's certificate is not good yet, or no longer"
            return AuthError(what, where=address, fix="set the clocks of both machines, or restart the master")
        if "handshake" in said or "certificate" in said:
            what = "whoever is there does not show a certificate of this cluster"
            return AuthError(what, where=address, fix=f"set {AUTHORITY_VARIABLE} to the master's {AUTHORITY_FILE}")
        fix = "start it with `ako master`, check the address, or, if it speaks TLS, set " + AUTHORITY_VARIABLE
        return MasterAwayError(what="the master cannot be reached", where=address, fix=fix)
    if code is grpc.StatusCode.UNAUTHENTICATED:
        fix = f"set {TOKEN_VARIABLE} to what the master's token file holds"
        return AuthError(what="the master refuses this token", where=address, fix=fix)
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return AuthError(what=details, where=address, fix="use the token of another role; see `ako token --help`")
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return ConfigError(what=details)
    return MasterError(what=details or f"the master answered {code.name}", where=address)


def _job_status(message: pb.JobStatus, statistics: Any = (), earlier: Any = (), last_lines: Any = ()) -> JobStatus:
    return JobStatus(
        id=message.job,
        name=message.name,
        state=JobState(message.state),
        reason=message.reason,
        stopped_by=message.stopped_by,
        nodes=message.nodes,
        submitted_s=message.submitted_s,
        started_s=message.started_s or None,
        ended_s=message.ended_s or None,
        ran_s=message.ran_s or None,
        node_names=tuple(message.node_names),
        last_report=report_from_wire(message.last_report) if message.HasField("last_report") else None,
        master_away=tuple((each.from_s, each.to_s) for each in message.master_away),
        statistics=tuple(statistics_from_wire(each) for each in statistics),
        earlier=tuple(statistics_from_wire(each) for each in earlier),
        failed_node=message.failed_node if message.HasField("failed_node") else None,
        last_lines=tuple(last_lines),
        changes=tuple(change_from_wire(each) for _, each in sorted(message.changes.items())),
        warnings=tuple(JobWarning(each.wall_s, each.text) for each in message.warnings),
    )
