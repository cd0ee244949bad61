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
import struct
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from dataflow.clock import Clock
from dataflow.runtime.auth import TOKEN_VARIABLE
from dataflow.runtime.frames import pack_frame, read_frame
from dataflow.runtime.process import ONE_THREAD, READ_WHOLE, main_thread_us, signal_group
from dataflow.transport.generated import control_pb2 as pb

PROGRESS = struct.Struct("<Q")
"""The progress counter: one number at the start of a memory file that agent and job process share."""

KEPT_LINES = 200
"""Last lines of output that are kept."""

MAX_LINE_NBYTES = 4096
"""Longer lines are cut."""

_FLUSH_S = 0.1
_TERMINATE_S = 1.0
_DRAIN_S = 5.0
_CANNOT_START = 126
_MAX_UNSENT_LINES = 1000


class JobSupervisor:
    """One job process.

    Args:
        job: the job's id.
        deploy: what the process is told first.
        say: sends a message to the master; waits while too many are queued.
        clock: the clock.
    """

    def __init__(
        self, job: str, deploy: pb.Deploy, say: Callable[[pb.AgentMessage], Awaitable[None]], clock: Clock
    ) -> None:
        self.job = job
        self._say, self._clock = say, clock
        self._last: deque[str] = deque(maxlen=KEPT_LINES)
        self._unsent: list[pb.LogLine] = []
        self._dropped = 0
        self._commands: asyncio.Queue[pb.ProcessCommand | None] = asyncio.Queue()
        self._commands.put_nowait(pb.ProcessCommand(deploy=deploy))
        self._memory = os.memfd_create("ako-progress", os.MFD_CLOEXEC)
        os.ftruncate(self._memory, PROGRESS.size)
        self._progress = mmap.mmap(self._memory, PROGRESS.size, prot=mmap.PROT_READ)
        # Made here and not by the process, so that it goes even if that is killed.
        self._folder = Path(tempfile.mkdtemp(prefix="ako-job-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._ending: asyncio.Task[None] | None = None

    @property
    def progress(self) -> int:
        """The process's progress counter and microseconds of processor time; readable whatever the process is doing.

        The sum stands still if the process is stopped or all of it waits for ever, and not if it has too little of a
        busy processor to count.
        """
        counted = int(PROGRESS.unpack_from(self._progress)[0])
        return counted if self._process is None else counted + main_thread_us(self._process.pid)

    def tell(self, command: pb.ProcessCommand) -> None:
        """Queue a command for the process."""
        self._commands.put_nowait(command)

    def kill(self, grace_s: float) -> None:
        """Have the process leave; after `grace_s` seconds SIGTERM, a second later SIGKILL, to its whole group."""
        if self._ending is not None:
            self._ending.cancel()
        self._ending = asyncio.create_task(self._end(grace_s))

    async def run(self) -> None:
        """Start the process, and return when it is gone; then the master has been told how it ended."""
        ours, theirs = socket.socketpair()
        output, printed = os.pipe()
        try:
            process = self._spawn(theirs, printed)
        except OSError as error:
            ours.close()
            os.close(output)
            await self._say(self._exited(_CANNOT_START, [f"the job process cannot be started: {error}"]))
            return
        finally:
            theirs.close()
            os.close(printed)
        self._process = process
        reader, writer = await asyncio.open_connection(sock=ours)
        tasks = [asyncio.create_task(task) for task in (self._write(writer), self._flush())]
        readers = [asyncio.create_task(task) for task in (self._relay(reader), self._capture(output))]
        try:
            await _until_gone(process.pid)
            # Whatever the process started goes with it; then its pipes end, and what is in them still counts.
            self._signal(signal.SIGKILL)
            await asyncio.wait(readers, timeout=_DRAIN_S)
            await self._send_lines()
            await self._say(self._exited(process.wait(), self._last))
        finally:
            self._signal(signal.SIGKILL)
            process.wait()
            for task in (*tasks, *readers, *([self._ending] if self._ending else [])):
                task.cancel()
            writer.close()

    def close(self) -> None:
        """Give up the shared memory and the process's folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._progress.close()
        os.close(self._memory)

    def _exited(self, status: int, last_lines: Iterable[str]) -> pb.AgentMessage:
        return pb.AgentMessage(exited=pb.ProcessExited(job=self.job, status=status, last_lines=last_lines))

    def _spawn(self, control: socket.socket, printed: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "dataflow.runtime.job_process"),
                *("--control-fd", str(control.fileno())),
                *("--progress-fd", str(self._memory)),
                *("--parent", str(os.getpid())),
                *("--folder", str(self._folder)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            pass_fds=(control.fileno(), self._memory),
            env=_environment(),
            start_new_session=True,
        )

    async def _end(self, grace_s: float) -> None:
        self._commands.put_nowait(None)
        await asyncio.sleep(grace_s)
        self._signal(signal.SIGTERM)
        await asyncio.sleep(_TERMINATE_S)
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """Signal the process's group while the id is sure to be its own: from the start until it is waited for."""
        if self._process is not None and self._process.returncode is None:
            signal_group(self._process.pid, number)

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while (command := await self._commands.get()) is not None:
                writer.write(pack_frame(command.SerializeToString()))
                await writer.drain()
            writer.write_eof()

    async def _relay(self, reader: asyncio.StreamReader) -> None:
        while (frame := await read_frame(reader)) is not None:
            await self._send_lines()
            message = pb.ProcessMessage.FromString(frame)
            await self._say(pb.AgentMessage(from_process=pb.FromProcess(job=self.job, message=message)))

    async def _capture(self, output: int) -> None:
        reader = asyncio.StreamReader(limit=MAX_LINE_NBYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(output, "rb"))
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
        self._last.append(text)
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


def _environment() -> dict[str, str]:
    """This process's environment with what job processes need; without the cluster's token, which they do not."""
    inherited = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    return {"GRPC_VERBOSITY": "ERROR", **READ_WHOLE, **inherited, **ONE_THREAD, "PYTHONUNBUFFERED": "1"}


async def _until_gone(pid: int) -> None:
    """Wait for a child to end; whoever else holds its pipes makes no difference."""
    descriptor = os.pidfd_open(pid)
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
