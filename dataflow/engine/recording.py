"""Records of runs: the events that an engine was given, in order, without payloads.

Invariant: a record refers to what the engines made themselves. The k-th arrival noted on a stream is the k-th message
that its sender's engine sent on it, and task number n is the n-th that this engine
commanded or saw started as it had offered; so whoever runs the
same plan again and gives every engine the events of its record gets the same messages, and the same state, bit for bit.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from dataflow.artifact_names import RECORD_FOLDER
from dataflow.engine.events import (
    Command,
    CreditGranted,
    Ended,
    Event,
    Failed,
    GoOn,
    LeaveAsked,
    Measured,
    MessageArrived,
    NodeJoined,
    NodeLeft,
    Offer,
    Report,
    RunTask,
    Started,
    StopAsked,
    StreamEnded,
    Task,
    TaskFinished,
    TimerFired,
)
from dataflow.engine.loading import LoadedNode
from dataflow.engine.node_engine import NodeEngine
from dataflow.errors import DataError
from dataflow.message import Message, field_names
from dataflow.operators_api import Artifact
from dataflow.plan.physical import MAX_NODES, PhysicalPlan
from dataflow.reports import LinkRates, Rates

PLAN_FILE = f"{RECORD_FOLDER}/plan.json"
"""Name of the artifact with the plan, as JSON."""

MAX_PLAN_NBYTES = 64 << 20
"""Most bytes of a plan that is read: five times those of `MAX_NODES` nodes."""

VERSION = 4
"""Version of the layout of chunks."""

CHUNK_EVENTS = 16_384
"""Most events in a chunk."""

CHUNK_S = 0.5
"""Seconds of events in a chunk, after which it leaves the engine: what the record of a killed node lacks."""

_MAGIC = b"akoevent"
_HEADER = struct.Struct("<8sHHIIQIII32s")
_EVENT = struct.Struct("<BBBxIIIQdd")
_RATES = struct.Struct("<dQddddI")
_LINK = struct.Struct("<IQdd")
_LAST = 1

EVENT_NBYTES = _EVENT.size
"""Size of an event in a chunk, in bytes."""

CHUNK_RATES_NBYTES = 1 << 20
"""Bytes of measured rates after which a chunk leaves the engine."""

MAX_RATES_NBYTES = CHUNK_RATES_NBYTES + _RATES.size + MAX_NODES * _LINK.size
"""Most bytes of measured rates in a chunk."""

MAX_CHUNK_NBYTES = _HEADER.size + CHUNK_EVENTS * EVENT_NBYTES + MAX_RATES_NBYTES
"""Most bytes of a chunk."""


class Kind(IntEnum):
    """Kinds of events, as they stand in a chunk."""

    STARTED = 1
    MESSAGE_ARRIVED = 2
    STREAM_ENDED = 3
    TASK_FINISHED = 4
    CREDIT_GRANTED = 5
    NODE_LEFT = 6
    STOP_ASKED = 7
    GO_ON = 8
    MEASURED = 9
    NODE_JOINED = 10
    TIMER_FIRED = 11
    LEAVE_ASKED = 12


# To pack a plain number takes a third of the time that a member of an enumeration takes.
_MESSAGE_ARRIVED, _TASK_FINISHED, _CREDIT_GRANTED = map(
    int, (Kind.MESSAGE_ARRIVED, Kind.TASK_FINISHED, Kind.CREDIT_GRANTED)
)
_KINDS: dict[type[Event], int] = {
    Started: int(Kind.STARTED),
    StopAsked: int(Kind.STOP_ASKED),
    LeaveAsked: int(Kind.LEAVE_ASKED),
    GoOn: int(Kind.GO_ON),
    Measured: int(Kind.MEASURED),
}


class Noted(NamedTuple):
    """An event, as a record has it; numbers that say nothing about its kind are 0.

    Args:
        kind: a `Kind`.
        failed: whether the task failed.
        followed: whether the task that was offered behind it was started.
        edge: number of the stream's edge; of a timer, number of the chain in the plan.
        node: number of the node at the other end of the stream, or of the node that left or joined.
        checksum: of the message; see `checksum`.
        amount: bytes of the message or of the credit; number of the task; incarnation of the node that joined; whether
            the node that left had ended.
        now_s: the engine's clock.
        busy_s: seconds that the task took.
    """

    kind: int
    failed: int = 0
    followed: int = 0
    edge: int = 0
    node: int = 0
    checksum: int = 0
    amount: int = 0
    now_s: float = 0.0
    busy_s: float = 0.0


def checksum(message: Message) -> int:
    """CRC-32 of a message's fields, the same before and after it has crossed the wire: of little-endian arrays."""
    scalars, crc = [], 0
    for name in field_names(type(message)):
        value = getattr(message, name)
        if isinstance(value, np.ndarray):
            array = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
            crc = zlib.crc32(array.reshape(-1).view(np.uint8).data, crc)
        else:
            scalars.append(value)
    return zlib.crc32(repr(scalars).encode(), crc)


def pack(event: Noted) -> bytes:
    """The bytes of an event in a chunk."""
    return _EVENT.pack(*event)


def pack_rates(rates: Rates) -> bytes:
    """The bytes of measured rates in a chunk."""
    own = (rates.seconds, rates.steps, rates.compute_s, rates.exchange_s, rates.busy_s, rates.blocked_s)
    links = (_LINK.pack(peer, link.nbytes, link.busy_s, link.delay_s) for peer, link in rates.links.items())
    return _RATES.pack(*own, len(rates.links)) + b"".join(links)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Events of one engine that follow each other.

    Args:
        plan: digest of the plan, in hex.
        node: number of the node.
        first: number of the first event, from 0.
        last: nothing more was given to the engine.
        packed: the events, each as `pack` gives it.
        rates: what was measured, for each `MEASURED` event as `pack_rates` gives it.
        incarnation: how often the node had been started before.
    """

    plan: str
    node: int
    first: int
    last: bool
    packed: bytes
    rates: bytes = b""
    incarnation: int = 0

    def __len__(self) -> int:
        return len(self.packed) // EVENT_NBYTES

    def events(self) -> Iterator[Noted]:
        """The events, in order."""
        return map(Noted._make, _EVENT.iter_unpack(self.packed))

    def measured(self) -> Iterator[Rates]:
        """What was measured, in the order of the `MEASURED` events.

        Raises:
            DataError: it is no such thing.
        """
        at = 0
        while at < len(self.rates):
            try:
                seconds, steps, *parts_s, count = _RATES.unpack_from(self.rates, at)
                at += _RATES.size
                links = [_LINK.unpack_from(self.rates, at + number * _LINK.size) for number in range(count)]
            except struct.error as error:
                raise DataError(what="the rates of a record are cut off", got=len(self.rates)) from error
            at += count * _LINK.size
            compute_s, exchange_s, busy_s, blocked_s = parts_s
            by_peer = {peer: LinkRates(*link) for peer, *link in links}
            yield Rates(seconds, steps, compute_s, exchange_s, busy_s, blocked_s, by_peer)

    def encode(self) -> bytes:
        """The chunk as bytes: a header, then the events, then the rates."""
        flags, plan, body = _LAST if self.last else 0, bytes.fromhex(self.plan), self.packed + self.rates
        sizes = len(self), len(self.rates), zlib.crc32(body)
        return _HEADER.pack(_MAGIC, VERSION, flags, self.node, self.incarnation, self.first, *sizes, plan) + body

    @classmethod
    def decode(cls, data: bytes, where: str = "") -> Chunk:
        """The chunk of these bytes.

        Args:
            data: what `encode` once gave.
            where: the file, for errors.

        Raises:
            DataError: they are something else, of another version, or not as they were written.
        """
        if len(data) < _HEADER.size or not data.startswith(_MAGIC):
            raise DataError(what="this is no record of events", where=where)
        _, version, flags, node, incarnation, first, count, rates, crc, plan = _HEADER.unpack_from(data)
        if version != VERSION:
            what = f"the record has version {version}, this program reads version {VERSION}"
            raise DataError(what, where=where, fix="replay it with the version of ako that recorded it")
        if count > CHUNK_EVENTS:
            raise DataError(what=f"a chunk of a record has at most {CHUNK_EVENTS} events", got=count, where=where)
        if rates > MAX_RATES_NBYTES:
            what = f"a chunk of a record has at most {MAX_RATES_NBYTES} bytes of rates"
            raise DataError(what, got=rates, where=where)
        body, nbytes = data[_HEADER.size :], count * EVENT_NBYTES
        if len(body) != nbytes + rates:
            what = f"a chunk of a record is cut off: {count} events are {nbytes} bytes, and their rates {rates}"
            raise DataError(what, got=len(body), where=where)
        if zlib.crc32(body) != crc:
            raise DataError(what="a chunk of a record is damaged: its checksum is wrong", where=where)
        return cls(plan.hex(), node, first, bool(flags & _LAST), body[:nbytes], body[nbytes:], incarnation)


def chunk_name(node: int, number: int, incarnation: int = 0) -> str:
    """Name of the artifact with chunk `number`, from 0, of an incarnation of a node."""
    again = f".{incarnation}" if incarnation else ""
    return f"{RECORD_FOLDER}/node-{node}{again}-{number:06}.bin"


class RecordedEngine(NodeEngine):
    """An engine that notes what it is given, until it has ended or failed.

    Its record leaves it as artifacts, reported among its other commands. Node 0 reports the plan, too.
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        node: int,
        loaded: LoadedNode,
        *,
        digest: str,
        chunk_s: float = CHUNK_S,
        incarnation: int = 0,
    ) -> None:
        """Take over a loaded node; nothing runs before `Started`.

        Args:
            plan: the physical plan.
            node: this node's number.
            loaded: its operators and state elements.
            digest: the plan's, which takes long to make for many nodes.
            chunk_s: seconds of events in a chunk at most, on the driver's clock.
            incarnation: how often the node had been started before.

        Raises:
            OperatorError: an operator cannot work as it is declared.
        """
        super().__init__(plan, node, loaded)
        self._notebook = _Notebook(plan, node, incarnation, digest, chunk_s)

    def handle(self, event: Event, now: float) -> list[Command]:
        """As `NodeEngine.handle`."""
        notebook = self._notebook
        if notebook.closed:
            return super().handle(event, now)
        notebook.note(event, now)
        commands = super().handle(event, now)
        notebook.number(commands)
        if commands and isinstance(commands[-1], Ended | Failed):
            # Ahead of the end, behind which drivers hear nothing.
            commands[-1:-1] = [Report(notebook.chunk(last=True))]
        elif notebook.full(now):
            commands.append(Report(notebook.chunk()))
        if isinstance(event, Started) and notebook.node == 0:  # of any incarnation: the first may not have come so far
            commands.insert(0, Report(notebook.plan_file()))
        return commands

    def rest(self) -> Artifact | None:
        """The end of the record, if nothing more will be given to this engine; None if it has been reported."""
        return None if self._notebook.closed else self._notebook.chunk(last=True)


class _Notebook:
    """What is noted of one engine and has not left it."""

    def __init__(self, plan: PhysicalPlan, node: int, incarnation: int, digest: str, chunk_s: float) -> None:
        self.node, self.incarnation, self.closed = node, incarnation, False
        self._plan, self._digest, self._chunk_s = plan, digest, chunk_s
        self._tasks: dict[Task, int] = {}
        self._offered: dict[Task, Task] = {}
        self._packed = bytearray()
        self._rates = bytearray()
        self._commanded = self._first = self._chunks = 0
        self._begun_s = math.inf

    def note(self, event: Event, now: float) -> None:
        """Note an event that the engine is about to be given."""
        if not self._packed:
            self._begun_s = now
        self._packed += self._pack(event, now)

    def number(self, commands: list[Command]) -> None:
        """Give the tasks that the engine has commanded their numbers."""
        for command in commands:
            if isinstance(command, RunTask):
                self._start(command.task)
            elif isinstance(command, Offer):
                self._offered[command.behind] = command.task

    def full(self, now: float) -> bool:
        """Whether a chunk is due."""
        if len(self._packed) >= CHUNK_EVENTS * EVENT_NBYTES or len(self._rates) >= CHUNK_RATES_NBYTES:
            return True
        return now - self._begun_s >= self._chunk_s

    def chunk(self, *, last: bool = False) -> Artifact:
        """What has been noted since the chunk before, as an artifact."""
        packed, rates = bytes(self._packed), bytes(self._rates)
        chunk = Chunk(self._digest, self.node, self._first, last, packed, rates, self.incarnation)
        artifact = Artifact(chunk_name(self.node, self._chunks, self.incarnation), chunk.encode())
        self._first += len(chunk)
        self._packed.clear()
        self._rates.clear()
        self._chunks += 1
        self._begun_s, self.closed = math.inf, last
        return artifact

    def plan_file(self) -> Artifact:
        """The plan as an artifact."""
        return Artifact(PLAN_FILE, self._plan.model_dump_json().encode())

    def _start(self, task: Task) -> None:
        self._tasks[task] = self._commanded
        self._commanded += 1

    def _pack(self, event: Event, now: float) -> bytes:
        """The bytes of an event; see `Noted` for what they mean."""
        if isinstance(event, TaskFinished):
            number, offered = self._tasks.pop(event.task), self._offered.pop(event.task, None)
            if offered and event.followed:
                self._start(offered)
            return _EVENT.pack(
                _TASK_FINISHED, event.error is not None, event.followed, 0, 0, 0, number, now, event.busy_s
            )
        if isinstance(event, MessageArrived):
            edge, source, _ = event.stream
            return _EVENT.pack(_MESSAGE_ARRIVED, 0, 0, edge, source, checksum(event.message), event.nbytes, now, 0.0)
        if isinstance(event, CreditGranted):
            edge, _, target = event.stream
            return _EVENT.pack(_CREDIT_GRANTED, 0, 0, edge, target, 0, event.nbytes, now, 0.0)
        if isinstance(event, StreamEnded):
            return pack(Noted(Kind.STREAM_ENDED, edge=event.stream.edge, node=event.stream.source, now_s=now))
        if isinstance(event, NodeLeft):
            return pack(Noted(Kind.NODE_LEFT, node=event.node, amount=event.ended, now_s=now))
        if isinstance(event, NodeJoined):
            return pack(Noted(Kind.NODE_JOINED, node=event.node, amount=event.incarnation, now_s=now))
        if isinstance(event, TimerFired):
            heads = [chain.head for chain in self._plan.chains]
            return pack(Noted(Kind.TIMER_FIRED, edge=heads.index(event.chain), now_s=now))
        if isinstance(event, Measured):
            self._rates += pack_rates(event.rates)
        return _EVENT.pack(_KINDS[type(event)], 0, 0, 0, 0, 0, 0, now, 0.0)
