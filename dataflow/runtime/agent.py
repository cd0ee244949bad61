"""The agent: one light process per machine that attaches to a master and starts job processes for it.

It uses neither NumPy nor user code, so it stays responsive whatever a job does. Invariant: no job process outlives
its agent (parent-death signal). One may outlive the master, which finds it again when it is back; see `Outbox` for what
is kept for it meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from dataflow.clock import Clock, SystemClock
from dataflow.errors import AkoError, AuthError, MasterError
from dataflow.runtime import descriptors, threads
from dataflow.runtime.auth import Role, check_host, find_authority, find_credentials
from dataflow.runtime.control_groups import usable_cores
from dataflow.runtime.foreground import serve_until_signal
from dataflow.runtime.job_supervisor import JobSupervisor
from dataflow.runtime.outbox import Outbox
from dataflow.runtime.process import die_with_parent
from dataflow.runtime.spawning import Serving, Spawner
from dataflow.runtime.state_dir import DEFAULT_ADDRESS, default_state_dir, read_endpoint
from dataflow.runtime.version import VERSION
from dataflow.runtime.wire import CHANNEL_OPTIONS
from dataflow.transport.authorization import token_metadata
from dataflow.transport.encryption import open_aio_channel
from dataflow.transport.generated import control_pb2 as pb
from dataflow.transport.generated.control_pb2_grpc import MasterStub

HEARTBEAT_S = 0.25
"""Seconds between heartbeats."""

FIRST_S = 10.0
"""How long an agent that was never attached keeps trying, in seconds."""

SILENT_S = 5.0
"""Seconds without an answer after which the master counts as away."""

GREETING_S = 60.0
"""Seconds for which a master that has taken a connection may leave it at that."""

REFUSED_S = 60.0
"""Seconds after which a node that the master refuses, as it has one of this name, ends with its jobs."""

_BACKOFF_S = (0.1, 1.0)
_ENDPOINT_S = 0.02


@dataclass(frozen=True)
class AgentConfig:
    """Settings of an agent.

    Args:
        name: the node's name, unique in the cluster.
        master: ``host:port`` of the master; if empty, taken from `state_dir`, waiting for the master to start.
        token: the cluster's token; if empty, that of `AKO_TOKEN` or of `state_dir`.
        state_dir: the master's state directory, where it is on this machine.
        host: address at which the other nodes reach this one.
        cores: cores it may use; all of the machine if None.
        tasks: compute tasks a job gets on it; one per core that it may use if None.
        insecure: allow a host that others can reach, without encryption.
        end_jobs_after_s: seconds without a master after which its jobs are ended; they never are if None.
    """

    name: str
    master: str = ""
    token: str = ""
    state_dir: Path | None = None
    host: str = "127.0.0.1"
    cores: int | None = None
    tasks: int | None = None
    insecure: bool = False
    end_jobs_after_s: float | None = None


Announce = Callable[[dict[str, str]], None]
"""Told ``name`` and ``master`` of an agent each time it is attached."""


def _print(facts: dict[str, str]) -> None:
    print(f"node {facts['name']} is attached to {facts['master']}", flush=True)


async def attach(
    config: AgentConfig, clock: Clock | None = None, announce: Announce = _print, serving: Serving | None = None
) -> None:
    """Run an agent until this task is cancelled; once it has been attached it reconnects by itself, for ever.

    Its jobs go on while the master is away, and end with the agent.

    Args:
        config: how it runs.
        clock: the machine's if None.
        announce: told each time it is attached.
        serving: the fork server of its job processes; if None, it starts one with its first job.

    Raises:
        ConfigError: others could reach the host, and that was not allowed; or the machine gives it too few descriptors
            or threads.
        AuthError: the token is missing or wrong.
        MasterError: the master could not be reached within `FIRST_S`, or refused the node at its first attempt: a name
            taken, another version.
    """
    encrypted = find_authority(config.state_dir) is not None
    check_host(config.host, insecure=config.insecure, encrypted=encrypted)
    descriptors.raise_limit()
    descriptors.require(descriptors.OF_AN_AGENT, "a node's agent")
    threads.require(threads.OF_A_PROCESS, "a node's agent")
    clock = clock or SystemClock()
    agent = _Agent(config, clock, announce, serving)
    delay_s, attached_before, away_s = _BACKOFF_S[0], False, clock.now()
    try:
        while True:
            attached = await agent.session(patient=attached_before)
            if attached:
                delay_s, attached_before, away_s = _BACKOFF_S[0], True, clock.now()
            elif agent.is_refused_for_good:
                raise MasterError(
                    what="the master has another node of this name, which attached while this one was away",
                    got=config.name,
                    fix="end one of them, and give each a --name of its own",
                )
            elif not attached_before and clock.now() > away_s + FIRST_S:
                raise MasterError(
                    what="the master cannot be reached",
                    got=config.master or str(config.state_dir),
                    fix="start it with `ako master`, or name it with --master HOST:PORT",
                )
            elif config.end_jobs_after_s is not None and clock.now() > away_s + config.end_jobs_after_s:
                agent.kill_jobs()
            # Jitter, so that the agents of a master that comes back do not all knock at once.
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.5))
            delay_s = min(2 * delay_s, _BACKOFF_S[1])
    finally:
        await agent.end_jobs()


class _Agent:
    def __init__(self, config: AgentConfig, clock: Clock, announce: Announce, serving: Serving | None) -> None:
        self._config, self._clock, self._announce = config, clock, announce
        self._cores = config.cores or usable_cores()
        self._outbox, self._spawner = Outbox(), Spawner(serving)
        self._jobs: dict[str, JobSupervisor] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._complaint = ""
        self._refused_since_s: float | None = None
        self._silent: list[tuple[grpc.aio.Channel, asyncio.Task[None]]] = []
        self._reading: set[asyncio.Future[Any]] = set()

    @property
    def is_refused_for_good(self) -> bool:
        """Whether the master has refused this node for longer than it takes to notice that a connection has broken."""
        since_s = self._refused_since_s
        return since_s is not None and self._clock.now() > since_s + REFUSED_S

    async def session(self, *, patient: bool) -> bool:
        """Attach once; returns, when the connection has broken, whether it had been made.

        Args:
            patient: a refusal is no error but a reason to try again: the master may not yet have noticed that the
                connection before this one broke.
        """
        address = await self._address()
        if not address:
            return False
        try:
            token, authority = find_credentials(address, self._config.state_dir, self._config.token, Role.NODE)
        except AuthError as error:
            if not patient:
                raise
            self._complain(str(error))
            return False
        attached = False
        channel = open_aio_channel(address, authority, CHANNEL_OPTIONS)
        stub: Any = MasterStub(channel)  # type: ignore[no-untyped-call]
        welcome, silent = asyncio.Event(), False
        call = stub.Attach(metadata=token_metadata(token))
        writing = asyncio.create_task(self._write(call, welcome, self._outbox.connection))
        beats = asyncio.create_task(self._heartbeat(welcome))
        try:
            while (message := await self._read(call, SILENT_S if attached else GREETING_S)) is not grpc.aio.EOF:
                if message.WhichOneof("body") == "welcome":
                    await self._close_silent()
                    self._outbox.attached(message.welcome.kept, message.welcome.heard, self._clock.wall())
                    self._announce({"name": self._config.name, "master": address})
                    attached, self._complaint, self._refused_since_s = True, "", None
                    welcome.set()
                else:
                    self._handle(message)
        except grpc.aio.AioRpcError as error:
            self._complain(_checked(error, address, patient=patient))
            refused = error.code() is grpc.StatusCode.FAILED_PRECONDITION
            self._refused_since_s = (self._refused_since_s or self._clock.now()) if refused else None
        except TimeoutError:
            silent = True
            self._complain(f"the master at {address} is silent")
        finally:
            beats.cancel()
            self._outbox.detached()
            if silent:
                # A master that was stopped for a while must hear of the next connection before the end of this one.
                self._silent.append((channel, writing))
            else:
                await _close(channel, writing)
        return attached

    async def _read(self, call: Any, patience_s: float) -> Any:
        """The next message of a call, or its end.

        Raises:
            TimeoutError: none has come for so many seconds; the call goes on.
        """
        reading = asyncio.ensure_future(call.read())
        await asyncio.wait([reading], timeout=patience_s)
        if not reading.done():
            self._reading.add(reading)
            reading.add_done_callback(self._forget)
            raise TimeoutError
        return reading.result()

    def _forget(self, reading: asyncio.Future[Any]) -> None:
        self._reading.discard(reading)
        if not reading.cancelled():
            reading.exception()

    async def _close_silent(self) -> None:
        silent, self._silent = self._silent, []
        for channel, writing in silent:
            await _close(channel, writing)

    def _complain(self, text: str) -> None:
        """Say once what is wrong, on standard error."""
        if text != self._complaint:
            self._complaint = text
            print(text, file=sys.stderr, flush=True)

    def kill_jobs(self) -> None:
        """Have all job processes leave at once."""
        for supervisor in self._jobs.values():
            supervisor.kill(0.0)

    async def end_jobs(self) -> None:
        """Return when no job process is left."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._spawner.close()

    async def _address(self) -> str:
        if self._config.master:
            return self._config.master
        if self._config.state_dir is None:
            return DEFAULT_ADDRESS
        deadline_s = self._clock.now() + FIRST_S
        while not (address := read_endpoint(self._config.state_dir)) and self._clock.now() < deadline_s:
            await asyncio.sleep(_ENDPOINT_S)
        return address or ""

    def _hello(self) -> pb.Hello:
        tasks = self._config.tasks or self._cores
        return pb.Hello(
            name=self._config.name,
            host=self._config.host,
            cores=self._cores,
            tasks=tasks,
            version=VERSION,
            life=self._outbox.life,
            held=self._outbox.held(),
            connection=self._outbox.connection,
        )

    async def _write(self, call: Any, welcome: asyncio.Event, connection: int) -> None:
        """Say all there is to say over a call until it breaks, which whoever reads it is told."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(pb.AgentMessage(hello=self._hello()))
            await welcome.wait()
            while True:
                await call.write(await self._outbox.next(connection))

    async def _heartbeat(self, welcome: asyncio.Event) -> None:
        await welcome.wait()
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            progress = {job: supervisor.progress for job, supervisor in self._jobs.items()}
            self._outbox.passing("heartbeat", pb.AgentMessage(heartbeat=pb.Heartbeat(progress=progress)))

    def _handle(self, message: pb.MasterMessage) -> None:
        body, job = message.WhichOneof("body"), message.job
        if body == "deploy":
            self._deploy(job, message.deploy)
            return
        if body == "kept":
            self._outbox.kept(message.kept.number, message.kept.heard)
            return
        supervisor = self._jobs.get(job)
        if supervisor is None:
            return
        match body:
            case "connect":
                supervisor.tell(pb.ProcessCommand(connect=message.connect))
            case "adjust":
                supervisor.tell(pb.ProcessCommand(adjust=message.adjust))
            case "start":
                supervisor.tell(pb.ProcessCommand(start=message.start))
            case "state":
                supervisor.tell(pb.ProcessCommand(state=message.state))
            case "leave":
                supervisor.tell(pb.ProcessCommand(leave=message.leave))
            case "stop":
                supervisor.tell(pb.ProcessCommand(stop=message.stop))
            case "kill":
                supervisor.kill(message.kill.grace_s)

    def _deploy(self, job: str, deploy: pb.Deploy) -> None:
        if not self._outbox.hold(pb.Held(job=job, operation_id=deploy.operation_id, node=deploy.node)):
            return
        deploy.host, deploy.job = self._config.host, job
        say = partial(self._say, deploy.operation_id)
        supervisor = self._jobs[job] = JobSupervisor(job, deploy, say, self._clock, self._spawner, cores=self._cores)
        task = asyncio.create_task(self._supervise(supervisor))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _supervise(self, supervisor: JobSupervisor) -> None:
        try:
            await supervisor.run()
        finally:
            if self._jobs.get(supervisor.job) is supervisor:
                del self._jobs[supervisor.job]

    async def _say(self, operation_id: str, message: pb.AgentMessage) -> None:
        match message.WhichOneof("body"):
            case "exited":
                await self._outbox.exited(operation_id, message)
            case "from_process" if message.from_process.message.WhichOneof("body") == "statistics":
                self._outbox.passing(f"statistics of {message.from_process.job}", message)
            case _:
                await self._outbox.put(message)


async def _close(channel: grpc.aio.Channel, writing: asyncio.Task[None]) -> None:
    writing.cancel()
    await channel.close()


def _checked(error: grpc.aio.AioRpcError, address: str, *, patient: bool) -> str:
    """Raise what trying again will not mend; the text of the rest."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAUTHENTICATED:
        raise AuthError(what="the master refuses this token", where=address) from error
    if code is grpc.StatusCode.PERMISSION_DENIED:
        fix = "use that of `ako token --role node`"
        raise AuthError(what="the master takes this token, but not of a node", where=address, fix=fix) from error
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION) and not patient:
        raise MasterError(what=f"the master refuses this node: {details}", where=address) from error
    return f"not attached to {address}: {code.name} {details}"


def main(serving: Serving | None = None) -> int:
    """Run an agent from the command line; returns its exit status. `serving`: see `attach`."""
    parser = argparse.ArgumentParser(prog="python -m dataflow.runtime.agent", description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--master", default="")
    parser.add_argument("--state-dir", type=Path, default=default_state_dir())
    parser.add_argument("--host", default=AgentConfig.host)
    parser.add_argument("--tasks", type=int, default=None)
    parser.add_argument("--cores", type=int, default=None)
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("--end-jobs-after", type=float, default=None, metavar="SECONDS")
    parser.add_argument("--die-with", type=int, default=0, metavar="PID", help="end when this parent process ends")
    options = parser.parse_args()
    if options.die_with:
        die_with_parent(options.die_with)
    config = AgentConfig(
        name=options.name,
        master=options.master,
        state_dir=options.state_dir,
        host=options.host,
        tasks=options.tasks,
        cores=options.cores,
        insecure=options.insecure,
        end_jobs_after_s=options.end_jobs_after,
    )
    try:
        serve_until_signal(attach(config, serving=serving))
    except AkoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
