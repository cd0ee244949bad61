"""The layout of packets and frames (see proto/data.proto): byte strings in, headers and payload views out.

Invariant: every byte string either splits into frames that lie inside it or raises WireError; nothing is allocated
from a length that was not checked against the bytes at hand.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage

from dataflow.errors import WireError
from dataflow.transport.generated import data_pb2

WIRE_VERSION = 1
"""Version of the data plane's protocol; nodes of one job must agree on it."""

ALIGNMENT = 16
"""Frames, payloads and arrays begin at multiples of this many bytes of their packet."""

MAX_PART_NBYTES = 1 << 20
"""Payload of a frame, in bytes, at most: larger messages are split into parts of exactly this size."""

MAX_HEADER_NBYTES = 1 << 16
"""Header of a frame, in bytes, at most; the scalars of a message stand in it."""

MAX_PACKET_NBYTES = MAX_PART_NBYTES + MAX_HEADER_NBYTES + 2 * ALIGNMENT
"""What a connection must be able to carry in one write, in bytes."""

Buffer: TypeAlias = bytes | memoryview

_LENGTHS = struct.Struct("<II")
_PADDING = tuple(bytes(size) for size in range(ALIGNMENT))


def padding(nbytes: int) -> bytes:
    """The zeros that bring `nbytes` bytes up to a multiple of `ALIGNMENT`."""
    return _PADDING[-nbytes % ALIGNMENT]


def pack(header: data_pb2.FrameHeader, payload: Sequence[Buffer] = ()) -> bytes:
    """One frame, made with one copy of the payload.

    Args:
        header: the frame's header.
        payload: contiguous buffers of bytes that follow each other, `MAX_PART_NBYTES` at most in all.

    Raises:
        WireError: the header is larger than `MAX_HEADER_NBYTES`.
    """
    head = header.SerializeToString()
    if len(head) > MAX_HEADER_NBYTES:
        what = f"the scalars and shapes of a message take more than {MAX_HEADER_NBYTES} bytes"
        raise WireError(what, got=len(head), fix="send long text as an array of bytes")
    nbytes = sum(map(len, payload))
    lengths = _LENGTHS.pack(len(head), nbytes)
    return b"".join((lengths, head, padding(_LENGTHS.size + len(head)), *payload, padding(nbytes)))


def pack_control(kind: data_pb2.Kind, body: ProtoMessage) -> bytes:
    """A frame of `kind` (HELLO, WELCOME, REFUSED or ACK) with `body` as its payload."""
    return pack(data_pb2.FrameHeader(kind=kind), [body.SerializeToString()])


def split(packet: bytes) -> Iterator[tuple[data_pb2.FrameHeader, memoryview]]:
    """The frames of a packet, in order: header and a read-only view of the payload in `packet`.

    Raises:
        WireError: the packet is empty or too large, or a frame does not lie inside it or has a bad header.
    """
    if not 0 < len(packet) <= MAX_PACKET_NBYTES:
        what = f"a packet has 1 to {MAX_PACKET_NBYTES} bytes"
        raise WireError(what, got=len(packet))
    view = memoryview(packet)
    start = 0
    while start < len(packet):
        header_at = start + _LENGTHS.size
        if header_at > len(packet):
            what = "a frame ends inside its lengths"
            raise WireError(what, got=len(packet) - start)
        header_nbytes, payload_nbytes = _LENGTHS.unpack_from(packet, start)
        payload_at = header_at + header_nbytes
        payload_at += -payload_at % ALIGNMENT
        end = payload_at + payload_nbytes
        following = end + -end % ALIGNMENT
        if header_nbytes > MAX_HEADER_NBYTES or payload_nbytes > MAX_PART_NBYTES or following > len(packet):
            what = f"a frame's lengths exceed the packet's {len(packet) - start} bytes left or the protocol's bounds"
            raise WireError(what, got=(header_nbytes, payload_nbytes))
        yield _header(packet[header_at : header_at + header_nbytes]), view[payload_at:end]
        start = following


def parse(payload: memoryview, body: ProtoMessage) -> None:
    """Fill `body` from a control frame's payload.

    Raises:
        WireError: the payload is no such message.
    """
    try:
        body.ParseFromString(bytes(payload))
    except DecodeError as error:
        what = f"a frame's payload is no {type(body).__name__}"
        raise WireError(what) from error


def only_frame(packet: bytes) -> tuple[data_pb2.FrameHeader, memoryview]:
    """The one frame of a packet of the handshake.

    Raises:
        WireError: the packet is malformed or has more than one frame.
    """
    frames = list(split(packet))
    if len(frames) != 1:
        what = "a packet of the handshake has one frame"
        raise WireError(what, got=len(frames))
    return frames[0]


def _header(head: bytes) -> data_pb2.FrameHeader:
    try:
        return data_pb2.FrameHeader.FromString(head)
    except DecodeError as error:
        what = "a frame's header does not parse"
        raise WireError(what) from error
