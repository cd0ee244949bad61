"""What an agent has to say to its master, in order, kept until the master has said that it is safe there.

Messages that must have their effect once are numbered; after a break those are sent again that the master has not
acknowledged. What a master has heard, but cannot keep on its full disk, the next one is told again: all that must
arrive, and no reports, log lines or files. Invariant: while no master is there the memory it takes is bounded: of what
merely passes the newest is kept, reports and log lines are dropped, oldest first and counted, and files wait where they
are made.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque

from dataflow.runtime.wire import may_tell_of_change
from dataflow.transport.generated import control_pb2 as pb

AT_ONCE = 64
"""Messages that may wait while the master is there; beyond, job processes are read no further."""

UNACKNOWLEDGED = 256
"""Messages that may have been sent and not be acknowledged."""

AWAY_MESSAGES = 10_000
"""Reports and batches of log lines that are kept while the master is away."""

AWAY_NBYTES = 16 << 20
"""Bytes of reports and log lines, and of files, that are kept while the master is away."""


KNOWN = 1000
"""The newest deployments that are known again if they come twice, beside those that are held."""


class Outbox:
    """Messages of one agent, over any number of connections.

    Attributes:
        life: what their numbers belong to.
        connection: number of the connection that messages are for; each gets those of the one before that may be lost.
        dropped: how many reports and batches of log lines of each job did not fit while the master was away.
    """

    def __init__(self) -> None:
        self.life, self.dropped = secrets.token_hex(8), Counter[str]()
        self.connection = 0
        self._number, self._attached = 0, False
        self._passing: dict[str, pb.AgentMessage] = {}
        self._unsent: deque[pb.AgentMessage] = deque()
        self._sent: deque[pb.AgentMessage] = deque()
        self._waiting_nbytes = {"light": 0, "file": 0, "must": 0}
        self._light = 0
        self._held: dict[str, pb.Held] = {}
        self._seen: dict[str, None] = {}
        self._exits: deque[tuple[int, str]] = deque()
        self._changed = asyncio.Event()

    def held(self) -> list[pb.Held]:
        """The deployments that have not ended, or whose end the master may not know."""
        return list(self._held.values())

    def hold(self, deployment: pb.Held) -> bool:
        """Count a deployment as held; false if it is, or was before."""
        if deployment.operation_id in self._seen or deployment.operation_id in self._held:
            return False
        self._seen[deployment.operation_id] = None
        if len(self._seen) > KNOWN:
            del self._seen[next(iter(self._seen))]
        self._held[deployment.operation_id] = deployment
        return True

    async def exited(self, operation_id: str, message: pb.AgentMessage) -> None:
        """Say that a job process has ended; its deployment is held until the master has acknowledged that."""
        await self.put(message)
        self._held[operation_id].exited = message.number
        self._exits.append((message.number, operation_id))

    def passing(self, key: str, message: pb.AgentMessage) -> None:
        """Say something that only the newest matters of, among all with this key."""
        self._passing[key] = message
        self._wake()

    async def put(self, message: pb.AgentMessage) -> None:
        """Say something that must arrive; waits while too much does."""
        kind = _kind(message)
        while self._full(kind):
            await self._changed.wait()
        self._append(message)
        while not self._attached and kind == "light" and self._too_much():
            self._drop_oldest()

    async def next(self, connection: int) -> pb.AgentMessage:
        """The next message to send over a connection; none comes for one that has been given up."""
        while True:
            current = connection == self.connection
            if current and self._passing:
                return self._passing.pop(next(iter(self._passing)))
            if current and self._unsent and len(self._sent) < UNACKNOWLEDGED:
                message = self._unsent.popleft()
                self._count(message, -1)
                self._sent.append(message)
                self._wake()
                return message
            await self._changed.wait()

    def attached(self, kept: int, heard: int, wall_s: float) -> None:
        """A master is there, and knows all up to number `heard` (see `kept`): the rest is sent, again if need be."""
        self._attached = True
        self.kept(kept, heard)
        for job, count in self.dropped.items():
            text = f"[{count} reports and batches of log lines left out while the master was away]"
            lines = [pb.LogLine(wall_s=wall_s, text=text)]
            self._append(pb.AgentMessage(log_lines=pb.LogLines(job=job, lines=lines)))
        self.dropped.clear()
        self._wake()

    def detached(self) -> None:
        """The master is away, and what it has not acknowledged may not have arrived."""
        self._attached = False
        self.connection += 1
        for message in reversed(self._sent):
            self._unsent.appendleft(message)
            self._count(message, 1)
        self._sent.clear()
        self._passing.clear()
        self._wake()

    def kept(self, number: int, heard: int) -> None:
        """The master has kept all messages up to `number`, and has heard those up to `heard`.

        Of what it has heard, and not kept, that is forgotten which may be dropped.
        """
        heard = max(number, heard)
        while self._unsent and self._unsent[0].number <= heard:  # over the connection before
            message = self._unsent.popleft()
            self._count(message, -1)
            self._sent.append(message)
        unheard = (each for each in self._sent if each.number > heard)
        needed = (each for each in self._sent if number < each.number <= heard and _kind(each) == "must")
        self._sent = deque((*needed, *unheard))
        while self._exits and self._exits[0][0] <= number:
            self._held.pop(self._exits.popleft()[1], None)
        self._wake()

    def _append(self, message: pb.AgentMessage) -> None:
        self._number += 1
        message.number = self._number
        self._unsent.append(message)
        self._count(message, 1)
        self._wake()

    def _full(self, kind: str) -> bool:
        if self._attached:
            return len(self._unsent) >= AT_ONCE
        return kind == "file" and self._waiting_nbytes["file"] >= AWAY_NBYTES

    def _too_much(self) -> bool:
        return self._light > AWAY_MESSAGES or self._waiting_nbytes["light"] > AWAY_NBYTES

    def _drop_oldest(self) -> None:
        index = next(index for index, message in enumerate(self._unsent) if _kind(message) == "light")
        message = self._unsent[index]
        del self._unsent[index]
        self._count(message, -1)
        self.dropped[message.log_lines.job or message.from_process.job] += 1

    def _count(self, message: pb.AgentMessage, sign: int) -> None:
        kind = _kind(message)
        self._waiting_nbytes[kind] += sign * message.ByteSize()
        self._light += sign * (kind == "light")

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _kind(message: pb.AgentMessage) -> str:
    """Whether a message may be dropped, is part of a file, or must arrive."""
    if message.WhichOneof("body") == "log_lines":
        return "light"
    body = message.from_process.message.WhichOneof("body")
    if body == "report" and may_tell_of_change(message.from_process.message.report):
        return "must"
    return {"report": "light", "artifact": "file", "checkpoint": "file"}.get(str(body), "must")
