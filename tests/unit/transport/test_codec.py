"""The codec: round trips bit for bit, and WireError for everything that `encode` cannot have made."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dataflow.errors import WireError
from dataflow.message import Message, nbytes
from dataflow.transport.codec import DTYPES, Arrived, Assembler, encode, encode_end
from dataflow.transport.frames import ALIGNMENT, MAX_PACKET_NBYTES, MAX_PART_NBYTES, pack, split
from dataflow.transport.generated import data_pb2

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Mixed(Message):
    step: int
    first: Array
    label: str | None
    second: Array | None
    loss: float
    last: bool


@dataclass(frozen=True, slots=True)
class Blob(Message):
    data: Array


@dataclass(frozen=True, slots=True)
class Picky(Message):
    step: int

    def __post_init__(self) -> None:
        if self.step < 0:
            raise ZeroDivisionError


EDGE_TYPES: dict[int, type[Message]] = {1: Mixed, 2: Blob, 3: Picky}


def decode(packets: Iterable[bytes], **options: int) -> list[Arrived]:
    assembler = Assembler(EDGE_TYPES, **options)
    arrived = (assembler.feed(header, payload) for packet in packets for header, payload in split(packet))
    return [one for one in arrived if one is not None]


def round_trip(message: Message, edge: int) -> Any:
    (arrived,) = decode(encode(message, edge=edge, sequence=1))
    assert arrived.edge == edge
    assert arrived.message is not None
    assert nbytes(arrived.message) == nbytes(message)
    return arrived.message


def assert_identical(got: Array, expected: Array) -> None:
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype.newbyteorder("<")
    assert got.tobytes() == expected.astype(expected.dtype.newbyteorder("<")).tobytes()


def message_header(**fields: Any) -> data_pb2.FrameHeader:
    return data_pb2.FrameHeader(**{"sequence": 1, "edge": 2, "kind": data_pb2.KIND_MESSAGE, "scalars": b"[]"} | fields)


ARRAYS = hnp.arrays(
    dtype=st.sampled_from([dtype.newbyteorder(order) for dtype in DTYPES.values() for order in "<>"]),
    shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
)
MESSAGES = st.builds(
    Mixed,
    step=st.integers(),
    first=ARRAYS,
    label=st.none() | st.text(),
    second=st.none() | ARRAYS,
    loss=st.floats(),
    last=st.booleans(),
)


@settings(deadline=None)
@given(MESSAGES)
def test_round_trip_any_message_is_identical(message: Mixed) -> None:
    got = round_trip(message, 1)
    assert (got.step, got.label, got.last) == (message.step, message.label, message.last)
    assert got.loss == message.loss or (math.isnan(got.loss) and math.isnan(message.loss))
    assert math.copysign(1, got.loss) == math.copysign(1, message.loss) or math.isnan(message.loss)
    assert_identical(got.first, message.first)
    if message.second is None:
        assert got.second is None
    else:
        assert_identical(got.second, message.second)


@pytest.mark.parametrize("dtype", DTYPES)
def test_decoded_arrays_are_read_only_aligned_views_of_the_packet(dtype: str) -> None:
    packet = encode(Blob(np.ones((3, 5), dtype)), edge=2, sequence=1)[0]
    (arrived,) = decode([packet])
    assert isinstance(arrived.message, Blob)
    array = arrived.message.data
    assert not array.flags.writeable
    assert array.flags.aligned
    assert np.shares_memory(array.view(np.uint8), np.frombuffer(packet, np.uint8))


def test_frame_layout_is_as_documented() -> None:
    header = message_header(arrays=[data_pb2.ArrayHeader(field=0, dtype="u2", shape=[3])])
    head = header.SerializeToString()
    payload = b"\1\0\2\0\3\0" + bytes(10)
    expected = len(head).to_bytes(4, "little") + (16).to_bytes(4, "little") + head
    expected += bytes(-len(expected) % ALIGNMENT) + payload
    assert encode(Blob(np.array([1, 2, 3], ">u2")), edge=2, sequence=1) == [expected]


def test_encode_copies_so_that_arrays_may_be_written_afterwards() -> None:
    array = np.arange(8)
    frames = encode(Blob(array), edge=2, sequence=1)
    array[:] = -1
    (arrived,) = decode(frames)
    assert isinstance(arrived.message, Blob)
    assert arrived.message.data.tolist() == list(range(8))


@pytest.mark.parametrize("make", [lambda a: a.T, lambda a: a[::2, ::3], np.asfortranarray])
def test_non_contiguous_arrays_arrive_in_c_order(make: Any) -> None:
    array = make(np.arange(42.0).reshape(6, 7))
    got = round_trip(Blob(array), 2).data
    assert got.flags.c_contiguous
    assert np.array_equal(got, array)


@pytest.mark.parametrize(
    ("elements", "frames"),
    [
        (0, 1),
        (MAX_PART_NBYTES, 1),
        (MAX_PART_NBYTES + 1, 2),
        (2 * MAX_PART_NBYTES, 2),
        (3 * MAX_PART_NBYTES - 17, 3),
    ],
)
def test_large_messages_are_split_into_parts_and_reassembled(elements: int, frames: int) -> None:
    data = np.random.default_rng(elements).integers(0, 256, elements, np.uint8)
    packets = encode(Blob(data), edge=2, sequence=7)
    assert len(packets) == frames
    assert max(map(len, packets)) <= MAX_PACKET_NBYTES
    assert [header.sequence for packet in packets for header, _ in split(packet)] == list(range(7, 7 + frames))
    for cut in range(frames):
        assert decode(packets[:cut]) == []
    (arrived,) = decode(packets)
    assert isinstance(arrived.message, Blob)
    assert np.array_equal(arrived.message.data, data)


def test_frames_of_one_packet_arrive_in_order() -> None:
    packet = encode(Picky(1), edge=3, sequence=1)[0] + encode_end(edge=2, sequence=2)
    assert decode([packet]) == [Arrived(3, Picky(1)), Arrived(2, None)]


def test_encode_array_in_a_field_that_is_declared_to_be_a_scalar_is_refused_as_it_would_cost_no_credit() -> None:
    with pytest.raises(WireError, match="field 'step' of Picky is declared to be a scalar, and holds an array"):
        encode(_unchecked(np.zeros(9)), edge=0, sequence=1)


@pytest.mark.parametrize("value", [np.float32(1), np.int64(2), np.float64(0.5), np.bool_(True), [1], b"x", 1j])
def test_encode_other_scalars_are_refused_by_field_name(value: object) -> None:
    with pytest.raises(WireError, match="field 'step' of Picky is neither"):
        encode(_unchecked(value), edge=3, sequence=1)


def _unchecked(value: object) -> Picky:
    picky = Picky(0)
    object.__setattr__(picky, "step", value)
    return picky


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([object()]), np.zeros(2, "c8"), np.zeros(1, "M8[s]")])
def test_encode_other_dtypes_are_refused_by_field_name(array: Array) -> None:
    with pytest.raises(WireError, match=r"do not cross the wire at Blob\.data; use one of f2"):
        encode(Blob(array), edge=2, sequence=1)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_arrays_of_derived_classes_arrive_as_plain_ones(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "mapped", np.float32, "w+", shape=(2, 3))
    mapped[:] = np.arange(6).reshape(2, 3)
    for array in (np.matrix([[1.0, 2.0]]), mapped):
        arrived = round_trip(Blob(array), edge=2).data
        assert type(arrived) is np.ndarray
        np.testing.assert_array_equal(arrived, np.asarray(array), strict=True)


def test_masked_array_is_refused_as_its_mask_would_be_lost() -> None:
    masked = np.ma.masked_equal(np.arange(3.0), 1)
    with pytest.raises(WireError, match="masked arrays do not cross the wire") as caught:
        encode(Blob(masked), edge=2, sequence=1)
    assert "Blob.data" in str(caught.value)


@pytest.mark.parametrize("bytes_", [[2, 0, 1], [], [0, 255]])
def test_bytes_that_are_looked_at_as_booleans_arrive_as_what_numpy_takes_them_for(bytes_: list[int]) -> None:
    array = np.array(bytes_, np.uint8).view(bool)
    arrived = round_trip(Blob(array), edge=2).data
    assert arrived.dtype == bool
    assert arrived.tolist() == [value != 0 for value in bytes_]


def test_message_size_is_bounded_on_both_sides() -> None:
    message = Blob(np.zeros(65, np.uint8))  # 80 bytes with its padding
    frames = encode(message, edge=2, sequence=1, max_message_nbytes=80)
    assert len(decode(frames, max_message_nbytes=80)) == 1
    with pytest.raises(WireError, match="larger than the 79 bytes"):
        encode(message, edge=2, sequence=1, max_message_nbytes=79)
    with pytest.raises(WireError, match="larger than the 79 bytes"):
        decode(frames, max_message_nbytes=79)
    with pytest.raises(WireError, match=r"array is larger .*got \(65,\)\) at Blob\.data; send it in pieces"):
        encode(message, edge=2, sequence=1, max_message_nbytes=64)


def test_long_text_is_refused_at_encode() -> None:
    message = Mixed(0, np.zeros(1), "x" * 70_000, None, 0.0, False)
    with pytest.raises(WireError, match="more than 65536 bytes"):
        encode(message, edge=1, sequence=1)


U1 = {"field": 0, "dtype": "u1"}
HEADERS = {
    "unknown edge": (message_header(edge=9), 0),
    "unknown kind": (message_header(kind=77), 0),
    "control kind": (message_header(kind=data_pb2.KIND_ACK), 0),
    "unknown dtype": (message_header(arrays=[data_pb2.ArrayHeader(field=0, dtype="O", shape=[1])]), 16),
    "field beyond": (message_header(arrays=[data_pb2.ArrayHeader(field=1, dtype="u1", shape=[1])]), 16),
    "field twice": (message_header(arrays=[data_pb2.ArrayHeader(**U1)] * 2), 32),
    "array missing": (message_header(), 0),
    "scalar too many": (message_header(scalars=b"[1]", arrays=[data_pb2.ArrayHeader(**U1)]), 16),
    "payload short": (message_header(arrays=[data_pb2.ArrayHeader(**U1, shape=[17])]), 16),
    "payload long": (message_header(arrays=[data_pb2.ArrayHeader(**U1, shape=[16])]), 32),
    "payload unpadded": (message_header(arrays=[data_pb2.ArrayHeader(**U1, shape=[3])]), 3),
    "huge": (message_header(arrays=[data_pb2.ArrayHeader(**U1, shape=[2**62, 2**62])]), 16),
    "huge and empty": (message_header(arrays=[data_pb2.ArrayHeader(**U1, shape=[0, 2**62, 2**62])]), 0),
    "many axes": (message_header(arrays=[data_pb2.ArrayHeader(**U1, shape=[1] * 70)]), 16),
    "more without need": (message_header(more=True, arrays=[data_pb2.ArrayHeader(**U1)]), 16),
    "nested json": (message_header(edge=3, scalars=b"[[1]]"), 0),
    "deep json": (message_header(edge=3, scalars=b"[" * 60_000), 0),
    "huge int": (message_header(edge=3, scalars=b"[" + b"9" * 5_000 + b"]"), 0),
    "json object": (message_header(edge=3, scalars=b'{"step":1}'), 0),
    "not utf-8": (message_header(edge=3, scalars=b"[\xff]"), 0),
    "refused by the type": (message_header(edge=3, scalars=b"[-1]"), 0),
    "end with data": (message_header(kind=data_pb2.KIND_END), 0),
}


@pytest.mark.parametrize("name", HEADERS)
def test_malformed_header_raises_wire_error(name: str) -> None:
    header, payload_nbytes = HEADERS[name]
    with pytest.raises(WireError):
        decode([pack(header, [bytes(payload_nbytes)])])


def test_boolean_that_is_neither_0_nor_1_raises_wire_error() -> None:
    header = message_header(arrays=[data_pb2.ArrayHeader(field=0, dtype="b1", shape=[16])])
    with pytest.raises(WireError, match="neither 0 nor 1"):
        decode([pack(header, [b"\2" * 16])])


PARTS = encode(Blob(np.zeros(2 * MAX_PART_NBYTES + 16, np.uint8)), edge=2, sequence=1)
OTHER = encode(Picky(1), edge=3, sequence=9)[0]


@pytest.mark.parametrize(
    "packets",
    [[PARTS[0], OTHER], [PARTS[0], PARTS[2]], [PARTS[0], PARTS[0]], [PARTS[1]], [PARTS[0], PARTS[1], OTHER]],
    ids=["other message between", "part left out", "begun again", "begun in the middle", "other message at the end"],
)
def test_parts_out_of_order_raise_wire_error(packets: list[bytes]) -> None:
    with pytest.raises(WireError):
        decode(packets)


VALID = [
    *encode(Mixed(3, np.arange(6.0).reshape(2, 3), "x", np.zeros((0, 2), "f2"), 0.5, True), edge=1, sequence=1),
    encode(Blob(np.array([True, False])), edge=2, sequence=1)[0] + encode_end(edge=2, sequence=2),
    OTHER,
]


def assert_decodes_or_raises_wire_error(packet: bytes) -> None:
    raised: Exception | None = None
    try:
        decode([packet])
    except Exception as error:  # whatever it is, the packet is to be shown with it
        raised = error
    assert raised is None or isinstance(raised, WireError)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_fuzz_random_bytes_raise_nothing_but_wire_error(packet: bytes) -> None:
    assert_decodes_or_raises_wire_error(packet)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(VALID), st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4))
def test_fuzz_flipped_bytes_raise_nothing_but_wire_error(packet: bytes, flips: list[tuple[int, int]]) -> None:
    flipped = bytearray(packet)
    for at, mask in flips:
        flipped[at % len(packet)] ^= mask
    assert_decodes_or_raises_wire_error(bytes(flipped))


@settings(max_examples=500, deadline=None)
@given(
    st.binary(max_size=40),
    st.lists(
        st.builds(
            data_pb2.ArrayHeader,
            field=st.integers(0, 2),
            dtype=st.sampled_from([*DTYPES, "", "O", "V8"]),
            shape=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 4), max_size=4),
        ),
        max_size=2,
    ),
    st.integers(0, 5),
    st.booleans(),
)
def test_fuzz_headers_raise_nothing_but_wire_error(scalars: bytes, arrays: Any, units: int, more: bool) -> None:
    header = message_header(scalars=scalars, arrays=arrays, more=more)
    assert_decodes_or_raises_wire_error(pack(header, [bytes(16 * units)]))


@pytest.mark.parametrize("packet", VALID, ids=["mixed", "two frames", "scalar"])
def test_truncated_packets_never_deliver_the_cut_message(packet: bytes) -> None:
    whole = len(decode([packet]))
    for size in range(len(packet)):
        try:
            arrived = decode([packet[:size]])
        except WireError:
            continue
        assert len(arrived) < whole
