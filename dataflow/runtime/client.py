"""The client: submit jobs to a master, follow them, fetch what they made. Synchronous; imports no NumPy.

A client's first call answers or raises within `DEADLINE_S` while the master cannot be reached. One that has been
answered before waits for a master that goes away: its calls are made again, its streams go on where they were, for as
long as its patience lasts. Every call may be made again, for those that change something carry an operation id.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from dataflow.clock import Clock, SystemClock
from dataflow.errors import ConfigError
from dataflow.observe.events import JobEvent
from dataflow.runtime import threads
from dataflow.runtime.bundle import Bundle
from dataflow.runtime.master_calls import PATIENCE_S, MasterCalls
from dataflow.runtime.replies import JobStatus, LogLine, NodeStatus, job_status, node_status
from dataflow.runtime.wire import event_from_wire
from dataflow.transport.generated import control_pb2 as pb

if TYPE_CHECKING:
    from dataflow.plan.job import JobSpec

_UPLOAD_NBYTES_PER_S = 1 << 20
_VERIFY_S = 60.0
"""Seconds more that the master is given to look for a whole checkpoint."""


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
        self._calls = MasterCalls(address, token, authority, patience_s=patience_s, clock=clock or SystemClock())
        self._stub = self._calls.stub

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the connection."""
        self._calls.close()

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
        if (
            not self._calls.answered
        ):  # else a master that is not there could not be told from one that is away for a moment
            self.nodes()
        extra_s = request.ByteSize() / _UPLOAD_NBYTES_PER_S + (_VERIFY_S if spec.resume else 0.0)
        reply = self._calls.make(self._stub.Submit, request, extra_s=extra_s)
        return str(reply.job)

    def jobs(self) -> list[JobStatus]:
        """Every job the master knows, oldest first; without statistics."""
        return [job_status(job) for job in self._calls.make(self._stub.ListJobs, pb.ListJobsRequest()).jobs]

    def job(self, job: str) -> JobStatus:
        """One job, with the newest statistics of its nodes."""
        reply = self._get(job)
        return job_status(reply.status, reply.statistics, reply.earlier, reply.last_lines)

    def spec_json(self, job: str) -> str:
        """The `JobSpec` with which a job was submitted, as JSON text."""
        return str(self._get(job).spec_json.decode())

    def cancel(self, job: str, operation_id: str = "") -> None:
        """Ask a job to stop. Returns before it has; a job that has ended is left as it is."""
        operation_id = operation_id or secrets.token_hex(16)
        self._calls.make(self._stub.Cancel, pb.CancelRequest(operation_id=operation_id, job=job))

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
        return int(self._calls.make(self._stub.Adjust, request).number)

    def watch(self, job: str, since: int = 0) -> Iterator[JobEvent]:
        """A job's events in order; ends when the job has ended.

        Args:
            job: its id.
            since: index of the first event wanted; after a break, one more than that of the last event seen.
        """
        request = pb.WatchRequest(job=self._resolve(job), since=since)
        last = None
        for message in self._calls.stream(self._stub.Watch, request):
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
        for reply in self._calls.stream(self._stub.Logs, request):
            request.since = reply.next
            for line in reply.lines:
                yield LogLine(line.node, line.wall_s, line.text)

    def artifacts(self, job: str) -> Iterator[tuple[str, bytes]]:
        """Name and content of every file that a job has produced so far, by name."""
        parts: list[bytes] = []
        given = set[str]()
        for chunk in self._calls.stream(self._stub.Artifacts, pb.ArtifactsRequest(job=self._resolve(job))):
            if not chunk.start:
                parts = []
            parts.append(chunk.data)
            if chunk.last and chunk.name not in given:
                given.add(chunk.name)
                yield chunk.name, b"".join(parts)

    def nodes(self) -> list[NodeStatus]:
        """Every attached node, in the order in which they attached."""
        return [node_status(node) for node in self._calls.make(self._stub.ListNodes, pb.ListNodesRequest()).nodes]

    def drain(self, name: str, operation_id: str = "") -> None:
        """Have a node leave its jobs, which go on, and get no more. Returns before it has: see `NodeStatus`.

        Raises:
            MasterError: no node of this name was ever attached, or a job cannot do without it; nothing has happened.
        """
        operation_id = operation_id or secrets.token_hex(16)
        self._calls.make(self._stub.DrainNode, pb.DrainNodeRequest(operation_id=operation_id, name=name))

    def _get(self, job: str) -> pb.GetJobReply:
        reply: pb.GetJobReply = self._calls.make(self._stub.GetJob, pb.GetJobRequest(job=job))
        return reply

    def _resolve(self, job: str) -> str:
        """The whole id. A stream has no deadline, so this is also what tells in time that the master is gone."""
        return self._get(job).status.job
