from __future__ import annotations

import asyncio
import math

import pytest

from dataflow.engine.membership import Members
from dataflow.errors import WireError
from dataflow.observe.events import JobEvent
from dataflow.reports import LinkStatistics, NodeStatistics, OperatorReport, ProcessorTimes, SampleStatistics
from dataflow.runtime.frames import pack_frame, read_frame
from dataflow.runtime.wire import (
    event_from_wire,
    members_from_wire,
    members_to_wire,
    report_from_wire,
    report_to_wire,
    statistics_from_wire,
    statistics_to_wire,
)
from dataflow.transport.generated import control_pb2 as pb

STATISTICS = NodeStatistics(
    node=3,
    steps=7,
    tasks=20,
    busy_s={"compute": 1.5, "network": 0.25},
    waiting_s=0.5,
    sent_nbytes={0: 100, 2: 1 << 40},
    received_nbytes={1: 5},
    samples={"compute.staleness": SampleStatistics(4, 6.0, 3.0, 1.0)},
    running_s=2.5,
    compute_tasks=2,
    processor=ProcessorTimes(3.0, 2.0, 0.5),
    links_busy_s=0.75,
    links={0: LinkStatistics(100, 3, 0.5, 0.25), 2: LinkStatistics()},
)


def test_statistics_survive_the_wire() -> None:
    sent = statistics_to_wire(STATISTICS).SerializeToString()
    assert statistics_from_wire(pb.NodeStatistics.FromString(sent)) == STATISTICS


def test_statistics_of_what_is_unknown_stay_unknown() -> None:
    sent = statistics_to_wire(NodeStatistics(0)).SerializeToString()
    assert statistics_from_wire(pb.NodeStatistics.FromString(sent)) == NodeStatistics(0)


def test_reports_survive_the_wire_with_their_types() -> None:
    report = OperatorReport("validate.results", {"a": 1, "b": 1.5, "c": True, "d": None, "e": "x", "f": math.inf})
    back = report_from_wire(report_to_wire(report))
    assert back == report
    assert [type(value) for value in back.fields.values()] == [int, float, bool, type(None), str, float]


@pytest.mark.parametrize("fields", [b"", b"[1]", b'{"a": [1]}', b"\xff"])
def test_report_that_is_no_object_of_scalars_is_refused(fields: bytes) -> None:
    with pytest.raises(WireError):
        report_from_wire(pb.OperatorReport(port="a.b", fields_json=fields))


def test_membership_is_on_the_wire_as_it_was() -> None:
    members = Members(7, {0: 0, 2: 3}, {0: "a:1"}, frozenset({2, 4}))
    message = pb.Connect.FromString(members_to_wire(members, answers=5).SerializeToString())
    assert (members_from_wire(message), message.answers) == (members, 5)


def test_events_of_every_kind_come_from_the_wire() -> None:
    state = pb.StateChange(state="FINISHED", reason="why", stopped_by="target")
    assert event_from_wire(pb.JobEvent(index=1, wall_s=2.0, elapsed_s=3.0, state=state)) == JobEvent(
        1, 2.0, 3.0, state="FINISHED", reason="why", stopped_by="target"
    )
    report = OperatorReport("a.b", {"x": 1})
    message = pb.NodeReport(node=2, report=report_to_wire(report))
    assert event_from_wire(pb.JobEvent(report=message)) == JobEvent(0, 0.0, 0.0, node=2, report=report)
    event = event_from_wire(pb.JobEvent(statistics=statistics_to_wire(STATISTICS)))
    assert (event.node, event.statistics) == (3, STATISTICS)
    assert event_from_wire(pb.JobEvent(warning=pb.JobWarning(text="full"))) == JobEvent(0, 0.0, 0.0, warning="full")
    with pytest.raises(WireError):
        event_from_wire(pb.JobEvent())


def read(data: bytes) -> list[bytes]:
    async def frames() -> list[bytes]:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        found = []
        while (frame := await read_frame(reader)) is not None:
            found.append(frame)
        return found

    return asyncio.run(frames())


def test_frames_come_back_one_by_one() -> None:
    assert read(pack_frame(b"one") + pack_frame(b"") + pack_frame(b"three")) == [b"one", b"", b"three"]


def test_frame_that_is_cut_off_is_the_end() -> None:
    assert read(pack_frame(b"one") + pack_frame(b"two")[:-1]) == [b"one"]


def test_frame_that_is_too_long_is_refused() -> None:
    with pytest.raises(WireError, match="a frame may have"):
        read(b"\xff\xff\xff\xff")
