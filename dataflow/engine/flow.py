"""Flow control of outgoing streams: credit in bytes, and what waits for it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dataflow.engine.events import Command, SendEnd, SendMessage
from dataflow.message import Message, nbytes
from dataflow.plan.physical import StreamId


@dataclass(slots=True)
class Outgoing:
    """One stream's sending side.

    Args:
        stream: which.
        credit: bytes that may still be sent; a message may overdraw it once.
        waiting: messages without credit, with their sizes.
        waiting_nbytes: their total.
        closing: nothing more will be added.
        closed: the end has been sent.
    """

    stream: StreamId
    credit: int
    waiting: deque[tuple[Message, int]] = field(default_factory=deque)
    waiting_nbytes: int = 0
    closing: bool = False
    closed: bool = False

    def is_open(self) -> bool:
        """Whether a message made now would be sent at once."""
        return self.credit > 0 and not self.waiting

    def add(self, message: Message) -> None:
        """Queue a message; `flush` sends it."""
        size = nbytes(message)
        self.waiting.append((message, size))
        self.waiting_nbytes += size

    def flush(self) -> list[Command]:
        """Commands that send what credit allows, and the end once everything is sent."""
        commands: list[Command] = []
        while self.waiting and self.credit > 0:
            message, size = self.waiting.popleft()
            self.credit -= size
            self.waiting_nbytes -= size
            commands.append(SendMessage(self.stream, message, size))
        if self.closing and not self.closed and not self.waiting:
            self.closed = True
            commands.append(SendEnd(self.stream))
        return commands

    def drop(self) -> int:
        """Forget what waits, since the receiver is gone; the number of messages dropped."""
        dropped = len(self.waiting)
        self.waiting.clear()
        self.waiting_nbytes = 0
        self.closed = True
        return dropped
