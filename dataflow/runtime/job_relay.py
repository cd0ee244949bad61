"""What a job process does with the commands of its master, from deployment to the end.

Invariant: the process tells the master either `Ended` or `Failed`, once, unless it is asked to leave before.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol

from dataflow.artifact_names import RECORD_FOLDER
from dataflow.engine.adjusting import tells_of_change
from dataflow.engine.checkpoints import encode
from dataflow.engine.events import Snapshot
from dataflow.engine.membership import Members
from dataflow.engine.resumption import Resumption
from dataflow.errors import BeginAnewError, CheckpointError
from dataflow.operators_api import Adjustment, Artifact
from dataflow.reports import NodeStatistics, OperatorReport
from dataflow.runtime.backlog import Backlog, Kind
from dataflow.runtime.frames import pack_frame, read_frame
from dataflow.runtime.trouble import LinkBroken, Paused, Trouble
from dataflow.runtime.wire import CHUNK_NBYTES, members_from_wire, report_to_wire, statistics_to_wire
from dataflow.transport.generated import control_pb2 as pb

STATISTICS_S = 0.5
"""Seconds between a running node's statistics."""


class Driver(Protocol):
    """Runs one node of a job; `dataflow.runtime.node_driver.NodeDriver` is the one."""

    async def prepare(self, files: Sequence[bytes]) -> str:
        """Import and open the operators, go on from these files, then listen; returns ``host:port``."""

    @property
    def epoch(self) -> int:
        """Number of the newest membership whose newcomers its engine has heard of before it ended."""

    async def connect(self, members: Members) -> None:
        """Connect to the members that this one sends to."""

    async def meet(self, members: Members) -> None:
        """Take in another membership, after those before it."""

    def resume(self, pause: int) -> None:
        """Go on after the pause of this number: the master has heard of it, and this node is a member still."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """Have the sources end, so that everything drains."""

    def leave(self) -> None:
        """Have the node end without the others, once they have all that it has begun."""

    def adjust(self, adjustment: Adjustment) -> None:
        """Have the operators hear of a change of the running job."""

    async def wait(self) -> NodeStatistics:
        """Return when the node has ended; raises what failed it."""

    async def statistics(self) -> NodeStatistics:
        """What was counted so far."""

    async def close(self) -> None:
        """Free everything."""


Report = Callable[[OperatorReport | Artifact | Snapshot | Trouble], None]
MakeDriver = Callable[[pb.Deploy, Report], Driver]
"""Makes the driver of a node; given what to deploy, and where it reports to, from any thread."""


class JobRelay:
    """Serves one control connection.

    Args:
        reader: commands come from here.
        writer: messages go here.
        make_driver: makes the node's driver.
        explain: text and place (operator, ``file:line``) of an error.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        make_driver: MakeDriver,
        explain: Callable[[Exception], tuple[str, str]],
    ) -> None:
        self._reader, self._writer, self._make_driver, self._explain = reader, writer, make_driver, explain
        self._loop, self._backlog = asyncio.get_running_loop(), Backlog(writer)
        self._driver: Driver | None = None
        self._members: asyncio.Future[Members] = self._loop.create_future()
        self._start = asyncio.Event()
        self._state: asyncio.Queue[pb.StateChunk] = asyncio.Queue()
        self._has_state = False
        self._keeping: asyncio.Task[None] | None = None
        self._orders: asyncio.Queue[pb.ProcessCommand] = asyncio.Queue()

    async def run(self) -> bool:
        """Serve until the agent closes the connection; returns whether the node did not fail."""
        first = await self._next()
        if first is None:
            await self._close()
            return True
        life = asyncio.create_task(self._live(first.deploy))
        asked_to_leave = asyncio.create_task(self._listen())
        obeying = asyncio.create_task(self._obey(life))
        tasks = (life, asked_to_leave, obeying)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not life.done() and not obeying.done():
                return True
            if obeying.done():
                life.cancel()  # or the master would be told of an end, too
            # Others may still be sending here, or would take a broken link for the cause: the master says when to go.
            await asked_to_leave
            return not obeying.done() and life.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._keeping is not None:
                self._keeping.cancel()
            if self._driver is not None:
                await self._driver.close()
            await self._close()

    async def _live(self, deploy: pb.Deploy) -> bool:
        """Run the node; returns whether it ended well, and has told the master either way."""
        try:
            statistics = await self._run(deploy)
        # The one boundary between the user's code, which may raise anything, and the master, which must be told.
        except Exception as error:
            self._fail(error)
            return False
        epoch = self._driver.epoch if self._driver else 0
        self._send(pb.ProcessMessage(ended=pb.Ended(statistics=statistics_to_wire(statistics), epoch=epoch)))
        return True

    def _fail(self, error: Exception) -> None:
        text, where = self._explain(error)
        anew, checkpoint = isinstance(error, BeginAnewError), isinstance(error, CheckpointError)
        self._send(pb.ProcessMessage(failed=pb.Failed(text=text, where=where, anew=anew, checkpoint=checkpoint)))

    async def _obey(self, life: asyncio.Task[bool]) -> None:
        """Have the driver do what the master says, one thing after another; returns once that has failed the node."""
        while True:
            command = await self._orders.get()
            driver, running = self._driver, not life.done()
            if driver is None:
                continue
            try:
                match command.WhichOneof("body"):
                    case "connect":  # after the node's end, too: others may still be sending here
                        await driver.meet(members_from_wire(command.connect))
                    case "adjust" if running:
                        told = command.adjust
                        driver.adjust(Adjustment(told.number, told.stage, told.text))
                    case "leave" if running:
                        driver.leave()
                    case "stop" if running:
                        driver.stop()
            except Exception as error:  # nobody else would hear of it, and the job hang
                if running:
                    self._fail(error)
                    return

    async def _run(self, deploy: pb.Deploy) -> NodeStatistics:
        files = await self._files(deploy) if deploy.resumes else []
        driver = self._driver = self._make_driver(deploy, self._report)
        address = await driver.prepare(files)
        self._send(pb.ProcessMessage(prepared=pb.Prepared(address=address)))
        await driver.connect(await self._members)
        self._send(pb.ProcessMessage(ready=pb.Ready()))
        await self._start.wait()
        driver.start()
        telling = asyncio.create_task(self._tell_statistics(driver))
        try:
            statistics = await driver.wait()
            if self._keeping is not None:
                await self._keeping  # before the end, behind which nothing is heard of this node
            return statistics
        finally:
            telling.cancel()

    async def _files(self, deploy: pb.Deploy) -> list[bytes]:
        """The files that the node goes on from, as they come from the master; how it does is noted in `deploy`.

        A master that cannot know what has arrived begins again.

        Raises:
            CheckpointError: the master cannot read them, or they are not what was written.
        """
        sizes, received = [0], bytearray()
        while not deploy.resumption_json or len(received) < sum(sizes):
            chunk = await self._chunk()
            if chunk.resumption_json:
                deploy.resumption_json, received = chunk.resumption_json, bytearray()
                sizes = [file.nbytes for file in Resumption.model_validate_json(chunk.resumption_json).files]
            received += chunk.data
        self._has_state = True
        ends = list(accumulate(sizes))
        return [bytes(received[end - size : end]) for size, end in zip(sizes, ends, strict=True)]

    async def _chunk(self) -> pb.StateChunk:
        chunk = await self._state.get()
        if chunk.failure:
            raise CheckpointError(chunk.failure)
        return chunk

    async def _listen(self) -> None:
        """Take commands as they come, whatever the driver is waiting for; returns when the process is to leave."""
        while (command := await self._next()) is not None:
            match command.WhichOneof("body"):
                case "connect":
                    # What the driver is doing may wait for the answer to a pause.
                    if self._driver is not None:
                        self._driver.resume(command.connect.answers)
                    if self._members.done():
                        self._orders.put_nowait(command)
                    else:
                        self._members.set_result(members_from_wire(command.connect))
                case "start":
                    self._start.set()
                case "state":
                    if not self._has_state:
                        self._state.put_nowait(command.state)
                case "stop" if not self._start.is_set():
                    return
                case _:
                    self._orders.put_nowait(command)

    async def _tell_statistics(self, driver: Driver) -> None:
        while True:
            await asyncio.sleep(STATISTICS_S)
            self._send(pb.ProcessMessage(statistics=statistics_to_wire(await driver.statistics())), "statistics")

    def _report(self, report: OperatorReport | Artifact | Snapshot | Trouble) -> None:
        match report:
            case OperatorReport():
                # A change of the running job would never be settled without the word of a node.
                kind: Kind = "must" if tells_of_change(report) else "report"
                self._send(pb.ProcessMessage(report=report_to_wire(report)), kind)
            case LinkBroken(peer, reason, incarnation):
                broken = pb.LinkBroken(peer=peer, reason=reason, incarnation=incarnation)
                self._send(pb.ProcessMessage(link_broken=broken))
            case Paused(number):
                self._send(pb.ProcessMessage(paused=pb.Paused(number=number)))
            case Snapshot():
                self._loop.call_soon_threadsafe(self._keep, report)
            case Artifact():
                self._send_artifact(report)

    def _send_artifact(self, report: Artifact) -> None:
        kind: Kind = "record" if report.name.startswith(f"{RECORD_FOLDER}/") else "must"
        # An empty file is one empty chunk.
        for start in range(0, max(1, len(report.data)), CHUNK_NBYTES):
            end = start + CHUNK_NBYTES
            last = end >= len(report.data)
            chunk = pb.ArtifactChunk(name=report.name, data=report.data[start:end], last=last, start=start)
            self._send(pb.ProcessMessage(artifact=chunk), kind)

    def _keep(self, snapshot: Snapshot) -> None:
        """Send a snapshot beside everything else, unless the one before is still being sent."""
        if self._keeping is not None and not self._keeping.done():
            print(f"checkpoint {snapshot.number} is left out: the one before has not been sent yet", flush=True)
            return
        self._keeping = asyncio.create_task(self._send_file(snapshot))

    async def _send_file(self, snapshot: Snapshot) -> None:
        data = await self._loop.run_in_executor(None, encode, snapshot)
        for start in range(0, len(data), CHUNK_NBYTES):
            end = start + CHUNK_NBYTES
            chunk = pb.CheckpointChunk(number=snapshot.number, data=data[start:end], last=end >= len(data))
            self._send(pb.ProcessMessage(checkpoint=chunk))
            await asyncio.sleep(0)  # what `_send` has given to the loop
            await self._backlog.emptied()

    def _send(self, message: pb.ProcessMessage, kind: Kind = "must") -> None:
        # From any thread; and always by way of the loop, so that what was said first is sent first.
        self._loop.call_soon_threadsafe(self._backlog.add, pack_frame(message.SerializeToString()), kind)

    async def _next(self) -> pb.ProcessCommand | None:
        frame = await read_frame(self._reader)
        return None if frame is None else pb.ProcessCommand.FromString(frame)

    async def _close(self) -> None:
        await asyncio.sleep(0)  # what `_send` has given to the loop
        await self._backlog.close()
        with contextlib.suppress(ConnectionError):
            self._writer.close()
            await self._writer.wait_closed()
