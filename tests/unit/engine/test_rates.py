"""What a node measures of itself reaches the operators that mind, in turn with their messages."""

from __future__ import annotations

from engine_rig import Collect, Count, LogState, NetNote, Note, Num, Pieces, Rig, graph_of, nodes_of, received

from dataflow.engine.events import Measured, StreamEnded
from dataflow.operators_api import Emissions, Sample
from dataflow.plan.physical import StreamId
from dataflow.reports import Rates


class Minds(NetNote):
    """Notes the rates, too, and passes them on as numbers."""

    def on_rates(self, rates: Rates, log: LogState) -> Emissions:
        log.items.append(f"{rates.steps} steps")
        yield Sample("steps", rates.steps)
        yield self.out(Num(rates.steps))


class MindsSlowly(Minds):
    """The same, in the compute pool."""

    pool = "compute"


class CollectMinds(Collect):
    def on_rates(self, rates: Rates, log: LogState) -> Emissions:
        log.items.append(f"{rates.steps} steps")
        yield from ()


def minding(note: Note | None = None) -> Rig:
    """receive -> note(log) on node 0, where nothing else goes on."""
    rig = Rig(nodes_of(received(note=note or Minds()).replace("count", Count(limit=0)), 2))
    rig.start()
    rig.finish_all()
    return rig


def measured(steps: int) -> Measured:
    return Measured(Rates(seconds=0.5, steps=steps))


def test_rates_of_a_busy_chain_come_behind_its_task_and_ahead_of_what_waits() -> None:
    rig = minding()
    rig.arrive(Num(1))
    rig.arrive(Num(2))
    rig.give(measured(7))
    assert rig.running() == ["receive"]
    rig.finish_all()
    assert rig.log() == [(0, 1), "7 steps", (0, 2)]


def test_rates_newer_ones_take_the_place_of_those_that_wait() -> None:
    rig = minding()
    rig.arrive(Num(1))
    for steps in (7, 8, 9):
        rig.give(measured(steps))
    rig.finish_all()
    assert rig.log() == [(0, 1), "9 steps"]


def test_rates_at_every_event_let_messages_through() -> None:
    """After a turn with rates the chain goes on with messages, or rates that never cease would starve them."""
    rig = minding()
    for n in range(3):
        rig.arrive(Num(n))
    for steps in range(8):
        rig.give(measured(steps))
        rig.finish(rig.tasks[0])
    rig.finish_all()
    assert [item for item in rig.log() if isinstance(item, tuple)] == [(0, 0), (0, 1), (0, 2)]


def test_rates_of_a_chain_that_nobody_sends_to_are_given_at_once() -> None:
    rig = minding()
    rig.give(measured(3))
    rig.finish_all()
    assert rig.log() == ["3 steps"]
    assert rig.engine.statistics().samples["note.steps"].last == 3


def test_rates_wait_for_the_state_that_the_hook_writes_and_messages_behind_them() -> None:
    rig = minding(MindsSlowly())
    rig.arrive(Num(1))
    rig.finish_one("receive")
    assert rig.running() == ["note"]
    rig.arrive(Num(2))
    rig.finish_one("receive")
    rig.give(measured(4))
    assert rig.running() == ["note"]  # it holds the log
    rig.finish_all()
    assert rig.log() == [(0, 1), "4 steps", (0, 2)]


def test_rates_that_wait_are_given_before_the_end() -> None:
    rig = minding()
    rig.arrive(Num(1))
    rig.give(measured(5))
    rig.give(StreamEnded(StreamId(0, 1, 0)))
    rig.finish_all()
    assert rig.log() == [(0, 1), "5 steps", "left 1", "end"]
    rig.give(measured(6))
    assert rig.tasks == []


def test_rates_before_the_start_wait_for_it() -> None:
    rig = Rig(nodes_of(received(note=Minds()), 2))
    rig.give(measured(2))
    assert rig.tasks == []
    rig.start()
    assert rig.running() == ["receive", "count"]
    rig.finish_one("receive")
    assert rig.log() == ["2 steps"]


def test_rates_of_a_gathering_chain_come_between_its_steps() -> None:
    graph = graph_of({"pieces": Pieces(limit=2), "collect": CollectMinds()}, [("pieces", "collect")], ["log"])
    rig = Rig(nodes_of(graph))
    rig.start()
    rig.finish_chain("pieces")
    assert rig.running() == ["collect"]
    rig.give(measured(1))
    rig.finish_one("collect")
    rig.finish_all()
    assert rig.log() == [((0.0, 0),), "1 steps", ((10.0, 2),)]


def test_minds_rates_says_whether_any_operator_has_the_hook() -> None:
    assert minding().engine.minds_rates
    plain = Rig(nodes_of(received(), 2))
    assert not plain.engine.minds_rates
    assert plain.start()
    plain.finish_all()
    assert plain.give(measured(1)) == []
