"""Nodes that leave and come back, as the engine of another node sees them."""

from __future__ import annotations

import numpy as np
import pytest
from engine_rig import Blob, Count, Log, LogState, NetNote, Note, Num, Receive, Rig, Send, graph_of, nodes_of, unchained
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.engine.events import (
    Adjust,
    CreditGranted,
    Ended,
    Measured,
    NodeJoined,
    NodeLeft,
    SendMessage,
    StopAsked,
    StreamEnded,
)
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.message import HEADER_NBYTES, Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Adjustment, Emissions
from dataflow.plan.physical import StreamId
from dataflow.ports import In, Out
from dataflow.reports import LinkRates, OperatorReport, Rates
from dataflow.state import StateKind, Writes


class Minds(NetNote):
    """Notes who has left and who has joined."""

    def on_joined(self, node: int, log: LogState) -> Emissions:
        log.items.append(f"joined {node}")
        yield from ()


class MindsElsewhere(Note):
    """Receives of no other node."""

    def on_left(self, node: int, log: LogState) -> Emissions:
        log.items.append(f"left {node}")
        yield from ()

    def on_joined(self, node: int, log: LogState) -> Emissions:
        log.items.append(f"joined {node}")
        yield from ()


class MindsEnds(NetNote):
    """Notes who has left, and whether that was through."""

    def on_left(self, node: int, log: LogState, *, ended: bool) -> Emissions:
        log.items.append((node, ended))
        yield from ()


class MindingCount(Count):
    """A source that notes who has left and who has joined."""

    log = Writes()

    def process(self, tick: Tick, node: NodeContext, log: LogState) -> Emissions:
        log.items.append(tick.step)
        yield from super().process(tick, node)

    def on_left(self, node: int, log: LogState) -> Emissions:
        log.items.append(f"left {node}")
        yield from ()

    def on_joined(self, node: int, log: LogState) -> Emissions:
        log.items.append(f"joined {node}")
        yield from ()


class MindsChanges(Minds):
    """Notes what is to be changed, too."""

    def on_adjust(self, adjustment: Adjustment, log: LogState) -> Emissions:
        log.items.append(f"{adjustment.stage} {adjustment.number}")
        yield from ()


class Told(Minds):
    """Reports what it is given."""

    told = Out(Num, reported=True)

    def process(self, num: Num, log: LogState) -> Emissions:
        log.items.append((num.origin, num.n))
        yield self.told(num)


class Part(Log):
    """One that the job cannot do without."""

    kind = StateKind.PARTITIONED


class SendBlobs(Send):
    """Sends 100 kB for each number."""

    out = Out(Blob)

    def process(self, num: Num) -> Emissions:
        yield self.out(Blob(np.full(100_000, num.n, np.uint8)))


class ReceiveBlobs(Receive):
    inp = In(Blob)
    out = Out(Blob)


STREAM = StreamId(0, 1, 0)


def graph(note: Note | None = None, count: Count | None = None) -> LogicalGraph:
    """count -> send ==> receive -> note(log)."""
    return graph_of(
        {"count": count or Count(), "send": Send(), "receive": Receive(), "note": note or Minds()},
        [("send", "receive", Route.ONE_TO_ALL), ("count", "send"), ("receive", "note")],
        ["log"],
    )


def stopped(nodes: int = 3, note: Note | None = None) -> Rig:
    """A started node whose own source has ended."""
    rig = Rig(nodes_of(graph(note), nodes))
    rig.start()
    rig.give(StopAsked())
    rig.finish_all()
    return rig


def test_joined_node_is_heard_of_behind_its_leaving_and_ahead_of_its_first_message() -> None:
    rig = stopped()
    rig.arrive(Num(0, origin=1))
    rig.give(NodeLeft(1))
    rig.give(NodeJoined(1, 1))
    rig.arrive(Num(7, origin=1))
    rig.arrive(Num(5, origin=2), source=2)
    rig.finish_all()
    assert rig.log() == [(1, 0), "left 1", "joined 1", (2, 5), (1, 7)]


def test_node_that_dies_and_comes_back_before_the_start_is_sent_nothing_of_the_time_between() -> None:
    rig = Rig(nodes_of(graph(), 3))
    assert rig.give(NodeLeft(1)) == []
    rig.start()
    rig.finish_all()
    assert {target for target, _ in rig.sent()} == {2}
    rig.give(NodeJoined(1, 1))
    rig.finish_all()
    assert rig.log() == ["left 1", "joined 1"]


def test_message_of_a_buried_node_is_refused_and_of_the_next_incarnation_taken() -> None:
    rig = stopped()
    rig.give(NodeLeft(1))
    rig.arrive(Num(1, origin=1))
    rig.give(NodeJoined(1, 1))
    rig.arrive(Num(2, origin=1))
    rig.finish_all()
    assert rig.log() == ["left 1", "joined 1", (1, 2)]
    assert rig.granted() == [(1, HEADER_NBYTES)]


def test_messages_of_the_incarnation_before_return_no_credit_to_the_next_one() -> None:
    rig = stopped()
    rig.arrive(Num(0, origin=1))  # under way
    rig.arrive(Num(1, origin=1))  # waits
    rig.give(NodeLeft(1))
    rig.give(NodeJoined(1, 1))
    rig.finish_all()
    assert rig.log() == [(1, 0), (1, 1), "left 1", "joined 1"]
    assert rig.granted() == []


@pytest.mark.parametrize("ends_first", [True, False])
def test_joined_node_is_waited_for_again_until_it_ends(ends_first: bool) -> None:
    rig = stopped(2)
    if not ends_first:
        rig.arrive(Num(0, origin=1))
    rig.give(NodeLeft(1))
    rig.give(NodeJoined(1, 1))
    if ends_first:  # while its joining is still to be told
        rig.give(StreamEnded(STREAM))
        rig.finish_all()
        assert rig.log() == ["left 1", "joined 1", "left 1", "end"]
    else:
        rig.finish_all()
        assert not any(isinstance(command, Ended) for command in rig.commands)
        rig.give(StreamEnded(STREAM))
        rig.finish_all()
        assert rig.log() == [(1, 0), "left 1", "joined 1", "left 1", "end"]
    assert isinstance(rig.commands[-1], Ended)


def test_node_that_dies_twice_before_anything_is_told_is_told_of_in_order() -> None:
    rig = stopped()
    rig.arrive(Num(0, origin=1))  # under way
    for event in (NodeLeft(1), NodeJoined(1, 1), NodeLeft(1), NodeJoined(1, 2)):
        rig.give(event)
    rig.arrive(Num(9, origin=1))
    rig.finish_all()
    assert rig.log() == [(1, 0), "left 1", "joined 1", "left 1", "joined 1", (1, 9)]


def test_change_of_the_job_is_heard_of_in_its_turn_among_the_nodes_that_leave_and_come() -> None:
    """Else an operator would say that it is ready for it, and then hear of a death from before it was asked for."""
    rig = stopped(note=MindsChanges())
    for number in range(3):
        rig.arrive(Num(number, origin=1))
    rig.give(NodeLeft(1))
    rig.give(NodeJoined(1, 1))
    rig.give(Adjust(Adjustment(2, "prepare")))
    rig.give(Adjust(Adjustment(2, "drop")))
    rig.give(NodeLeft(2))
    rig.give(NodeLeft(1))
    rig.finish_all()
    messages = [(1, 0), (1, 1), (1, 2)]
    assert rig.log() == [*messages, "left 1", "joined 1", "prepare 2", "drop 2", "left 1", "left 2", "end"]


def test_change_of_the_job_is_heard_of_ahead_of_messages_that_wait() -> None:
    rig = stopped(note=MindsChanges())
    rig.arrive(Num(0, origin=1))
    rig.arrive(Num(1, origin=1))
    rig.give(Adjust(Adjustment(2, "prepare")))
    rig.finish_all()
    assert rig.log() == [(1, 0), "prepare 2", (1, 1)]


def test_operators_that_receive_nothing_of_a_node_hear_of_its_burial_and_not_of_its_end() -> None:
    rig = Rig(unchained(nodes_of(graph(MindsElsewhere()), 3)))
    rig.start()
    rig.give(StopAsked())
    rig.give(StreamEnded(STREAM))
    rig.finish_all()
    assert rig.log() == []
    rig.give(NodeLeft(1))
    rig.give(NodeJoined(1, 1))
    rig.finish_all()
    assert rig.log() == ["left 1", "joined 1"]


def test_source_hears_of_both_between_its_steps() -> None:
    rig = Rig(nodes_of(graph(NetNote(), MindingCount(limit=9)), 2))
    rig.start()
    rig.give(NodeLeft(1))
    rig.give(NodeJoined(1, 1))
    rig.finish_one("count")
    rig.finish_one("count")
    rig.finish_one("count")
    rig.finish_one("count")
    assert rig.log() == [0, "left 1", "joined 1", 1]


def test_operators_are_told_whether_a_node_that_has_left_was_through() -> None:
    rig = stopped(5, MindsEnds())
    rig.arrive(Num(0, origin=1))
    for event in (NodeLeft(1, ended=True), StreamEnded(StreamId(0, 2, 0)), NodeLeft(3), NodeLeft(4), NodeJoined(4, 1)):
        rig.give(event)
    rig.finish_all()
    assert rig.log() == [(1, 0), (1, True), (2, True), (3, False), (4, False)]
    rig.give(NodeLeft(4, ended=True))
    rig.finish_all()
    assert rig.log()[-2:] == [(4, True), "end"]


def test_node_that_comes_back_waits_for_none_that_is_through_though_the_job_needs_both() -> None:
    operators = {"count": Count(limit=0), "send": Send(), "receive": Receive(), "note": NetNote()}
    edges = [("send", "receive", Route.ONE_TO_ALL), ("count", "send"), ("receive", "note")]
    needed = graph_of(operators, edges, ["log"]).with_state("part", Part(), role="worker")
    for ended in (True, False):
        rig = Rig(nodes_of(needed, 2))
        rig.start()
        rig.give(NodeLeft(1, ended=ended))
        rig.finish_all()
        assert isinstance(rig.commands[-1], Ended) == ended


def test_crossing_to_a_joined_node_is_open_with_fresh_credit() -> None:
    rig = Rig(nodes_of(graph(count=Count(limit=6)), 2, window=2 * HEADER_NBYTES))
    rig.start()
    rig.finish_all()
    assert rig.sent() == [(1, 0), (1, 1)]
    rig.give(NodeLeft(1))
    rig.give(CreditGranted(StreamId(0, 0, 1), HEADER_NBYTES))  # of the one that is gone
    rig.give(NodeJoined(1, 1))
    rig.finish_all()
    assert len(rig.sent()) == 4
    assert rig.ends() == []


def test_joined_node_is_sent_as_much_as_its_own_delays_ask_for() -> None:
    """It may be farther away than the node that had its number before."""
    operators = {"count": Count(limit=99), "send": SendBlobs(), "receive": ReceiveBlobs()}
    edges = [("send", "receive", Route.ONE_TO_ALL), ("count", "send")]
    rig = Rig(nodes_of(graph_of(operators, edges), 2, window=1 << 30))
    rig.give(measured(delay_s=0.001))
    rig.start()
    rig.finish_all()
    assert number_sent(rig) == 3  # a tenth of a second of goodput
    rig.give(NodeLeft(1))
    rig.give(NodeJoined(1, 1))
    rig.give(measured(delay_s=0.125))
    rig.finish_all()
    assert number_sent(rig) == 3 + 12  # three such delays of it


def measured(delay_s: float) -> Measured:
    """A link to node 1 that carries 3 MB/s."""
    return Measured(Rates(seconds=0.5, links={1: LinkRates(nbytes=1_500_000, busy_s=0.5, delay_s=delay_s)}))


def number_sent(rig: Rig) -> int:
    return sum(isinstance(command, SendMessage) for command in rig.commands)


def test_node_that_joins_when_a_stream_has_ended_is_told_its_end() -> None:
    rig = stopped(3)
    assert sorted(rig.ends()) == [1, 2]
    rig.give(NodeLeft(2))
    rig.give(NodeJoined(2, 1))
    rig.finish_all()
    assert sorted(rig.ends()) == [1, 2, 2]


def test_node_that_is_a_member_already_makes_no_difference_when_it_joins() -> None:
    rig = Rig(nodes_of(graph(), 2))
    rig.give(NodeJoined(1, 4))
    rig.start()
    rig.finish_all()
    assert rig.log() == []
    assert not any(isinstance(command, SendMessage) and command.stream.target != 1 for command in rig.commands)


class Killer:
    """Buries a node at one report and has it join again at a later one."""

    def __init__(self, node: int, at: int, back: int) -> None:
        self.node, self.at, self.back, self.seen = node, at, back, 0

    def __call__(self, driver: MemoryDriver, node: int, report: OperatorReport) -> None:
        del node, report
        self.seen += 1
        if self.seen == self.at:
            driver.bury(self.node)
        if self.seen == self.at + self.back and self.node in driver.run.buried:
            driver.join(self.node)


@given(st.integers(0, 2**32), st.integers(0, 2), st.integers(1, 10), st.integers(0, 6), st.booleans())
@settings(deadline=None, max_examples=80)
def test_nodes_go_on_and_end_whoever_dies_and_joins(seed: int, node: int, at: int, back: int, fifo: bool) -> None:
    """Of a living node every message is received once and in order, and of a joined one from its beginning."""
    order = None if fifo else np.random.default_rng(seed)
    driver = MemoryDriver(
        nodes_of(graph(Told(), Count(limit=4)), 3, window=100), order=order, on_report=Killer(node, at, back)
    )
    run = driver.execute()
    for other in set(range(3)) - {node}:
        log = run.nodes[other].states["log"].snapshot()
        assert log[-1] == "end"
        for living in set(range(3)) - {node, other}:
            assert [n for n in log[:-1] if n[0] == living] == [(living, n) for n in range(4)]
            assert f"joined {living}" not in log
        of_dead = [what for what in log if what in {f"left {node}", f"joined {node}"} or what[0] == node]
        joined = of_dead.index(f"joined {node}") if f"joined {node}" in of_dead else len(of_dead)
        for life in (of_dead[:joined], of_dead[joined + 1 :]):
            assert [what[1] for what in life if isinstance(what, tuple)] == list(range(sum(map(_is_number, life))))
        if joined < len(of_dead):
            assert [what for what in of_dead[:joined] if not _is_number(what)] == [f"left {node}"]
            assert of_dead[joined + 1 :] == [(node, n) for n in range(4)] + [f"left {node}"]


def _is_number(what: object) -> bool:
    return isinstance(what, tuple)
