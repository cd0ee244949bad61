"""The sending end of a link: keeps frames until they are acknowledged, and the connection up.

Invariant: the frames numbered acknowledged + 1, acknowledged + 2, ... are in `_sent` followed by `_unsent`, so that a
new connection continues with exactly those that the peer has not received.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from dataflow.clock import Clock
from dataflow.errors import AkoError, AuthError, WireError
from dataflow.message import Message
from dataflow.transport.base import Connection, ConnectionLostError, Network
from dataflow.transport.codec import encode, encode_end
from dataflow.transport.frames import only_frame, parse, split
from dataflow.transport.generated import data_pb2
from dataflow.transport.link_meter import LinkMeter
from dataflow.transport.link_options import LinkOptions, PeerStatistics, race, report_failure
from dataflow.transport.peers import Identity, Peers, hello

PACKET_NBYTES: Final = 272 << 10
"""Small frames that wait together are sent in packets of up to this many bytes; one that is kept keeps its packet."""


LEAST_HANDSHAKE_S: Final = 0.25
"""So long every attempt to connect is given."""

STALE_S: Final = 0.5
"""So long a peer whom this node does not reach may go on to be heard: what it had sent is under way, in seconds."""


class _NotYetError(ConnectionLostError):
    """The peer answers, and one of the two has yet to hear of the membership in which both are."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all outgoing links of a node share.

    Args:
        network: dials.
        identity: this node.
        peers: the incarnations that peers must have.
        options: the links' settings.
        on_credit: told (peer, edge, bytes) of every grant, once.
        on_lost: told (peer, reason) when a link is given up.
        rng: draws the jitter of reconnections.
        clock: measures patience.
        sleep: waits for a number of seconds.
    """

    network: Network
    identity: Identity
    peers: Peers
    options: LinkOptions
    on_credit: Callable[[int, int, int], None]
    on_lost: Callable[[int, str], None]
    rng: np.random.Generator
    clock: Clock
    sleep: Callable[[float], Awaitable[None]]


class OutgoingLink:
    """A reliable, ordered stream of messages to one peer.

    Args:
        peer: number of the peer.
        address: where the peer listens.
        around: what the node's links share.
        counters: counts what is sent.
        meter: measures how it is acknowledged.
    """

    def __init__(
        self, peer: int, address: str, around: Surroundings, counters: PeerStatistics, meter: LinkMeter
    ) -> None:
        self.peer, self.address = peer, address
        self._around, self._counters, self._meter = around, counters, meter
        self._unsent: deque[tuple[int, bytes]] = deque()
        self._sent: deque[tuple[int, bytes]] = deque()
        self._queued_nbytes = 0
        self._next_sequence = 1
        self._written = 0
        self._acknowledged = 0
        self._granted_nbytes: dict[int, int] = {}
        self._incarnation: int | None = None
        self._error: AkoError | None = None
        self._undelivered = 0
        self._wake, self._idle, self._settled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._waiting_since_s = around.clock.now()
        self._task = asyncio.ensure_future(self._run())

    @property
    def lost(self) -> bool:
        """Whether the link has been given up."""
        return self._error is not None

    def send(self, edge: int, message: Message) -> None:
        """Queue a message; on a lost link it is discarded and counted.

        Raises:
            WireError: the message cannot be encoded, or the queue exceeds `max_queued_nbytes`.
        """
        if self.lost:
            self._counters.discarded_messages += 1
            return
        bound_nbytes = self._around.options.max_message_nbytes
        self._queue(encode(message, edge=edge, sequence=self._next_sequence, max_message_nbytes=bound_nbytes))
        self._counters.sent_messages += 1

    def send_end(self, edge: int) -> None:
        """Queue the end of an edge.

        Raises:
            WireError: the queue exceeds `max_queued_nbytes`.
        """
        if not self.lost:
            self._queue([encode_end(edge=edge, sequence=self._next_sequence)])

    async def up(self) -> None:
        """Return when the first handshake has succeeded.

        Raises:
            WireError: the link was given up; names peer, address and reason.
            AuthError: the peer refuses the token.
        """
        await self._settled.wait()
        if self._error is not None:
            kind = AuthError if isinstance(self._error, AuthError) else WireError
            what = f"cannot connect to node {self.peer}: {self._error}"
            raise kind(what, where=self.address)

    async def drained(self) -> None:
        """Return when all frames are acknowledged.

        Raises:
            WireError: the link was given up with frames that were not.
        """
        await self._idle.wait()
        if self._undelivered:
            what = f"{self._undelivered} frames to node {self.peer} are lost: {self._error}"
            raise WireError(what)

    def abandon(self, reason: str) -> None:
        """Give the link up, without telling anybody; `stop` still has to be awaited."""
        self._give_up(WireError(reason))
        self._task.cancel()

    async def stop(self) -> None:
        """Give the link up if it is not yet, and end its task."""
        if not self.lost:
            self.abandon("closed")
        await asyncio.gather(self._task, return_exceptions=True)

    def _queue(self, frames: Iterable[bytes]) -> None:
        bound_nbytes = self._around.options.max_queued_nbytes
        frames = tuple(frames)
        nbytes = sum(map(len, frames))
        if self._queued_nbytes + nbytes > bound_nbytes:
            what = f"more than {bound_nbytes} bytes to node {self.peer} wait for their acknowledgement"
            raise WireError(what, got=self._queued_nbytes + nbytes, fix="send only as much as credit was granted for")
        if not self._queued_nbytes:
            self._waiting_since_s = self._around.clock.now()
        for frame in frames:
            self._unsent.append((self._next_sequence, frame))
            self._next_sequence += 1
        self._queued_nbytes += nbytes
        self._meter.handed(self._next_sequence - 1)
        self._idle.clear()
        self._wake.set()

    async def _run(self) -> None:
        try:
            await self._keep_up()
        except AkoError as error:
            self._lose(error)
        except Exception as error:  # whoever waits for this link would wait for ever
            self._lose(WireError(report_failure(self._keep_up, error)))

    async def _keep_up(self) -> None:
        """Connect, again and again; raises the error for which the link is given up."""
        options, clock = self._around.options, self._around.clock
        down_since, attempts = clock.now(), 0
        heard_since: float | None = None  # when a peer answered first that has yet to hear
        while True:
            acknowledged, hears = self._acknowledged, False
            try:
                connection = await self._connect(options.patience_s - (clock.now() - self._silent_since(down_since)))
            except TimeoutError:
                reason = "no answer"
            except _NotYetError as error:
                reason, hears, down_since = str(error), True, clock.now()
                heard_since = down_since if heard_since is None else heard_since
            except ConnectionLostError as error:
                reason = str(error)
            else:
                reason, heard_since = await self._use(connection), None
                down_since = self._waiting_since_s if self._queued_nbytes else clock.now()
                if clock.now() - down_since >= options.patience_s:  # whatever broke it, it is tried once more
                    down_since = clock.now() - options.patience_s + options.first_backoff_s
            attempts = 0 if self._acknowledged > acknowledged else attempts + 1
            since, patience_s = self._silent_since(down_since), options.patience_s
            if hears and heard_since is not None:
                since, patience_s = heard_since, options.hearing_s
            if clock.now() - since >= patience_s:
                what = f"no connection for {patience_s} s: {reason}"
                raise WireError(what)
            pause_s = min(options.max_backoff_s, options.first_backoff_s * 2.0 ** min(attempts, 30))
            left_s = patience_s - (clock.now() - since)
            await self._around.sleep(min(pause_s * self._around.rng.uniform(0.5, 1.5), left_s))

    def _silent_since(self, down_since: float) -> float:
        """Since when a link that is down shows nothing of its peer.

        While the peer's own messages come, which it could not send on unless they were acknowledged, the way is
        crowded rather than cut, and it has until `hearing_s`: packets that open a connection get lost there, too.
        """
        options = self._around.options
        latest = down_since + max(0.0, options.hearing_s - options.patience_s)
        return max(down_since, min(self._around.peers.heard_s(self.peer) - STALE_S, latest))

    async def _connect(self, patience_s: float) -> Connection:
        """A connection on which the peer has welcomed this node; one that replaces another is not waited for longer."""
        within_s = self._around.options.handshake_s
        if self._settled.is_set():
            within_s = min(within_s, max(LEAST_HANDSHAKE_S, patience_s))
        async with asyncio.timeout(within_s):
            connection = await self._around.network.dial(self.address)
            try:
                await self._greet(connection)
            except BaseException:  # cancellation too, as by the deadline above: nobody else knows the connection yet
                await connection.close()
                raise
        if self._settled.is_set():
            self._counters.reconnections += 1
        self._settled.set()
        return connection

    async def _greet(self, connection: Connection) -> None:
        packet = hello(self._around.identity, self.peer, self._around.peers.epoch)
        self._counters.sent_nbytes += len(packet)
        await connection.write(packet)
        answer = await connection.read()
        self._counters.received_nbytes += len(answer)
        header, payload = only_frame(answer)
        if header.kind == data_pb2.KIND_REFUSED:
            _raise_refusal(payload)
        if header.kind != data_pb2.KIND_WELCOME:
            what = f"node {self.peer} answers a Hello with something else"
            raise WireError(what, got=header.kind)
        welcome = data_pb2.Welcome()
        parse(payload, welcome)
        self._check_incarnation(welcome)
        self._acknowledge(welcome.received, 0.0)
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()
        self._take_credits(welcome.credits)

    def _check_incarnation(self, welcome: data_pb2.Welcome) -> None:
        if self._incarnation is None:
            peers = self._around.peers
            refusal = peers.meet(self.peer, welcome.incarnation, peers.epoch)
            if refusal is not None:
                kind = _NotYetError if refusal.retry else WireError
                raise kind(refusal.reason)
            if welcome.received:
                what = f"node {self.peer} had a link from this incarnation before, which was given up"
                raise WireError(what, got=welcome.received, fix="restart one of the two nodes")
            self._incarnation = welcome.incarnation
        elif welcome.incarnation != self._incarnation:
            what = f"node {self.peer} was restarted: incarnation {self._incarnation} became {welcome.incarnation}"
            raise WireError(what)

    async def _use(self, connection: Connection) -> str:
        """Send and be acknowledged until the connection breaks; returns why it did."""
        try:
            await race(self._write(connection), self._read(connection))
        except ConnectionLostError as error:
            return str(error)
        finally:
            await connection.close()
        return "closed"

    async def _write(self, connection: Connection) -> None:
        while True:
            while self._unsent:
                packet = self._next_packet()
                self._counters.sent_nbytes += len(packet)
                await connection.write(packet)
            self._wake.clear()
            await self._wake.wait()

    def _next_packet(self) -> bytes:
        """Move the next frames from `_unsent` to `_sent`; returns them as one packet."""
        frames: list[bytes] = []
        nbytes = 0
        while self._unsent and (not frames or nbytes + len(self._unsent[0][1]) <= PACKET_NBYTES):
            sequence, frame = self._unsent.popleft()
            self._sent.append((sequence, frame))
            frames.append(frame)
            nbytes += len(frame)
            if sequence <= self._written:
                self._counters.resent_frames += 1
            else:
                self._written = sequence
        self._counters.sent_frames += len(frames)
        return frames[0] if len(frames) == 1 else b"".join(frames)

    async def _read(self, connection: Connection) -> None:
        while True:
            packet = await connection.read()
            if self.lost:  # while this came: whoever joins in the place of the peer gives credit of its own
                return
            self._waiting_since_s = self._around.clock.now()
            self._counters.received_nbytes += len(packet)
            for header, payload in split(packet):
                if header.kind == data_pb2.KIND_REFUSED:
                    _raise_refusal(payload)
                if header.kind != data_pb2.KIND_ACK:
                    what = f"node {self.peer} answers with a frame that is no acknowledgement"
                    raise WireError(what, got=header.kind)
                ack = data_pb2.Ack()
                parse(payload, ack)
                self._acknowledge(ack.received, ack.held_us / 1e6)
                self._take_credits(ack.credits)

    def _acknowledge(self, received: int, held_s: float) -> None:
        if not self._acknowledged <= received <= self._written:
            what = f"node {self.peer} acknowledges a frame outside {self._acknowledged} to {self._written}"
            raise WireError(what, got=received)
        self._acknowledged = received
        nbytes = 0
        while self._sent and self._sent[0][0] <= received:
            nbytes += len(self._sent.popleft()[1])
        if nbytes:
            self._queued_nbytes -= nbytes
            self._meter.acknowledged(received, nbytes, held_s)
        if not self._sent and not self._unsent:
            self._idle.set()

    def _take_credits(self, credits_: Iterable[data_pb2.Credit]) -> None:
        for credit in credits_:
            granted_nbytes = credit.granted_nbytes - self._granted_nbytes.get(credit.edge, 0)
            if granted_nbytes > 0:
                self._granted_nbytes[credit.edge] = credit.granted_nbytes
                try:
                    self._around.on_credit(self.peer, credit.edge, granted_nbytes)
                except Exception as error:
                    what = report_failure(self._around.on_credit, error)
                    raise WireError(what) from error

    def _lose(self, error: AkoError) -> None:
        """Give the link up, and say so, whether anybody waits for it in `up` or not."""
        self._give_up(error)
        try:
            self._around.on_lost(self.peer, str(error))
        except Exception as failure:
            report_failure(self._around.on_lost, failure)

    def _give_up(self, error: AkoError) -> None:
        self._error = error
        self._undelivered = len(self._sent) + len(self._unsent)
        self._sent.clear()
        self._unsent.clear()
        self._meter.given_up()
        self._idle.set()
        self._settled.set()


def _raise_refusal(payload: memoryview) -> None:
    refusal = data_pb2.Refused()
    parse(payload, refusal)
    kind = _NotYetError if refusal.retry else WireError
    what = f"refused: {refusal.reason}"
    raise kind(what)
