"""Messages to frames and back, without pickle and with one copy.

Invariant: a message comes out whole and equal, or not at all: `Assembler.feed` raises WireError for everything that
`encode` cannot have made, and checks every declared size against its bounds before it keeps a byte.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dataflow.errors import WireError, in_words
from dataflow.message import Message, array_names, field_names
from dataflow.transport.frames import ALIGNMENT, MAX_PART_NBYTES, Buffer, pack, padding
from dataflow.transport.generated import data_pb2

MAX_MESSAGE_NBYTES: Final = 256 << 20
"""Arrays of one message, in bytes, padding included: the default bound."""

DTYPES: Final = {
    name: np.dtype(f"<{name}") for name in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")
}
"""The element types that cross the wire, by their name there."""

MAX_AXES: Final = 32

_TOO_LARGE: Final = "send it in pieces"

_SCALARS: Final = frozenset((bool, int, float, str, type(None)))
_dumps = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def encode(message: Message, *, edge: int, sequence: int, max_message_nbytes: int = MAX_MESSAGE_NBYTES) -> list[bytes]:
    """The frames of a message, numbered from `sequence`. The arrays are copied: they may be written to afterwards.

    Args:
        message: arrays that are not in C order, not little endian or of a class derived from NumPy's are converted.
        edge: number of the edge.
        sequence: sequence number of the first frame, from 1.
        max_message_nbytes: bound on the arrays' size, padding included.

    Raises:
        WireError: a field is neither a plain scalar nor an array of an allowed type, or the message is too large.
    """
    scalars: list[object] = []
    headers: list[data_pb2.ArrayHeader] = []
    payload: list[Buffer] = []
    nbytes, arrays = 0, array_names(type(message))
    for index, name in enumerate(field_names(type(message))):
        value: Any = getattr(message, name)
        if type(value) in _SCALARS:
            scalars.append(value)
        elif isinstance(value, np.ndarray) and name in arrays:
            where = f"{type(message).__name__}.{name}"
            array, dtype = _portable(value, where)
            headers.append(data_pb2.ArrayHeader(field=index, dtype=dtype, shape=array.shape))
            nbytes += _padded_nbytes(array.shape, array.dtype, max_message_nbytes, where)
            if array.nbytes:
                payload.append(array.reshape(-1).view(np.uint8).data)
                payload.append(padding(array.nbytes))
        else:
            what = f"field {name!r} of {type(message).__name__} is neither an array nor a bool, int, float, str or None"
            if isinstance(value, np.ndarray):
                what = f"field {name!r} of {type(message).__name__} is declared to be a scalar, and holds an array"
            raise WireError(what, got=value, fix="convert NumPy scalars with int() or float(), and declare arrays")
    if nbytes > max_message_nbytes:
        what = f"{type(message).__name__} is larger than the {max_message_nbytes} bytes a message may have"
        raise WireError(what, got=nbytes, fix=_TOO_LARGE)
    header = data_pb2.FrameHeader(
        sequence=sequence, edge=edge, kind=data_pb2.KIND_MESSAGE, scalars=_text(scalars), arrays=headers
    )
    if nbytes <= MAX_PART_NBYTES:
        return [pack(header, payload)]
    return _pack_parts(header, payload, nbytes)


def encode_end(*, edge: int, sequence: int) -> bytes:
    """The frame that says that no more messages follow on `edge`."""
    return pack(data_pb2.FrameHeader(sequence=sequence, edge=edge, kind=data_pb2.KIND_END))


@dataclass(frozen=True, slots=True)
class Arrived:
    """What a frame completed.

    Args:
        edge: number of the edge.
        message: the message, its arrays read-only; None says that the edge has ended.
    """

    edge: int
    message: Message | None


class Assembler:
    """Turns the frames of one link, in order, back into messages.

    Args:
        edge_types: the message type of every edge that may arrive.
        max_message_nbytes: bound on the arrays of one message, padding included.
    """

    def __init__(self, edge_types: Mapping[int, type[Message]], max_message_nbytes: int = MAX_MESSAGE_NBYTES) -> None:
        self._edge_types, self._max_message_nbytes = edge_types, max_message_nbytes
        self._first: data_pb2.FrameHeader | None = None
        self._parts: list[memoryview] = []
        self._missing_nbytes = 0

    def feed(self, header: data_pb2.FrameHeader, payload: memoryview) -> Arrived | None:
        """Take the next MESSAGE or END frame; returns what it completed, or None if more parts follow.

        A message of one part keeps views of `payload`, without a copy.

        Raises:
            WireError: the frame cannot be part of a message of its edge. The assembler is then of no more use.
        """
        if header.edge not in self._edge_types:
            what = "a frame arrived on an edge that does not lead here"
            raise WireError(what, got=header.edge)
        if self._first is not None:
            return self._continue(self._first, header, payload)
        if header.kind == data_pb2.KIND_END:
            if header.more or header.scalars or header.arrays or len(payload):
                what = "the end of an edge carries data"
                raise WireError(what, got=header.edge)
            return Arrived(header.edge, None)
        if header.kind != data_pb2.KIND_MESSAGE:
            what = "a frame is neither message nor end"
            raise WireError(what, got=header.kind)
        kind = self._edge_types[header.edge]
        total = _declared_nbytes(header, kind, self._max_message_nbytes)
        if not header.more:
            _check_payload(len(payload), total)
            return Arrived(header.edge, _build(kind, header, payload))
        _check_payload(len(payload), MAX_PART_NBYTES)
        self._first, self._parts, self._missing_nbytes = header, [payload], total - MAX_PART_NBYTES
        if self._missing_nbytes <= 0:
            what = "more parts are announced than the declared arrays fill"
            raise WireError(what, got=total)
        return None

    def _continue(
        self, first: data_pb2.FrameHeader, header: data_pb2.FrameHeader, payload: memoryview
    ) -> Arrived | None:
        if header.kind != data_pb2.KIND_MESSAGE or header.edge != first.edge or header.scalars or header.arrays:
            what = f"another frame stands between the parts of a message of edge {first.edge}"
            raise WireError(what, got=(header.kind, header.edge))
        _check_payload(len(payload), min(self._missing_nbytes, MAX_PART_NBYTES))
        self._parts.append(payload)
        self._missing_nbytes -= len(payload)
        if header.more != (self._missing_nbytes > 0):
            what = f"a message of edge {first.edge} has {self._missing_nbytes} bytes missing after this part"
            raise WireError(what, got=header.more)
        if header.more:
            return None
        whole = memoryview(b"".join(self._parts))
        self._first, self._parts = None, []
        return Arrived(first.edge, _build(self._edge_types[first.edge], first, whole))


def _portable(value: np.ndarray[Any, Any], where: str) -> tuple[np.ndarray[Any, Any], str]:
    """The array in C order and little endian, of 0 and 1 if it is of booleans, and its type's name on the wire."""
    if isinstance(value, np.ma.MaskedArray):
        what = "masked arrays do not cross the wire"
        raise WireError(what, where=where, fix="fill it: array.filled(...), or send its mask as well")
    value = np.asarray(value)
    name = value.dtype.str[1:]
    dtype = DTYPES.get(name)
    if dtype is None:
        what = f"arrays of {value.dtype} do not cross the wire"
        raise WireError(what, where=where, fix=f"use one of {', '.join(DTYPES)}")
    if len(value.shape) > MAX_AXES:
        what = f"an array has more than {MAX_AXES} axes"
        raise WireError(what, got=len(value.shape), where=where)
    if value.dtype != dtype or not value.flags.c_contiguous:
        value = value.astype(dtype, order="C")
    if name == "b1" and value.size and value.view(np.uint8).max() > 1:  # bytes that were looked at as booleans
        value = value.view(np.uint8) != 0
    return value, name


def _padded_nbytes(shape: Sequence[int], dtype: np.dtype[Any], bound_nbytes: int, where: str) -> int:
    """Bytes that an array takes in the payload; empty arrays too must have axes that are not absurdly long."""
    nbytes: int = math.prod(shape) * dtype.itemsize
    if nbytes > bound_nbytes or (nbytes == 0 and math.prod(max(1, length) for length in shape) > bound_nbytes):
        what = f"an array is larger than the {bound_nbytes} bytes a message may have"
        raise WireError(what, got=tuple(shape), where=where, fix=_TOO_LARGE)
    return nbytes + -nbytes % ALIGNMENT


def _text(scalars: list[object]) -> bytes:
    try:
        return _dumps(scalars).encode()
    except ValueError as error:
        what = f"the scalars cannot be written as text: {error}"
        raise WireError(what) from error


def _pack_parts(header: data_pb2.FrameHeader, payload: Sequence[Buffer], nbytes: int) -> list[bytes]:
    frames: list[bytes] = []
    part: list[Buffer] = []
    room = MAX_PART_NBYTES
    rest = nbytes
    for buffer in payload:
        taken = 0
        while taken < len(buffer):
            piece = buffer[taken : taken + room]
            part.append(piece)
            taken += len(piece)
            room -= len(piece)
            rest -= len(piece)
            if room == 0 or rest == 0:
                header.more = rest > 0
                frames.append(pack(header, part))
                header = data_pb2.FrameHeader(sequence=header.sequence + 1, edge=header.edge, kind=header.kind)
                part, room = [], MAX_PART_NBYTES
    return frames


def _declared_nbytes(header: data_pb2.FrameHeader, kind: type[Message], bound_nbytes: int) -> int:
    """Bytes of payload that the arrays declared in `header` take; checks that they fit the message type."""
    names, previous, total = field_names(kind), -1, 0
    for array in header.arrays:
        if not previous < array.field < len(names):
            what = f"arrays of {kind.__name__} are out of order, or for a field it does not have"
            raise WireError(what, got=array.field)
        previous = array.field
        dtype = DTYPES.get(array.dtype)
        if dtype is None:
            what = f"an array of {kind.__name__} has a type that does not cross the wire"
            raise WireError(what, got=array.dtype)
        if len(array.shape) > MAX_AXES:
            what = f"an array has more than {MAX_AXES} axes"
            raise WireError(what, got=len(array.shape))
        total += _padded_nbytes(array.shape, dtype, bound_nbytes, f"{kind.__name__}.{names[array.field]}")
    if total > bound_nbytes:
        what = f"{kind.__name__} is larger than the {bound_nbytes} bytes a message may have"
        raise WireError(what, got=total)
    return total


def _check_payload(nbytes: int, expected_nbytes: int) -> None:
    if nbytes != expected_nbytes:
        what = f"a frame's payload has not the {expected_nbytes} bytes that its arrays take"
        raise WireError(what, got=nbytes)


def _build(kind: type[Message], header: data_pb2.FrameHeader, payload: memoryview) -> Message:
    names = field_names(kind)
    scalars = _scalars(header.scalars)
    if len(scalars) + len(header.arrays) != len(names):
        what = f"{kind.__name__} has {len(names)} fields"
        raise WireError(what, got=len(scalars) + len(header.arrays))
    values = scalars
    offset = 0
    for array in header.arrays:  # in ascending order, so that each insertion puts its field in place
        view = _array(array, payload, offset)
        offset += view.nbytes + -view.nbytes % ALIGNMENT
        values.insert(array.field, view)
    try:
        return kind(*values)
    except Exception as error:  # whatever the checks of a message type raise
        what = f"{kind.__name__} refuses its fields: {in_words(error)}"
        raise WireError(what) from error


def _scalars(text: bytes) -> list[Any]:
    try:
        values = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        what = "the scalars of a message do not parse"
        raise WireError(what) from error
    if not isinstance(values, list) or not all(type(value) in _SCALARS for value in values):
        what = "the scalars of a message are no list of scalars"
        raise WireError(what)
    return values


def _array(header: data_pb2.ArrayHeader, payload: memoryview, offset: int) -> np.ndarray[Any, Any]:
    dtype = DTYPES[header.dtype]
    count = math.prod(header.shape)
    if count == 0:
        empty = np.empty(tuple(header.shape), dtype)
        empty.flags.writeable = False
        return empty
    flat: np.ndarray[Any, Any] = np.frombuffer(payload, dtype, count, offset)
    if header.dtype == "b1" and flat.view(np.uint8).max() > 1:
        what = "a boolean is neither 0 nor 1"
        raise WireError(what)
    return flat.reshape(tuple(header.shape))
