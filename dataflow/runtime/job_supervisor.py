"""An agent's hold on one job process: starts it, relays to it, captures what it prints, and ends it.

Invariant: `run` returns only when the process and its whole process group are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import shutil
import signal
import socket
import tempfile
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import BinaryIO

from dataflow.clock import Clock
from dataflow.errors import ConfigError, in_words
from dataflow.runtime import descriptors
from dataflow.runtime.frames import pack_frame, read_frame
from dataflow.runtime.process import CANNOT_START, is_stopped, signal_group
from dataflow.runtime.processors import main_thread_us
from dataflow.runtime.spawning import Spawned, Spawner
from dataflow.runtime.watchdog import PAGE_NBYTES, Watch
from dataflow.transport.generated import control_pb2 as pb

HUNG = 124
"""Exit status that is told of a process which the watchdog has ended."""

LATE_S = 30.0
"""A process that is ended before it was started, so long after it was made, says first what it was at, in seconds."""

MAX_LINE_NBYTES = 4096
"""Longer lines are cut."""

_FLUSH_S = 0.1
_TERMINATE_S = 1.0
_DRAIN_S = 5.0
_SETTLE_S = 0.05
_WATCH_S = 0.25
_DUMP_S = 1.0
_MAX_UNSENT_LINES = 1000


@dataclass(frozen=True)
class _Ends:
    """What the agent holds of a job process.

    Args:
        process: the process.
        control: the connection to it.
        lines: what it prints.
        gone: descriptor that is readable once it has ended.
        watch: what it does.
    """

    process: Spawned
    control: socket.socket
    lines: BinaryIO
    gone: int
    watch: Watch


class JobSupervisor:
    """One job process.

    Args:
        job: the job's id.
        deploy: what the process is told first.
        say: sends a message to the master; waits while too many are queued.
        clock: the clock.
        spawner: starts the process.
        cores: processors that its node may use.
    """

    def __init__(
        self,
        job: str,
        deploy: pb.Deploy,
        say: Callable[[pb.AgentMessage], Awaitable[None]],
        clock: Clock,
        spawner: Spawner,
        *,
        cores: int = 1,
    ) -> None:
        self.job, self._start_number = job, deploy.start
        self._say, self._clock, self._spawner, self._deploy = say, clock, spawner, deploy
        self._cores = cores
        self._unsent: list[pb.LogLine] = []
        self._dropped = 0
        self._commands: asyncio.Queue[pb.ProcessCommand | None] = asyncio.Queue()
        self._commands.put_nowait(pb.ProcessCommand(deploy=deploy))
        self._watch: Watch | None = None
        self._hang = self._broken = ""
        self._process: Spawned | None = None
        self._made_s, self._started = clock.now(), False
        self._ending: asyncio.Task[None] | None = None

    @property
    def progress(self) -> int:
        """The process's progress counter and microseconds of processor time; readable whatever the process is doing.

        The sum stands still if the process is stopped or all of it waits for ever, and not if it has too little of a
        busy processor to count.
        """
        counted = 0 if self._watch is None else self._watch.progress
        return counted if self._process is None else counted + main_thread_us(self._process.pid)

    def tell(self, command: pb.ProcessCommand) -> None:
        """Queue a command for the process."""
        self._started |= command.HasField("start")
        self._commands.put_nowait(command)

    def kill(self, grace_s: float) -> None:
        """Have the process leave; after `grace_s` seconds SIGTERM, a second later SIGKILL, to its whole group."""
        if self._ending is not None:
            self._ending.cancel()
        self._ending = asyncio.create_task(self._end(grace_s))

    async def run(self) -> None:
        """Start the process, and return when it is gone; then the master has been told how it ended."""
        with contextlib.ExitStack() as held:
            try:
                ends = await self._start(held)
            except Exception as error:  # whatever it is, the master has to hear of it
                text = str(error)
                if not isinstance(error, (OSError, ConfigError)):
                    traceback.print_exception(error)
                    text = f"{type(error).__name__}: {in_words(error)}"
                await self._say(self._exited(CANNOT_START, f"the job process cannot be started: {text}"))
                return
            if self._ending is not None:  # nobody waits for it any more
                self._signal(signal.SIGKILL)
            try:
                await self._attend(ends)
            except Exception as error:  # likewise
                traceback.print_exception(error)
                self._signal(signal.SIGKILL)
                status = await asyncio.to_thread(ends.process.wait)
                await self._say(self._exited(status, f"its agent cannot attend to it any more: {error}"))

    async def _start(self, held: contextlib.ExitStack) -> _Ends:
        """Start the process. All descriptors, and the disk, are asked for here, and given back by `held`.

        Raises:
            ConfigError: there are too few descriptors.
            OSError: there is no room, or no process more.
        """
        descriptors.require(descriptors.OF_A_JOB, "a node's agent, for a job,")
        # Made here and not by the process, so that it goes even if that is killed; and with the agent's, if that is.
        folder = tempfile.mkdtemp(prefix="job-", dir=self._spawner.scratch.path)
        held.callback(shutil.rmtree, folder, ignore_errors=True)
        memory = os.memfd_create("ako-board", os.MFD_CLOEXEC)
        held.callback(os.close, memory)
        os.ftruncate(memory, PAGE_NBYTES)
        page = held.enter_context(mmap.mmap(memory, PAGE_NBYTES, prot=mmap.PROT_READ))
        self._watch = watch = Watch(page)
        held.callback(self._forget_watch)
        ours, theirs = socket.socketpair()
        held.enter_context(ours)
        with theirs:
            output, printed = os.pipe()
            lines = held.enter_context(os.fdopen(output, "rb", 0))
            with os.fdopen(printed, "wb", 0):
                arguments = ["--parent", str(os.getpid()), "--folder", folder, "--cores", str(self._cores)]
                passed = (theirs.fileno(), memory, printed)
                process = self._process = await self._spawner.spawn(self._deploy, arguments, passed)
        held.callback(self._spawner.reap)
        held.callback(process.wait)
        held.callback(self._signal, signal.SIGKILL)
        gone = os.pidfd_open(process.pid)
        held.callback(os.close, gone)
        return _Ends(process, ours, lines, gone, watch)

    async def _attend(self, ends: _Ends) -> None:
        """Relay to and from the process until it is gone."""
        reader, writer = await asyncio.open_connection(sock=ends.control)
        tasks = [asyncio.create_task(task) for task in (self._write(writer), self._flush(), self._guard(ends))]
        readers = [asyncio.create_task(task) for task in (self._relay(reader), self._capture(ends.lines))]
        for task in (*tasks, *readers):
            task.add_done_callback(self._mind)
        try:
            await _until_readable(ends.gone)
            # Whatever the process started goes with it; then its pipes end, and what is in them still counts.
            self._signal(signal.SIGKILL)
            await asyncio.wait(readers, timeout=_DRAIN_S)
            await self._send_lines()
            status = ends.process.wait()
            await self._say(self._exited(HUNG if self._hang else status, self._hang or self._broken))
        finally:
            every = [*tasks, *readers, *([self._ending] if self._ending else [])]
            for task in every:
                task.cancel()
            writer.close()
            await asyncio.gather(*every, return_exceptions=True)

    def _mind(self, task: asyncio.Task[None]) -> None:
        """End the process if the agent cannot go on relaying to and from it: the job would wait for it for ever."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        traceback.print_exception(error)
        self._broken = self._broken or f"its agent cannot attend to it any more: {error}"
        self._signal(signal.SIGKILL)

    def _forget_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch = None

    def _exited(self, status: int, reason: str) -> pb.AgentMessage:
        exited = pb.ProcessExited(job=self.job, start=self._start_number, status=status, reason=reason)
        return pb.AgentMessage(exited=exited)

    async def _end(self, grace_s: float) -> None:
        self._commands.put_nowait(None)
        if self._process is not None and not self._started and self._clock.now() - self._made_s >= LATE_S:
            self._keep(b"ended before it was ready; the stacks of all its threads:")
            self._process.send_signal(signal.SIGUSR1)  # has faulthandler print them
            grace_s = max(grace_s, _DUMP_S)
        await asyncio.sleep(grace_s)
        self._signal(signal.SIGTERM)
        await asyncio.sleep(_TERMINATE_S)
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """Signal the process's group while the id is sure to be its own: from the start until it is waited for."""
        if self._process is not None and self._process.returncode is None:
            signal_group(self._process.pid, number)

    async def _guard(self, ends: _Ends) -> None:
        """End the process once one of its tasks hangs, with the stacks of all its threads in the log."""
        while True:
            await asyncio.sleep(_WATCH_S)
            hang = ends.watch.look(self._clock.now(), stopped=is_stopped(ends.process.pid))
            if hang is not None and self._ending is None:
                self._hang = str(hang)
                self._keep(f"watchdog: {hang}".encode())
                ends.process.send_signal(signal.SIGUSR1)  # has faulthandler print them
                await asyncio.sleep(_DUMP_S)
                self._signal(signal.SIGKILL)
                return

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while (command := await self._commands.get()) is not None:
                writer.write(pack_frame(command.SerializeToString()))
                await writer.drain()
            writer.write_eof()

    async def _relay(self, reader: asyncio.StreamReader) -> None:
        while (frame := await read_frame(reader)) is not None:
            message = pb.ProcessMessage.FromString(frame)
            if message.HasField("failed"):
                await asyncio.sleep(_SETTLE_S)  # what it has printed before comes by another way
            await self._send_lines()
            said = pb.FromProcess(job=self.job, start=self._start_number, message=message)
            await self._say(pb.AgentMessage(from_process=said))

    async def _capture(self, output: BinaryIO) -> None:
        reader = asyncio.StreamReader(limit=MAX_LINE_NBYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, output)
        try:
            await self._keep_lines(reader)
        finally:
            transport.close()

    async def _keep_lines(self, reader: asyncio.StreamReader) -> None:
        pending = b""
        while chunk := await reader.read(MAX_LINE_NBYTES):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                self._keep(line)
            if len(pending) > MAX_LINE_NBYTES:
                self._keep(pending)
                pending = b""
        if pending:
            self._keep(pending)

    def _keep(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        text = text if len(text) <= MAX_LINE_NBYTES else text[:MAX_LINE_NBYTES] + " ..."
        if len(self._unsent) < _MAX_UNSENT_LINES:
            self._unsent.append(pb.LogLine(wall_s=self._clock.wall(), text=text))
        else:
            self._dropped += 1

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_S)
            await self._send_lines()

    async def _send_lines(self) -> None:
        lines, self._unsent, dropped, self._dropped = self._unsent, [], self._dropped, 0
        if dropped:
            lines.append(pb.LogLine(wall_s=self._clock.wall(), text=f"[{dropped} lines left out]"))
        if lines:
            await self._say(pb.AgentMessage(log_lines=pb.LogLines(job=self.job, lines=lines)))


async def _until_readable(descriptor: int) -> None:
    """Wait for a descriptor: that of a child is readable once it has ended, whoever else holds its pipes."""
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(descriptor)
