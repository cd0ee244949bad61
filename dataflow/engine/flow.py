"""Flow control of outgoing streams: credit in bytes, what waits for it, and which stream a message takes.

Invariant: a stream has at most its window, and one message more, under way: sent and not yet consumed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from dataflow.engine.events import SendEnd, SendMessage
from dataflow.graph.logical import Edge
from dataflow.graph.routes import Route, receivers
from dataflow.message import Message, nbytes
from dataflow.plan.physical import StreamId
from dataflow.ports import Emission

Sending = SendMessage | SendEnd


@dataclass(slots=True)
class Outgoing:
    """One stream's sending side.

    Args:
        stream: which.
        credit: bytes that may still be sent; a message may overdraw it once.
        waiting: messages without credit, with their sizes.
        closing: nothing more will be added.
        closed: the end has been sent, or the receiver is gone.
    """

    stream: StreamId
    credit: int
    waiting: deque[tuple[Message, int]] = field(default_factory=deque)
    closing: bool = False
    closed: bool = False

    def is_open(self) -> bool:
        """Whether a message made now would not have to wait."""
        return self.closed or (self.credit > 0 and not self.waiting)

    def flush(self) -> list[Sending]:
        """Commands that send what credit allows, and the end once everything is sent."""
        commands: list[Sending] = []
        while self.waiting and self.credit > 0:
            message, size = self.waiting.popleft()
            self.credit -= size
            commands.append(SendMessage(self.stream, message, size))
        if self.closing and not self.closed and not self.waiting:
            self.closed = True
            commands.append(SendEnd(self.stream))
        return commands


class Crossing:
    """One node's side of an edge that crosses nodes: a stream to every node it may reach.

    Owners and ranks are those of the start: a node that has left is not replaced, what is meant for it is dropped.
    """

    def __init__(
        self, number: int, edge: Edge, node: int, members: Sequence[int], window_nbytes: int, tensor_scale: int = 1
    ) -> None:
        """Open the streams.

        Args:
            number: of the edge.
            edge: the edge.
            node: the sending node.
            members: nodes of the target role in rank order.
            window_nbytes: first credit of every stream.
            tensor_scale: how many times an array in a message counts.
        """
        self._edge, self._tensor_scale = edge, tensor_scale
        self._members = [member for member in members if edge.loopback or member != node]
        self._streams = {member: Outgoing(StreamId(number, node, member), window_nbytes) for member in self._members}
        self._shut: set[int] = set()
        self._left: set[int] = set()

    @property
    def closed(self) -> bool:
        """Whether every stream has been told its end."""
        return all(out.closed for out in self._streams.values())

    def is_open(self, key: int | None = None) -> bool:
        """Whether a message would not have to wait.

        Args:
            key: partition number, or number of the receiving node, if the message is known to have one.
        """
        route = self._edge.route
        if route is Route.ONE_TO_ANY:
            alive = len(self._members) - len(self._left)
            return len(self._shut) < alive or not alive
        if route is Route.BY_OWNER and key is not None and self._members:
            key = self._members[key % len(self._members)]
        if route in (Route.BY_OWNER, Route.BY_DESTINATION) and key in self._streams:
            return key not in self._shut
        return not self._shut

    def goes_by(self, keys: Collection[str | None]) -> bool:
        """Whether the field that messages wait by, one of `keys`, says whom they are for."""
        if self._edge.route is Route.BY_OWNER:
            return self._edge.key in keys
        return self._edge.route is Route.BY_DESTINATION

    def send(self, emission: Emission) -> list[Sending]:
        """Commands that send an emission as far as credit allows; the rest waits."""
        size = nbytes(emission.message, self._tensor_scale)
        commands: list[Sending] = []
        for member in self._receivers(emission):
            if member not in self._left:
                out = self._streams[member]
                out.waiting.append((emission.message, size))
                commands += self._flush(out)
        return commands

    def grant(self, member: int, granted_nbytes: int) -> list[Sending]:
        """Commands that send what waited for the credit that a receiver returns."""
        out = self._streams[member]
        out.credit += granted_nbytes
        return self._flush(out)

    def close(self) -> list[Sending]:
        """Commands that end every stream on which nothing waits; the others end once all is sent."""
        commands: list[Sending] = []
        for out in self._streams.values():
            out.closing = True
            commands += self._flush(out)
        return commands

    def drop(self, member: int) -> None:
        """Forget what waits for a node that has left, and send it nothing more."""
        out = self._streams.get(member)
        if out is not None:
            self._left.add(member)
            self._shut.discard(member)
            out.waiting.clear()
            out.closed = True

    def _flush(self, out: Outgoing) -> list[Sending]:
        commands = out.flush()
        if out.is_open():
            self._shut.discard(out.stream.target)
        else:
            self._shut.add(out.stream.target)
        return commands

    def _receivers(self, emission: Emission) -> tuple[int, ...]:
        edge = self._edge
        if edge.route is Route.BY_DESTINATION:
            return () if emission.to is None else (emission.to,)
        if edge.route is Route.ONE_TO_ANY:
            members = [member for member in self._members if member not in self._left]
            credit = {member: self._streams[member].credit for member in members}
            return receivers(edge.route, members, to=None, key=None, credit=credit)
        key = getattr(emission.message, edge.key) if edge.key else None
        return receivers(edge.route or Route.ONE_TO_ALL, self._members, to=emission.to, key=key, credit={})
