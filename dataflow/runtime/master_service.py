"""The master's calls: checks what comes in, asks the dispatcher and the store, answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc

from dataflow.engine.job_life import ENDED, JobState
from dataflow.errors import AkoError, BundleError, CheckpointError, ConfigError, GraphError, MasterError, PlanError
from dataflow.runtime.agent_session import AgentSession
from dataflow.runtime.bundle import Bundle
from dataflow.runtime.dispatcher import Dispatcher
from dataflow.runtime.store import Store
from dataflow.runtime.wire import CHUNK_NBYTES
from dataflow.transport.generated import control_pb2 as pb
from dataflow.transport.generated.control_pb2_grpc import MasterServicer

_LAST = 2**63 - 1
"""The largest number that the store has for a line or an event."""

LAST_LINES = 50
"""Log lines of the node that made a job fail, told with the job."""

Context = grpc.aio.ServicerContext[Any, Any]


class MasterService(MasterServicer):
    """The service `Master` of control.proto.

    Args:
        dispatcher: jobs and agents.
        store: what is kept.
        version: the program's version, which agents must have too.
        max_bundle_nbytes: largest bundle accepted.
    """

    def __init__(self, dispatcher: Dispatcher, store: Store, version: str, max_bundle_nbytes: int) -> None:
        self._dispatcher, self._store, self._version = dispatcher, store, version
        self._max_bundle_nbytes = max_bundle_nbytes

    async def Submit(self, request: pb.SubmitRequest, context: Context) -> pb.SubmitReply:  # noqa: N802
        """See control.proto."""
        try:
            _check_operation_id(request.operation_id)
            if len(request.bundle) > self._max_bundle_nbytes:
                what = f"a bundle may have {self._max_bundle_nbytes} bytes"
                raise ConfigError(what, got=len(request.bundle), fix="keep data out of the job's folder")
            bundle = Bundle(request.bundle_digest, request.bundle)
            spec_json, bundle = await self._dispatcher.chosen(request.spec_json, bundle)
            return pb.SubmitReply(job=self._dispatcher.submit(request.operation_id, spec_json, bundle))
        except AkoError as error:
            await _refuse(context, error)

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsReply:  # noqa: N802
        """See control.proto."""
        return pb.ListJobsReply(jobs=self._store.statuses())

    async def GetJob(self, request: pb.GetJobRequest, context: Context) -> pb.GetJobReply:  # noqa: N802
        """See control.proto."""
        job = self._store.job(await self._find(request.job, context))
        statistics = self._store.statistics(job.job)
        run = self._dispatcher.run(job.job)
        told = run.news.told if run is not None and not run.ended else ()
        earlier = [each for _, recent in told for each in recent[:-1]]
        reply = pb.GetJobReply(status=job.status, statistics=statistics, spec_json=job.spec_json, earlier=earlier)
        if job.status.HasField("failed_node"):
            reply.last_lines.extend(self._store.last_log_lines(job.job, job.status.failed_node, LAST_LINES))
        return reply

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelReply:  # noqa: N802
        """See control.proto."""
        try:
            _check_operation_id(request.operation_id)
        except AkoError as error:
            await _refuse(context, error)
        self._dispatcher.cancel(await self._find(request.job, context))
        return pb.CancelReply()

    async def Adjust(self, request: pb.AdjustRequest, context: Context) -> pb.AdjustReply:  # noqa: N802
        """See control.proto."""
        job = await self._find(request.job, context)
        try:
            _check_operation_id(request.operation_id)
            return pb.AdjustReply(number=self._dispatcher.adjust(job, request.operation_id, request.text))
        except AkoError as error:
            await _refuse(context, error)

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.JobEvent]:  # noqa: N802
        """See control.proto."""
        job = await self._find(request.job, context)
        index = min(request.since, _LAST)
        seen: dict[int, int] = {}
        while True:
            run = self._dispatcher.run(job)
            ticket = run.news.bell.ticket() if run else None
            events = self._store.events(job, index)
            for event in events:
                index = event.index + 1
                yield event
                if event.WhichOneof("body") == "state" and JobState(event.state.state) in ENDED:
                    return
            if run is not None and ticket is not None and not events:
                for event in run.news.passing(seen):
                    yield event
                await ticket.wait()
            elif not events:
                await self._find(job, context)
                return

    async def Logs(self, request: pb.LogsRequest, context: Context) -> AsyncIterator[pb.LogsReply]:  # noqa: N802
        """See control.proto."""
        job = await self._find(request.job, context)
        since = min(request.since, _LAST)
        while True:
            run = self._dispatcher.run(job)
            ticket = run.news.bell.ticket() if run else None
            if lines := self._store.log_lines(job, since):
                since = lines[-1][0] + 1
                yield pb.LogsReply(lines=[line for _, line in lines], next=since)
                continue
            if ticket is None or not request.follow:
                await self._find(job, context)
                return
            await ticket.wait()

    async def Artifacts(  # noqa: N802
        self, request: pb.ArtifactsRequest, context: Context
    ) -> AsyncIterator[pb.ArtifactChunk]:
        """See control.proto."""
        job = await self._find(request.job, context)
        for name, path in self._store.artifacts(job):
            with path.open("rb") as file:
                data, start = file.read(CHUNK_NBYTES), 0
                while True:
                    following = file.read(CHUNK_NBYTES)
                    yield pb.ArtifactChunk(name=name, data=data, last=not following, start=start)
                    if not following:
                        break
                    data, start = following, start + len(data)
        await self._find(job, context)

    async def DrainNode(self, request: pb.DrainNodeRequest, context: Context) -> pb.DrainNodeReply:  # noqa: N802
        """See control.proto."""
        try:
            _check_operation_id(request.operation_id)
            self._dispatcher.drain(request.name, request.operation_id)
        except AkoError as error:
            await _refuse(context, error)
        return pb.DrainNodeReply()

    async def ListNodes(self, request: pb.ListNodesRequest, context: Context) -> pb.ListNodesReply:  # noqa: N802
        """See control.proto."""
        return pb.ListNodesReply(nodes=self._dispatcher.nodes())

    async def Attach(  # noqa: N802
        self, requests: AsyncIterator[pb.AgentMessage], context: Context
    ) -> AsyncIterator[pb.MasterMessage]:
        """See control.proto."""
        session = await self._greet(requests, context)
        reader = asyncio.create_task(self._read(session, requests))
        try:
            yield pb.MasterMessage(welcome=pb.Welcome(version=self._version, kept=session.safe, heard=session.kept))
            while (message := await session.next()) is not None:
                yield message
        finally:
            reader.cancel()
            self._dispatcher.detach(session, "its connection broke")

    async def _greet(self, requests: AsyncIterator[pb.AgentMessage], context: Context) -> AgentSession:
        message = await anext(aiter(requests), pb.AgentMessage())
        hello = message.hello
        try:
            if message.WhichOneof("body") != "hello" or not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", hello.name):
                fix = "a name is 1 to 64 letters, digits, '.', '_' and '-'"
                raise ConfigError(what="an agent introduced itself badly", got=hello.name, fix=fix)
            if not re.fullmatch(r"[A-Za-z0-9._:%\[\]-]{1,255}", hello.host):
                fix = "a host is an address, or a name of at most 255 letters, digits, '.', '_' and '-'"
                raise ConfigError(what="an agent introduced itself badly", got=hello.host, fix=fix)
            if hello.version != self._version:
                fix = f"install version {self._version} on the node"
                raise ConfigError(what="the agent is of another version", got=hello.version, fix=fix)
            return self._dispatcher.attach(hello)
        except AkoError as error:
            await _refuse(context, error)

    async def _read(self, session: AgentSession, requests: AsyncIterator[pb.AgentMessage]) -> None:
        try:
            async for message in requests:
                self._dispatcher.heard(session, message)
        finally:  # also when one of them broke something here: the agent then starts afresh, instead of being ignored
            session.end()

    async def _find(self, prefix: str, context: Context) -> str:
        """The id of a job; or refuse, also at the end of what was asked for of one that has been removed meanwhile."""
        try:
            return self._store.find(prefix)
        except AkoError as error:
            await _refuse(context, error)


def _check_operation_id(operation_id: str) -> None:
    if not 1 <= len(operation_id) <= 128:
        raise MasterError(what="an operation id has 1 to 128 characters", got=operation_id)


async def _refuse(context: Context, error: AkoError) -> NoReturn:
    """Answer with an error; a bad request is told apart from one that only cannot be done now."""
    bad = isinstance(error, ConfigError | PlanError | GraphError | BundleError | CheckpointError)
    code = grpc.StatusCode.INVALID_ARGUMENT if bad else grpc.StatusCode.FAILED_PRECONDITION
    await context.abort(code, str(error))
    raise error
