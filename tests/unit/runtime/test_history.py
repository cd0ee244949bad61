from __future__ import annotations

from typing import get_args

import pytest

from dataflow.engine import coordination as co
from dataflow.errors import MasterError
from dataflow.reports import NodeStatistics, OperatorReport, SampleStatistics
from dataflow.runtime.history import event_from_text, event_to_text, on_this_clock

EVENTS = [
    co.Placed(("a", "b")),
    co.Unplaced("needs 2 nodes"),
    co.NodePrepared(1, "127.0.0.1:1"),
    co.NodeReady(0),
    co.NodeReport(1, OperatorReport("v.r", {"accuracy": 0.1 + 0.2, "n": 3, "ok": True, "text": "1", "none": None})),
    co.NodeEnded(0, NodeStatistics(0, steps=5, sent_nbytes={1: 7}, samples={"a": SampleStatistics(1, 2.0, 2.0, 2.0)})),
    co.NodeFailed(1, "no", "a.py:1"),
    co.NodeFailed(1, "no", "a.py:1", anew=True),
    co.NodeFailed(1, "no", checkpoint=True),
    co.NodeExited(1, "its job process ended by SIGKILL"),
    co.NodeStalled(0, "nothing"),
    co.NodePaused(2),
    co.NodeLost(1, "gone"),
    co.NodeBack(1),
    co.LinkBroken(0, 2, "cut"),
    co.NodeArrived(3, "d"),
    co.DrainAsked(2),
    co.AdjustAsked("op", "tree=star"),
    co.CancelAsked(),
    co.AdjustAsked("operation", "star"),
    co.CheckpointFound(700),
    co.CheckpointFound(None, "there is no whole checkpoint"),
    co.Tick(),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_event_comes_back_from_its_text_as_it_was(event: co.Event) -> None:
    assert repr(event_from_text(event_to_text(event))) == repr(event)


def test_every_kind_of_event_is_tested() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(co.Event))


def test_times_of_every_start_of_the_machine_are_put_on_the_clock_of_now() -> None:
    first = [(5000.0, 100_000.0, "1"), (5040.0, 100_040.0, "1")]
    second = [(10.0, 100_100.0, "2"), (300.0, 100_390.0, "2")]
    assert on_this_clock([*first, *second], 320.0, 100_410.0, "2") == [-90.0, -50.0, 10.0, 300.0]
    assert on_this_clock([*first, *second], 30.0, 100_500.0, "3") == [-470.0, -430.0, -370.0, -80.0]  # and once more
    assert on_this_clock(first, 9000.0, 100_050.0, "2") == [8950.0, 8990.0]  # another machine, which has run for longer


@pytest.mark.parametrize("set_s", [7200.0, -7200.0])
def test_wall_clock_that_was_set_changes_no_times_of_one_start_of_the_machine(set_s: float) -> None:
    times = [(10.0, 1000.0, "1"), (20.0, 1010.0, "1"), (30.0, 1020.0 + set_s, "1")]
    assert on_this_clock(times, 40.0, 1030.0 + set_s, "1") == [10.0, 20.0, 30.0]
    assert on_this_clock(times, 40.0, 1030.0 - set_s, "1") == [10.0, 20.0, 30.0]


@pytest.mark.parametrize("text", ["", "[]", '["NodeReady", {}]', '["Other", {}]', '{"NodeReady": 1}'])
def test_text_of_another_version_is_refused(text: str) -> None:
    with pytest.raises(MasterError, match="does not know"):
        event_from_text(text)
