"""An attached agent as the master sees it.

Invariant: an agent is told of no number (of a deployment, a membership, a change) that a master which takes over might
give again: while the disk is full, what has a new one waits, and what comes behind it. Nor is it told that something is
kept before that is on the disk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from dataflow.transport.generated import control_pb2 as pb

VOUCHED = 6
"""A silent node that others receive from is lost after so many times the time after which it else would be."""

KEPT_EVERY = 16
"""An agent is told that its messages are kept after so many, and in answer to every heartbeat."""

_LOOK_S = 0.1
"""Seconds after which it is looked again whether there is room on the disk."""


class AgentSession:
    """What the master knows of one attached agent, and what it still has to tell it.

    Args:
        hello: how the agent introduced itself.
        now: seconds on the master's clock.
        kept: number of the last of its messages that an earlier connection, or an earlier master, has kept.
        on_disk: whether all that was kept is on the disk.

    Attributes:
        drained: it was asked to leave its jobs, and gets no more.
        jobs: number that the node has in each job whose process it holds, by job id.
        heard_s: when the agent was last heard, on the master's clock.
        seen_s: when another node was last heard to receive something of its job process, likewise.
        progress: progress counter of each job, by job id.
        life: what its messages and connections are numbered in; another one after the agent was restarted.
        connection: number of this connection.
        kept: number of the last of its messages that is kept, on the disk or, while that is full, in memory.
    """

    def __init__(self, hello: pb.Hello, now: float, kept: int = 0, on_disk: Callable[[], bool] = lambda: True) -> None:
        self.name, self.host, self.cores, self.tasks = hello.name, hello.host, hello.cores, max(1, hello.tasks)
        self.drained = False
        self.jobs: dict[str, int] = {}
        self.progress: dict[str, int] = {}
        self._moved_s: dict[str, float] = {}
        self.life, self.connection = hello.life, hello.connection
        self._on_disk = on_disk
        self.kept = self._told_kept = kept
        self._safe = kept if on_disk() else 0
        self.heard_s = self.seen_s = now
        self._outbox: deque[pb.MasterMessage] = deque()
        self._acknowledgement: pb.MasterMessage | None = None
        self._epochs: dict[str, int] = {}
        self._ends = False
        self._news = asyncio.Event()

    @property
    def backlog(self) -> int:
        """Messages that wait to be sent."""
        return len(self._outbox)

    def send(self, message: pb.MasterMessage) -> None:
        """Queue a message for the agent."""
        self._outbox.append(message)
        self._news.set()

    @property
    def safe(self) -> int:
        """Number of the last of its messages that is on the disk."""
        self._safe = self.kept if self._on_disk() else self._safe
        return self._safe

    def acknowledge(self, *, at_once: bool) -> None:
        """Tell the agent which of its messages are kept: once `KEPT_EVERY` more of them are, or at once."""
        if at_once or self.kept - self._told_kept >= KEPT_EVERY:
            self._told_kept = self.kept
            self._acknowledgement = pb.MasterMessage(kept=pb.Kept(number=self.safe, heard=self.kept))
            self._news.set()

    def end(self) -> None:
        """Close the connection once everything queued has been sent that may be."""
        self._ends = True
        self._news.set()

    async def next(self) -> pb.MasterMessage | None:
        """The next message to send; None when the connection is to be closed."""
        while True:
            self._news.clear()
            if self._acknowledgement is not None:
                message, self._acknowledgement = self._acknowledgement, None
                return message
            if self._outbox and self._may_be_told(self._outbox[0]):
                return self._outbox.popleft()
            if self._ends:
                return None
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S if self._outbox else None):
                    await self._news.wait()

    def _may_be_told(self, message: pb.MasterMessage) -> bool:
        match message.WhichOneof("body"):
            case "adjust":
                return self._on_disk()
            case "deploy":
                if not self._on_disk():
                    return False
                # A job that begins again counts its memberships from 1, and one whose process is gone counts no more.
                self._epochs = {job: told for job, told in self._epochs.items() if job in self.jobs}
                self._epochs.pop(message.job, None)
            case "connect":
                told = self._epochs.get(message.job, 0)
                if message.connect.epoch > told and not self._on_disk():
                    return False
                self._epochs[message.job] = max(told, message.connect.epoch)
        return True

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
