"""The receiving ends of a node's links: checks, orders, delivers and acknowledges frames, and grants credit.

Invariant: a frame is delivered when, and only when, its number is one more than that of the last one delivered from
its source, whatever the connection; so every message is delivered once, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from dataflow.clock import Clock
from dataflow.errors import WireError
from dataflow.message import Message, nbytes
from dataflow.transport.base import Connection, ConnectionLostError
from dataflow.transport.codec import Arrived, Assembler
from dataflow.transport.frames import pack_control, split
from dataflow.transport.generated import data_pb2
from dataflow.transport.link_options import LinkOptions, PeerStatistics, race, report_failure
from dataflow.transport.peers import Identity, Peers, Refusal, mismatch, read_hello, refused


class IncomingLinks:
    """All links that lead to one node; `accept` is given to the network.

    Args:
        identity: this node.
        peers: the incarnations that peers must have.
        edge_types: the message type of every edge.
        options: the links' settings.
        counters: gives the counters of a peer.
        on_message: told (source, edge, message, bytes as credit counts them).
        on_end: told (source, edge) when no more messages follow on the edge.
        on_lost: told (source, reason) when a source breaks the protocol or comes back as another incarnation.
        clock: measures how long acknowledgements are held back.
    """

    def __init__(
        self,
        identity: Identity,
        peers: Peers,
        edge_types: Mapping[int, type[Message]],
        options: LinkOptions,
        counters: Callable[[int], PeerStatistics],
        *,
        on_message: Callable[[int, int, Message, int], None],
        on_end: Callable[[int, int], None],
        on_lost: Callable[[int, str], None],
        clock: Clock,
    ) -> None:
        self._identity, self._peers, self._edge_types = identity, peers, edge_types
        self._options, self._counters, self._clock = options, counters, clock
        self._on_message, self._on_end, self._on_lost = on_message, on_end, on_lost
        self._links: dict[int, _IncomingLink] = {}
        self._serving: dict[asyncio.Task[None], Connection] = {}
        self._closed = False

    async def accept(self, connection: Connection) -> None:
        """Serve one connection until it breaks, is replaced by a newer one, or the links are closed."""
        task = asyncio.current_task()
        if self._closed or task is None:
            return
        self._serving[task] = connection
        try:
            await self._serve(connection)
        except (ConnectionLostError, TimeoutError):
            return  # the source connects again; its frames are numbered
        finally:
            del self._serving[task]

    def grant(self, source: int, edge: int, granted_nbytes: int) -> None:
        """Let `source` send `granted_nbytes` more bytes on `edge`; told to it soon, or when it connects."""
        self._link(source).grant(edge, granted_nbytes)

    def forget(self, source: int) -> None:
        """Drop everything about `source`; what it sends next begins a new link."""
        link = self._links.pop(source, None)
        if link is not None:
            link.drop("the membership changed")

    async def close(self) -> None:
        """End all connections and refuse new ones."""
        self._closed = True
        for link in self._links.values():
            link.drop("closed")
        serving = tuple(self._serving.items())
        for _, connection in serving:
            await connection.close()
        if serving:
            await asyncio.wait([task for task, _ in serving])

    def _link(self, source: int) -> _IncomingLink:
        link = self._links.get(source)
        if link is None:
            assembler = Assembler(self._edge_types, self._options.max_message_nbytes)
            link = self._links[source] = _IncomingLink(source, assembler, self._options, self._clock)
        return link

    async def _serve(self, connection: Connection) -> None:
        async with asyncio.timeout(self._options.handshake_s):
            packet = await connection.read()
        try:
            greeting = read_hello(packet)
        except WireError as error:
            await self._refuse(connection, Refusal(str(error)))
            return
        refusal = mismatch(self._identity, greeting) or self._meet(greeting)
        if refusal is not None:
            await self._refuse(connection, refusal)
            return
        counters = self._counters(greeting.source)
        counters.received_nbytes += len(packet)
        link = self._link(greeting.source)
        replaced, link.connection = link.connection, connection
        if replaced is not None:
            await replaced.close()
        try:
            welcome = link.welcome(self._identity.incarnation)
            counters.sent_nbytes += len(welcome)
            await connection.write(welcome)
            await race(self._read(link, connection, counters), link.acknowledge(connection, counters))
        except WireError as error:
            self._fail(link, str(error))
            await self._refuse(connection, Refusal(str(error)))
        finally:
            if link.connection is connection:
                link.connection = None

    def _meet(self, greeting: data_pb2.Hello) -> Refusal | None:
        """Why the source of `greeting` may not speak; one that comes back as another incarnation loses its link."""
        refusal = self._peers.meet(greeting.source, greeting.incarnation, greeting.epoch)
        link = self._links.get(greeting.source)
        if refusal is not None and refusal.retry and link is not None and not link.dropped:
            self._fail(link, refusal.reason)
        if refusal is None and link is not None and link.dropped:
            return Refusal(f"its link was given up: {link.dropped}")
        return refusal

    async def _refuse(self, connection: Connection, refusal: Refusal) -> None:
        """Say why, and let the other side hang up, so that it reads it."""
        await connection.write(refused(refusal))
        async with asyncio.timeout(self._options.handshake_s):
            while True:
                await connection.read()

    async def _read(self, link: _IncomingLink, connection: Connection, counters: PeerStatistics) -> None:
        while link.connection is connection:
            # Nothing here holds a packet while the next one is waited for: its memory is the first to be used again.
            self._take_in(link, connection, await connection.read(), counters)

    def _take_in(self, link: _IncomingLink, connection: Connection, packet: bytes, counters: PeerStatistics) -> None:
        """Take the frames of a packet, as long as `connection` is the link's."""
        self._peers.hear(link.source, self._clock.now())
        counters.received_nbytes += len(packet)
        for header, payload in split(packet):
            if link.connection is not connection:
                return
            counters.received_frames += 1
            if header.sequence <= link.received and header.kind in _NUMBERED:
                counters.duplicate_frames += 1
                continue
            arrived = link.take(header, payload)
            if arrived is not None:
                self._deliver(link.source, arrived, counters)

    def _deliver(self, source: int, arrived: Arrived, counters: PeerStatistics) -> None:
        callback: Callable[..., None] = self._on_end
        try:
            if arrived.message is None:
                self._on_end(source, arrived.edge)
            else:
                counters.received_messages += 1
                callback = self._on_message
                self._on_message(source, arrived.edge, arrived.message, nbytes(arrived.message))
        except Exception as error:
            what = report_failure(callback, error)
            raise WireError(what) from error

    def _fail(self, link: _IncomingLink, reason: str) -> None:
        link.drop(reason)
        try:
            self._on_lost(link.source, reason)
        except Exception as failure:
            report_failure(self._on_lost, failure)


_NUMBERED = frozenset((data_pb2.KIND_MESSAGE, data_pb2.KIND_END))


class _IncomingLink:
    """What is kept about one source while its connections come and go."""

    def __init__(self, source: int, assembler: Assembler, options: LinkOptions, clock: Clock) -> None:
        self.source = source
        self.received, self._received_s = 0, clock.now()
        self.connection: Connection | None = None
        self.dropped = ""
        self._assembler, self._options, self._clock = assembler, options, clock
        self._granted_nbytes: dict[int, int] = {}
        self._untold: set[int] = set()
        self._pending_frames = self._pending_received = self._pending_granted = 0
        self._due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def take(self, header: data_pb2.FrameHeader, payload: memoryview) -> Arrived | None:
        """Take the next frame; returns what it completed."""
        if header.kind in _NUMBERED and header.sequence != self.received + 1:
            what = f"frame {self.received + 1} of node {self.source} is missing"
            raise WireError(what, got=header.sequence)
        arrived = self._assembler.feed(header, payload)
        self.received, self._received_s = header.sequence, self._clock.now()
        self._owe(1, received_nbytes=len(payload))
        if header.kind == data_pb2.KIND_END:  # the source may wait for nothing else
            self._due.set()
        return arrived

    def grant(self, edge: int, nbytes: int) -> None:
        """Add to the credit of `edge`."""
        self._granted_nbytes[edge] = self._granted_nbytes.get(edge, 0) + nbytes
        self._untold.add(edge)
        self._owe(granted_nbytes=nbytes)

    def drop(self, reason: str) -> None:
        """End the link; nothing more is delivered or acknowledged."""
        self.dropped = reason
        self.connection = None
        self._settle()
        self._due.set()  # wakes `acknowledge`, which sees that its connection is no longer the link's

    def welcome(self, incarnation: int) -> bytes:
        """The packet that accepts a connection and says where to continue."""
        self._untold = set(self._granted_nbytes)
        body = data_pb2.Welcome(received=self.received, incarnation=incarnation, credits=self._credits())
        return pack_control(data_pb2.KIND_WELCOME, body)

    async def acknowledge(self, connection: Connection, counters: PeerStatistics) -> None:
        """Write acknowledgements and credit whenever they are due, while `connection` is the link's."""
        while True:
            await self._due.wait()
            if self.connection is not connection:
                return
            held_us = round(1e6 * (self._clock.now() - self._received_s))
            body = data_pb2.Ack(received=self.received, credits=self._credits(), held_us=held_us)
            packet = pack_control(data_pb2.KIND_ACK, body)
            counters.sent_nbytes += len(packet)
            await connection.write(packet)

    def _credits(self) -> list[data_pb2.Credit]:
        """The credit that the source was not told of yet; nothing is owed after that."""
        edges, self._untold = sorted(self._untold), set()
        self._settle()
        return [data_pb2.Credit(edge=edge, granted_nbytes=self._granted_nbytes[edge]) for edge in edges]

    def _owe(self, frames: int = 0, *, received_nbytes: int = 0, granted_nbytes: int = 0) -> None:
        """Note that the source is to be told something: at once if it is much, later if it is little, else soon."""
        options, before = self._options, self._pending_nbytes
        self._pending_frames += frames
        self._pending_received += received_nbytes
        self._pending_granted += granted_nbytes
        pending = self._pending_nbytes
        if self._pending_frames >= options.ack_frames or pending >= options.ack_nbytes:
            self._due.set()
        elif self._timer is None or before < options.few_nbytes <= pending:
            self._wake_after(options.few_delay_s if pending < options.few_nbytes else options.ack_delay_s)

    @property
    def _pending_nbytes(self) -> int:
        """Bytes that the source was not told of: those received or those granted, since these are the same again."""
        return max(self._pending_received, self._pending_granted)

    def _wake_after(self, delay_s: float) -> None:
        """Have `acknowledge` write after so long, or when it would have anyhow if that is sooner."""
        loop = asyncio.get_running_loop()
        at = loop.time() + delay_s
        if self._timer is not None:
            at = min(at, self._timer.when())
            self._timer.cancel()
        self._timer = None if self.dropped else loop.call_at(at, self._due.set)

    def _settle(self) -> None:
        self._pending_frames = self._pending_received = self._pending_granted = 0
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
