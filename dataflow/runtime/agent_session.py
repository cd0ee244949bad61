"""An attached agent as the master sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from dataflow.transport.generated import control_pb2 as pb

VOUCHED = 6
"""A silent node that others receive from is lost after so many times the time after which it else would be."""

KEPT_EVERY = 16
"""An agent is told that its messages are kept after so many, and in answer to every heartbeat."""


class AgentSession:
    """What the master knows of one attached agent, and what it still has to tell it.

    Args:
        hello: how the agent introduced itself.
        now: seconds on the master's clock.
        kept: number of the last of its messages that an earlier connection, or an earlier master, has kept.

    Attributes:
        drained: it was asked to leave its jobs, and gets no more.
        jobs: number that the node has in each job whose process it holds, by job id.
        heard_s: when the agent was last heard, on the master's clock.
        seen_s: when another node was last heard to receive something of its job process, likewise.
        progress: progress counter of each job, by job id.
        life: what its messages and connections are numbered in; another one after the agent was restarted.
        connection: number of this connection.
        kept: number of the last of its messages that is kept.
    """

    def __init__(self, hello: pb.Hello, now: float, kept: int = 0) -> None:
        self.name, self.host, self.cores, self.tasks = hello.name, hello.host, hello.cores, max(1, hello.tasks)
        self.drained = False
        self.jobs: dict[str, int] = {}
        self.progress: dict[str, int] = {}
        self._moved_s: dict[str, float] = {}
        self.life, self.connection = hello.life, hello.connection
        self.kept = self._told_kept = kept
        self.heard_s = self.seen_s = now
        self._outbox: asyncio.Queue[pb.MasterMessage | None] = asyncio.Queue()

    @property
    def backlog(self) -> int:
        """Messages that wait to be sent."""
        return self._outbox.qsize()

    def send(self, message: pb.MasterMessage) -> None:
        """Queue a message for the agent."""
        self._outbox.put_nowait(message)

    def acknowledge(self, *, at_once: bool) -> None:
        """Tell the agent which of its messages are kept: once `KEPT_EVERY` more of them are, or at once."""
        if at_once or self.kept - self._told_kept >= KEPT_EVERY:
            self._told_kept = self.kept
            self.send(pb.MasterMessage(kept=pb.Kept(number=self.kept)))

    def end(self) -> None:
        """Close the connection once everything queued has been sent."""
        self._outbox.put_nowait(None)

    async def next(self) -> pb.MasterMessage | None:
        """The next message to send; None when the connection is to be closed."""
        return await self._outbox.get()

    def progressed(self, progress: Mapping[str, int], now: float) -> dict[str, float]:
        """Take in progress counters by job id; for how many seconds each has stood still."""
        moved = {job for job, count in progress.items() if self.progress.get(job) != count}
        self._moved_s = {job: now if job in moved else self._moved_s[job] for job in progress}
        self.progress = dict(progress)
        return {job: now - moved_s for job, moved_s in self._moved_s.items()}

    def lost(self, now: float, after_s: float) -> bool:
        """Whether the node counts as lost: if it is silent for `after_s`, and nobody receives anything of it either.

        A heartbeat waits behind whatever the node sends, and TCP repeats what is not acknowledged ever later: on a link
        that has become slow one may be late though the node is well. Nobody vouches for longer than `VOUCHED` times
        that, for a node that cannot be told to stop.
        """
        silent_s = now - self.heard_s
        return silent_s > after_s and (now - self.seen_s > after_s or silent_s > VOUCHED * after_s)

    def status(self, now: float) -> pb.NodeStatus:
        """What clients are told of the node."""
        job = next(iter(self.jobs), "")
        return pb.NodeStatus(
            name=self.name,
            host=self.host,
            cores=self.cores,
            tasks=self.tasks,
            job=job,
            silent_s=max(0.0, now - self.heard_s),
            progress=self.progress.get(job, 0),
            drained=self.drained,
        )
