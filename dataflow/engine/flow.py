"""Flow control of outgoing streams: credit in bytes, what waits for it, and which stream a message takes.

Invariant: a stream has at most its window, or what it is limited to, and one message more, under way: sent and not yet
consumed.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from dataflow.engine.events import SendEnd, SendMessage
from dataflow.graph.routes import Route, receivers
from dataflow.graph.specs import Edge
from dataflow.message import Message, nbytes
from dataflow.plan.physical import StreamId
from dataflow.ports import Emission
from dataflow.reports import LinkRates

Sending = SendMessage | SendEnd

UNDER_WAY_S: Final = 0.1
"""Seconds of a link's goodput that a stream may have under way: enough to keep the link busy, and no queue."""

FAR: Final = 3.0
"""Shortest delays of a link whose goodput a stream may have under way, if that is more. Credit comes back after up to
two of them: a stream with less under way carries less than its link, and would be limited to less again."""

LEAST_UNDER_WAY_NBYTES: Final = 128 << 10
"""Bytes that a stream may have under way in any case."""


class UnderWay:
    """How many bytes a stream to each peer may have under way, as the links to them are measured."""

    def __init__(self) -> None:
        self._least_delay_s: dict[int, float] = {}
        self._nbytes: dict[int, int] = {}

    def forget(self, peer: int) -> None:
        """Know nothing of a peer: another node has its number, maybe at another place."""
        self._least_delay_s.pop(peer, None)
        self._nbytes.pop(peer, None)

    def nbytes(self, peer: int, link: LinkRates) -> int | None:
        """Bytes that may be under way from now on, twice as many as before at most; None if nothing new was shown."""
        if not (link.nbytes and link.busy_s > 0):
            return None
        least_s = self._least_delay_s.get(peer, math.inf)
        if link.delay_s > 0:
            least_s = self._least_delay_s[peer] = min(least_s, link.delay_s)
        elif math.isinf(least_s):  # a part of a first message has passed
            return None
        # A peer that was late acknowledges much at once, of which the link was busy before.
        most_nbytes = 2 * self._nbytes.get(peer, sys.maxsize)
        borne_nbytes = int(max(UNDER_WAY_S, FAR * least_s) * link.nbytes / link.busy_s)
        nbytes = self._nbytes[peer] = max(LEAST_UNDER_WAY_NBYTES, min(borne_nbytes, most_nbytes))
        return nbytes


@dataclass(init=False, slots=True, eq=False)
class Outgoing:
    """One stream's sending side, while anything of it is under way or waits.

    Args:
        stream: which.
        credit: bytes that may still be sent; a message may overdraw it once. Negative while what is under way is more
            than the stream is limited to.
        waiting: messages without credit, with their sizes.
    """

    stream: StreamId
    credit: int
    waiting: deque[tuple[Message, int]]

    def __init__(self, stream: StreamId, credit: int) -> None:
        self.stream, self.credit, self.waiting = stream, credit, deque()

    def is_open(self) -> bool:
        """Whether a message made now would not have to wait."""
        return self.credit > 0 and not self.waiting

    def flush(self) -> list[Sending]:
        """Commands that send what credit allows."""
        commands: list[Sending] = []
        while self.waiting and self.credit > 0:
            message, size = self.waiting.popleft()
            self.credit -= size
            commands.append(SendMessage(self.stream, message, size))
        return commands


@lru_cache(maxsize=64)
def as_set(members: tuple[int, ...]) -> frozenset[int]:
    """The members of a role as a set, one for all nodes: there may be thousands in this process."""
    return frozenset(members)


class Crossing:
    """One node's side of an edge that crosses nodes: a stream to every node it may reach.

    Streams on which nothing is under way are not kept: most pairs of a large cluster have nothing to say to each other
    most of the time.

    Owners and ranks are those of the start: a node that has left is not replaced, what is meant for it is dropped.
    """

    def __init__(
        self,
        number: int,
        edge: Edge,
        node: int,
        members: Sequence[int],
        window_nbytes: int,
        tensor_scale: int = 1,
        *,
        is_service: bool = False,
    ) -> None:
        """Open the streams.

        Args:
            number: of the edge.
            edge: the edge.
            node: the sending node.
            members: nodes of the target role in rank order.
            window_nbytes: first credit of every stream.
            tensor_scale: how many times an array in a message counts.
            is_service: whether its streams end once nobody needs what comes on them, as those of a first node do which
                does something for all.
        """
        self._number, self._edge, self._node = number, edge, node
        self._by_destination = edge.route is Route.BY_DESTINATION
        self.is_service = is_service or edge.route is Route.FIRST_TO_ALL
        self._window_nbytes, self._tensor_scale = window_nbytes, tensor_scale
        self._members = [member for member in members if edge.loopback or member != node]
        self._nodes = as_set(tuple(members))
        self._streams: dict[int, Outgoing] = {}
        self._limits: dict[int, int] = {}
        self._shut: set[int] = set()
        self._left: set[int] = set()
        self._joined: dict[int, int] = {}
        self._closing = False
        self._not_ended = len(self._members)

    @property
    def closed(self) -> bool:
        """Whether every stream has been told its end."""
        return not self._not_ended

    def is_open(self, key: Any = None) -> bool:
        """Whether a message would not have to wait.

        Args:
            key: partition number, or number of the receiving node, if the message is known to have one; NumPy's too.
        """
        if not self._shut:
            return True
        route = self._edge.route
        if route is Route.ONE_TO_ANY:
            return len(self._shut) < len(self._members) - len(self._left)
        if route is Route.BY_OWNER and key is not None:
            key = self._members[key % len(self._members)]
        if route in (Route.BY_OWNER, Route.BY_DESTINATION):
            return key not in self._shut and key in self._nodes and (self._edge.loopback or key != self._node)
        return False

    def goes_by(self, keys: Collection[str | None]) -> bool:
        """Whether the field that messages wait by, one of `keys`, says whom they are for."""
        if self._edge.route is Route.BY_OWNER:
            return self._edge.key in keys
        return self._edge.route is Route.BY_DESTINATION

    def send(self, emission: Emission, joins: int = 0) -> list[Sending]:
        """Commands that send an emission as far as credit allows; the rest waits.

        Args:
            emission: what is sent.
            joins: how many nodes had joined when the task began that made it: those that came later are sent nothing.
        """
        message = emission.message
        size = nbytes(message, self._tensor_scale)
        commands: list[Sending] = []
        for member in self._receivers(emission):
            if self._joined and self._joined.get(member, 0) > joins:
                continue  # meant for whoever had its number before
            out = self._streams.get(member)
            if out is None:
                if member in self._left:
                    continue
                stream = StreamId(self._number, self._node, member)
                out = self._streams[member] = Outgoing(stream, self._allowed(member))
            if out.is_open():
                out.credit -= size
                commands.append(SendMessage(out.stream, message, size))
            else:
                out.waiting.append((message, size))
            if out.credit <= 0:
                self._shut.add(member)
        return commands

    def grant(self, member: int, granted_nbytes: int) -> list[Sending]:
        """Commands that send what waited for the credit that a receiver returns, and the end behind the last of it."""
        out = self._streams.get(member)
        if out is None:
            return []
        return self._give(member, out, granted_nbytes)

    def limit(self, member: int, nbytes: int) -> list[Sending]:
        """Let no more than so many bytes of a stream be under way, if its window has as many; commands as `grant`."""
        before = self._allowed(member)
        self._limits[member] = nbytes
        out = self._streams.get(member)
        return [] if out is None else self._give(member, out, self._allowed(member) - before)

    def close(self) -> list[Sending]:
        """Commands that end every stream on which nothing waits; the others end once all is sent."""
        self._closing = True
        return [self._end(member) for member in self._members if member not in self._left and not self._waits(member)]

    def drop(self, member: int) -> None:
        """Forget what waits for a node that has left, and send it nothing more."""
        if member not in self._members or member in self._left:
            return
        if not self._closing or self._waits(member):
            self._not_ended -= 1
        self._left.add(member)
        self._shut.discard(member)
        self._streams.pop(member, None)

    def join(self, member: int, joins: int = 0) -> list[Sending]:
        """Send to a node that had left, from the beginning of its streams; commands that end them, if that is due.

        Args:
            member: the node.
            joins: how many nodes have joined by now.
        """
        if member not in self._left:
            return []
        self._joined[member] = joins
        self._left.remove(member)
        self._limits.pop(member, None)
        self._not_ended += 1
        return [self._end(member)] if self._closing else []

    def _give(self, member: int, out: Outgoing, nbytes: int) -> list[Sending]:
        """Commands that send what waited for this credit; it is taken away if negative."""
        out.credit += nbytes
        commands: list[Sending] = []
        if out.waiting:
            commands += out.flush()
            if self._closing and not out.waiting:
                commands.append(self._end(member))
        if out.is_open():
            self._shut.discard(member)
            if out.credit == self._allowed(member):
                del self._streams[member]
        elif out.credit <= 0:
            self._shut.add(member)
        return commands

    def _allowed(self, member: int) -> int:
        """Bytes that may be under way to a member."""
        return min(self._window_nbytes, self._limits.get(member, self._window_nbytes))

    def _waits(self, member: int) -> bool:
        out = self._streams.get(member)
        return out is not None and bool(out.waiting)

    def _end(self, member: int) -> SendEnd:
        self._not_ended -= 1
        return SendEnd(StreamId(self._number, self._node, member))

    def _receivers(self, emission: Emission) -> tuple[int, ...]:
        edge = self._edge
        if self._by_destination:
            return () if emission.to is None else (emission.to,)
        if edge.route is Route.ONE_TO_ANY:
            members = [member for member in self._members if member not in self._left]
            credit = {member: out.credit for member, out in self._streams.items()}
            credit = {member: credit.get(member, self._allowed(member)) for member in members}
            return receivers(edge.route, members, to=None, key=None, credit=credit)
        key = getattr(emission.message, edge.key) if edge.key else None
        return receivers(edge.route or Route.ONE_TO_ALL, self._members, to=emission.to, key=key, credit={})
