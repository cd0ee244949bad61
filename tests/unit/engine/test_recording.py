"""Records of events: their bytes, and what an engine notes of what it is given."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace

import numpy as np
import pytest
from engine_rig import Blob, Count, NetNote, Num, Rig, graph_of, nodes_of, received
from hypothesis import given
from hypothesis import strategies as st

from dataflow.engine import recording
from dataflow.engine.events import (
    CreditGranted,
    Ended,
    Failed,
    Measured,
    NodeJoined,
    NodeLeft,
    Report,
    StopAsked,
    StreamEnded,
)
from dataflow.engine.recording import (
    EVENT_NBYTES,
    MAX_CHUNK_NBYTES,
    Chunk,
    Kind,
    Noted,
    RecordedEngine,
    checksum,
    pack,
    pack_rates,
)
from dataflow.errors import DataError
from dataflow.message import Message
from dataflow.operators_api import Artifact, Emissions, Operator
from dataflow.plan.physical import PhysicalPlan, StreamId
from dataflow.ports import In, Out
from dataflow.reports import LinkRates, Rates
from dataflow.transport.codec import Assembler, encode
from dataflow.transport.frames import split

HEADER_NBYTES = 72

seconds = st.floats(allow_nan=False)
numbers = st.integers(0, 2**32 - 1)
events = st.builds(
    Noted,
    kind=st.sampled_from([int(kind) for kind in Kind]),
    failed=st.integers(0, 1),
    followed=st.integers(0, 1),
    edge=numbers,
    node=numbers,
    checksum=numbers,
    amount=st.integers(0, 2**64 - 1),
    now_s=seconds,
    busy_s=seconds,
)


class Breaks(Operator):
    inp = In(Num)
    out = Out(Num)

    def process(self, num: Num) -> Emissions:
        yield self.out(Num(num.n // 0))


def chunk_of(*noted: Noted, last: bool = False) -> Chunk:
    return Chunk("ab" * 32, 3, 7, last, b"".join(map(pack, noted)))


def recorded(plan: PhysicalPlan, chunk_s: float = 1000.0) -> Rig:
    rig = Rig(plan)
    rig.engine = RecordedEngine(plan, 0, rig.loaded, digest=plan.digest(), chunk_s=chunk_s)
    return rig


def artifacts(rig: Rig) -> dict[str, bytes]:
    found = [c.what for c in rig.commands if isinstance(c, Report) and isinstance(c.what, Artifact)]
    return {artifact.name: artifact.data for artifact in found}


def chunks(rig: Rig) -> list[Chunk]:
    return [Chunk.decode(data) for name, data in sorted(artifacts(rig).items()) if name.endswith(".bin")]


@given(st.lists(events, max_size=30), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.booleans())
def test_chunk_of_any_events_comes_back_equal(noted: list[Noted], node: int, first: int, last: bool) -> None:
    chunk = replace(chunk_of(*noted, last=last), node=node, first=first, incarnation=node)
    data = chunk.encode()
    assert len(data) == HEADER_NBYTES + 40 * len(noted)
    assert Chunk.decode(data) == chunk
    assert list(chunk.events()) == noted


@given(st.lists(events, min_size=1, max_size=5), st.data())
def test_chunk_with_a_bit_of_its_events_turned_is_refused(noted: list[Noted], draw: st.DataObject) -> None:
    data = bytearray(chunk_of(*noted).encode())
    data[draw.draw(st.integers(HEADER_NBYTES, len(data) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    with pytest.raises(DataError, match="damaged"):
        Chunk.decode(bytes(data))


@given(st.binary(max_size=200))
def test_chunk_of_any_bytes_is_refused(data: bytes) -> None:
    with pytest.raises(DataError, match="no record of events"):
        Chunk.decode(data)


@pytest.mark.parametrize("cut", [1, 40, 41, 80])
def test_chunk_cut_off_is_refused(cut: int) -> None:
    data = chunk_of(Noted(Kind.STARTED), Noted(Kind.GO_ON)).encode()
    with pytest.raises(DataError, match=r"cut off: 2 events are 80 bytes, and their rates 0 \(got " + str(80 - cut)):
        Chunk.decode(data[:-cut])


def test_chunk_of_another_version_is_refused() -> None:
    data = chunk_of().encode()
    with pytest.raises(DataError, match="version 9, this program reads version 4"):
        Chunk.decode(data[:8] + struct.pack("<H", 9) + data[10:])


def test_chunk_with_too_many_events_is_refused() -> None:
    with pytest.raises(DataError, match=r"at most 16384 events \(got 16385\)"):
        Chunk.decode(replace(chunk_of(), packed=bytes(16385 * EVENT_NBYTES)).encode())


@dataclass(frozen=True, slots=True)
class Labelled(Message):
    name: str
    weights: np.ndarray


def test_checksum_of_equal_messages_is_equal_whatever_the_memory_order() -> None:
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert checksum(Labelled("a", weights)) == checksum(Labelled("a", np.asfortranarray(weights)))
    assert checksum(Labelled("a", weights)) == checksum(Labelled("a", np.repeat(weights, 2, axis=0)[::2]))


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i2", "i8", "u4"])
def test_checksum_of_equal_messages_is_equal_whatever_the_byte_order(kind: str) -> None:
    little, big = (Labelled("a", np.arange(6, dtype=order + kind).reshape(2, 3)) for order in "<>")
    assert checksum(little) == checksum(big) == zlib.crc32(b"['a']", zlib.crc32(little.weights.tobytes()))


def test_checksum_of_big_endian_arrays_is_that_of_the_message_that_arrives() -> None:
    sent = Labelled("a", np.array([[1.5, -2.0], [0.0, 3e9]], ">f8"))
    (packet,) = encode(sent, edge=0, sequence=1)
    ((header, payload),) = split(packet)
    arrived = Assembler({0: Labelled}).feed(header, payload)
    assert arrived is not None
    assert arrived.message is not None
    assert checksum(arrived.message) == checksum(sent)


def test_chunk_of_as_many_events_as_it_may_have_is_as_large_as_is_read() -> None:
    most = (1 << 20) + 52 + 100_000 * 28  # the last rates may be those of the largest plan
    data = replace(chunk_of(), packed=bytes(16384 * EVENT_NBYTES), rates=bytes(most)).encode()
    assert len(data) == MAX_CHUNK_NBYTES == 72 + 16384 * 40 + most
    assert len(Chunk.decode(data)) == 16384


def test_chunk_with_too_many_rates_is_refused() -> None:
    with pytest.raises(DataError, match=r"at most 3848628 bytes of rates \(got 3848629\)"):
        Chunk.decode(replace(chunk_of(), rates=bytes(3_848_629)).encode())


RATES = [
    Rates(seconds=0.5, steps=3, compute_s=0.25, exchange_s=0.125, busy_s=0.0625, blocked_s=0.03125),
    Rates(seconds=1.5, links={7: LinkRates(nbytes=1 << 40, busy_s=0.5, delay_s=0.1), 2: LinkRates()}),
]


def test_chunk_of_rates_comes_back_with_their_links_in_order() -> None:
    chunk = replace(chunk_of(Noted(Kind.MEASURED)), rates=b"".join(map(pack_rates, RATES)))
    again = Chunk.decode(chunk.encode())
    assert list(again.measured()) == RATES
    assert [list(rates.links) for rates in again.measured()] == [[], [7, 2]]


@pytest.mark.parametrize("cut", [1, 28, 57, 60])
def test_chunk_whose_rates_are_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(DataError, match="rates of a record are cut off"):
        list(replace(chunk_of(), rates=pack_rates(RATES[1])[:-cut]).measured())


def test_record_keeps_measured_rates_with_the_events_of_their_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "CHUNK_RATES_NBYTES", 100)
    rig = recorded(nodes_of(received(), 2))
    rig.start()
    for rates in RATES:
        rig.give(Measured(rates), now=2.0)
    rig.give(StopAsked())
    (chunk,) = chunks(rig)  # full with the second rates: 52 + 52 + 2 * 28 bytes
    measured = Noted(Kind.MEASURED, now_s=2.0)
    assert list(chunk.events()) == [Noted(Kind.STARTED), measured, measured]
    assert list(chunk.measured()) == RATES
    assert isinstance(rig.engine, RecordedEngine)
    rest = rig.engine.rest()
    assert rest is not None
    assert Chunk.decode(rest.data).rates == b""


def test_checksum_tells_scalars_and_the_last_bit_of_arrays_apart() -> None:
    weights = np.ones(1000, np.float32)
    other = weights.copy()
    other[999] = np.nextafter(np.float32(1), np.float32(2))
    assert (
        len({checksum(Labelled("a", weights)), checksum(Labelled("b", weights)), checksum(Labelled("a", other))}) == 3
    )
    assert checksum(Blob(np.zeros(0, np.uint8))) != checksum(Num(0))


def test_record_of_a_whole_run_numbers_tasks_as_they_were_commanded() -> None:
    rig = recorded(nodes_of(graph_of({"count": Count(limit=1), "note": NetNote()}, [("count", "note")], ["log"])))
    rig.start()  # commands task 0: the first number
    first = rig.tasks[0]
    rig.finish(first, now=1.5, busy_s=0.25)  # commands tasks 1, the note, and 2, the end of data, of which 2 is first
    note, end = rig.tasks
    rig.finish(end, now=2.0)  # commands task 3: the source's end
    rig.finish(note, now=3.0)
    rig.finish(rig.tasks[0], now=4.0)  # commands task 4: the note's end
    rig.finish(rig.tasks[0], now=5.0)
    task = Kind.TASK_FINISHED
    (chunk,) = chunks(rig)
    assert (chunk.plan, chunk.node, chunk.first, chunk.last) == (rig.plan.digest(), 0, 0, True)
    assert [event for event in chunk.events() if event.kind != Kind.GO_ON] == [
        Noted(Kind.STARTED),
        Noted(task, amount=0, now_s=1.5, busy_s=0.25),
        Noted(task, amount=2, now_s=2.0),
        Noted(task, amount=1, now_s=3.0),
        Noted(task, amount=3, now_s=4.0),
        Noted(task, amount=4, now_s=5.0),
    ]
    assert PhysicalPlan.model_validate_json(artifacts(rig)["events/plan.json"]) == rig.plan
    assert isinstance(rig.commands[-1], Ended)


def test_record_refers_to_streams_and_holds_no_payload() -> None:
    rig = recorded(nodes_of(received(), 3), chunk_s=0.0)
    rig.start()
    message = Num(7)
    rig.arrive(message, source=1, nbytes=150)
    rig.give(CreditGranted(StreamId(0, 0, 2), 99))
    rig.give(StreamEnded(StreamId(0, 1, 0)))
    rig.give(NodeLeft(2))
    rig.give(NodeJoined(2, 3))
    rig.give(NodeLeft(1, ended=True))
    rig.give(StopAsked())
    assert [event for chunk in chunks(rig) for event in chunk.events()] == [
        Noted(Kind.STARTED),
        Noted(Kind.MESSAGE_ARRIVED, edge=0, node=1, checksum=checksum(message), amount=150),
        Noted(Kind.CREDIT_GRANTED, edge=0, node=2, amount=99),
        Noted(Kind.STREAM_ENDED, edge=0, node=1),
        Noted(Kind.NODE_LEFT, node=2),
        Noted(Kind.NODE_JOINED, node=2, amount=3),
        Noted(Kind.NODE_LEFT, node=1, amount=1),
        Noted(Kind.STOP_ASKED),
    ]


def test_record_leaves_the_engine_when_its_chunk_is_full_or_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "CHUNK_EVENTS", 3)
    rig = recorded(nodes_of(received(), 3), chunk_s=10.0)
    for now in (0.0, 1.0, 2.0, 5.0, 15.0, 16.0):
        rig.give(StopAsked(), now)
    assert [(chunk.first, len(chunk), chunk.last) for chunk in chunks(rig)] == [(0, 3, False), (3, 2, False)]
    assert sorted(artifacts(rig)) == ["events/node-0-000000.bin", "events/node-0-000001.bin"]


def test_record_of_a_failed_engine_ends_before_its_failure() -> None:
    rig = recorded(nodes_of(graph_of({"count": Count(), "breaks": Breaks()}, [("count", "breaks")])))
    rig.start()
    commands = rig.finish(rig.tasks[0])
    assert isinstance(commands[-1], Failed)
    assert isinstance(commands[-2], Report)
    (chunk,) = chunks(rig)
    assert chunk.last
    assert [(event.kind, event.failed) for event in chunk.events()] == [(Kind.STARTED, 0), (Kind.TASK_FINISHED, 1)]
    assert isinstance(rig.engine, RecordedEngine)
    assert rig.engine.rest() is None


def test_record_of_a_later_incarnation_stands_beside_that_of_the_first_and_has_the_plan_too() -> None:
    rig = Rig(nodes_of(received(), 1))
    rig.engine = RecordedEngine(rig.plan, 0, rig.loaded, digest=rig.plan.digest(), chunk_s=0.0, incarnation=2)
    rig.start()
    plan, name = sorted(artifacts(rig), reverse=True)
    assert (plan, name) == ("events/plan.json", "events/node-0.2-000000.bin")
    assert Chunk.decode(artifacts(rig)[name]).incarnation == 2


def test_rest_of_a_record_says_that_nothing_is_missing() -> None:
    rig = recorded(nodes_of(received(), 2))
    rig.start()
    assert isinstance(rig.engine, RecordedEngine)
    rest = rig.engine.rest()
    assert rest is not None
    chunk = Chunk.decode(rest.data)
    assert (rest.name, chunk.last, len(chunk)) == ("events/node-0-000000.bin", True, 1)
    assert rig.engine.rest() is None
