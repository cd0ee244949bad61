"""Streams at one node: credit, routes, ends, nodes that leave."""

import numpy as np
import pytest
from engine_rig import (
    Count,
    CountTo,
    NetNote,
    Num,
    Receive,
    Relay,
    Rig,
    Send,
    SendKeyed,
    SendLatest,
    graph_of,
    nodes_of,
    received,
)

from dataflow.engine.events import CreditGranted, Ended, GrantCredit, NodeLeft, SendEnd, StopAsked, StreamEnded
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.message import HEADER_NBYTES as SIZE
from dataflow.message import Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, Operator
from dataflow.plan.physical import PhysicalPlan, StreamId
from dataflow.ports import Emission, In, Out


class Latest(Operator):
    """Takes the newest number of each receiver only; of both ports."""

    pool = "network"
    receives = True
    inp = In(Num, latest=("to",))
    other = In(Num, latest=("to",))
    out = Out(Num)

    def process(self, num: Num) -> Emissions:
        yield self.out(num)


class NumpyCountTo(CountTo):
    """Counts with addresses that NumPy has computed."""

    def process(self, tick: Tick, node: NodeContext) -> Emissions:
        for emission in super().process(tick, node):
            if isinstance(emission, Emission) and isinstance(emission.message, Num):
                number = emission.message
                yield self.numbers(Num(number.n, number.origin, np.int64(number.to)))  # type: ignore[arg-type]
            else:
                yield emission


def _sending(send: Operator, route: Route, nodes: int, *, window: int, limit: int = 9, **more: object) -> Rig:
    edges = [("send", "receive", route, more.get("loopback", False), more.get("key")), ("count", "send")]
    graph = graph_of({"count": CountTo(limit=limit, nodes=nodes), "send": send, "receive": Receive()}, edges)
    return Rig(nodes_of(graph, nodes, window=window))


@pytest.mark.parametrize("route", [Route.BY_DESTINATION, Route.BY_OWNER])
def test_messages_for_numpy_integers_arrive_there(route: Route) -> None:
    key = "to" if route is Route.BY_OWNER else None
    graph = graph_of(
        {"count": NumpyCountTo(limit=4), "send": SendKeyed(), "receive": Receive(), "note": NetNote()},
        [("send", "receive", route, True, key), ("count", "send"), ("receive", "note")],
        ["log"],
    )
    run = MemoryDriver(nodes_of(graph, 2, window=1)).execute()
    logs = [[item for item in node.states["log"].items if isinstance(item, tuple)] for node in run.nodes]  # type: ignore[attr-defined]
    assert [sorted(log) for log in logs] == [[(0, 0), (0, 2), (1, 0), (1, 2)], [(0, 1), (0, 3), (1, 1), (1, 3)]]


def _rest(rig: Rig) -> None:
    rig.start()
    rig.finish_all()


def test_sender_stops_at_the_window_and_goes_on_with_credit() -> None:
    rig = _sending(Send(), Route.ONE_TO_ALL, 2, window=2 * SIZE)
    _rest(rig)
    assert rig.sent() == [(1, 0), (1, 1)]
    rig.give(CreditGranted(StreamId(0, 0, 1), SIZE))
    rig.finish_all()
    assert rig.sent() == [(1, 0), (1, 1), (1, 2)]


def test_last_message_may_overdraw_the_window_once() -> None:
    rig = _sending(Send(), Route.ONE_TO_ALL, 2, window=SIZE + 1)
    _rest(rig)
    assert rig.sent() == [(1, 0), (1, 1)]
    rig.give(CreditGranted(StreamId(0, 0, 1), SIZE - 1))
    rig.finish_all()
    assert len(rig.sent()) == 2
    rig.give(CreditGranted(StreamId(0, 0, 1), 1))
    rig.finish_all()
    assert len(rig.sent()) == 3


def test_unkeyed_sender_waits_for_its_slowest_receiver() -> None:
    rig = _sending(Send(), Route.ONE_TO_ALL, 3, window=2 * SIZE)
    _rest(rig)
    for _ in range(3):
        rig.give(CreditGranted(StreamId(0, 0, 2), SIZE))
        rig.finish_all()
    assert rig.sent() == [(1, 0), (2, 0), (1, 1), (2, 1)]


def test_keyed_sender_goes_on_for_others_when_one_receiver_stops() -> None:
    rig = _sending(SendKeyed(), Route.BY_DESTINATION, 3, window=SIZE, limit=6, loopback=True)
    _rest(rig)
    for _ in range(5):
        rig.give(CreditGranted(StreamId(0, 0, 2), SIZE))
        rig.finish_all()
    assert [n for to, n in rig.sent() if to == 1] == [1]
    assert [n for to, n in rig.sent() if to == 2] == [2, 5]
    assert not rig.ends()  # number 4 for node 1 still waits
    rig.give(CreditGranted(StreamId(0, 0, 1), SIZE))
    rig.finish_all()
    assert [n for to, n in rig.sent() if to == 1] == [1, 4]
    assert sorted(rig.ends()) == [1, 2]


def test_keyed_sender_whose_last_receiver_left_drops_what_waits_and_ends() -> None:
    rig = _sending(SendKeyed(), Route.BY_DESTINATION, 2, window=SIZE, limit=4, loopback=True)
    _rest(rig)
    assert rig.sent() == [(1, 1)]
    assert not any(isinstance(command, Ended) for command in rig.commands)
    rig.give(NodeLeft(1))
    rig.finish_all()
    assert rig.sent() == [(1, 1)]
    assert rig.ends() == []
    assert isinstance(rig.commands[-1], Ended)


def test_messages_waiting_for_a_receiver_are_dropped_when_it_leaves() -> None:
    graph = graph_of(
        {"count": Count(limit=1), "twice": Relay(times=3), "send": Send(), "receive": Receive()},
        [("send", "receive", Route.ONE_TO_ALL), ("count", "twice"), ("twice", "send")],
    )
    rig = Rig(nodes_of(graph, 2, window=SIZE))
    _rest(rig)
    assert rig.sent() == [(1, 0)]
    rig.give(NodeLeft(1))
    rig.finish_all()
    assert rig.give(CreditGranted(StreamId(0, 0, 1), SIZE)) == []
    assert isinstance(rig.commands[-1], Ended)


def test_by_owner_keyed_by_partition_asks_for_the_owners_credit() -> None:
    class_graph = graph_of(
        {"count": CountTo(limit=8, nodes=4), "send": SendKeyed(), "receive": Receive()},
        [("send", "receive", Route.BY_OWNER, True, "to"), ("count", "send")],
    )
    rig = Rig(nodes_of(class_graph, 2, window=SIZE))
    _rest(rig)
    # partitions 1 and 3 belong to node 1, 0 and 2 to node 0 itself
    assert rig.sent() == [(1, 1)]
    rig.give(CreditGranted(StreamId(0, 0, 1), SIZE))
    rig.finish_all()
    assert rig.sent() == [(1, 1), (1, 3)]


def test_owner_that_left_is_not_replaced() -> None:
    rig = _sending(Send(), Route.BY_OWNER, 3, window=99 * SIZE, limit=6, loopback=True, key="to")
    rig.give(NodeLeft(1))
    _rest(rig)
    assert rig.sent() == [(2, 2), (2, 5)]


def test_one_to_any_takes_the_receiver_with_most_credit_and_waits_only_if_none_has_any() -> None:
    rig = _sending(Send(), Route.ONE_TO_ANY, 3, window=2 * SIZE)
    _rest(rig)
    assert rig.sent() == [(1, 0), (2, 1), (1, 2), (2, 3)]
    rig.give(CreditGranted(StreamId(0, 0, 2), SIZE))
    rig.finish_all()
    assert rig.sent()[4:] == [(2, 4)]
    rig.give(NodeLeft(2))
    rig.finish_all()
    rig.give(CreditGranted(StreamId(0, 0, 1), SIZE))
    rig.finish_all()
    assert rig.sent()[5:] == [(1, 5)]


def test_all_to_one_goes_to_rank_zero_of_the_role() -> None:
    graph = (
        LogicalGraph(name="roles")
        .with_role("worker", 2)
        .with_role("server", "rest")
        .with_operator("count", Count(limit=2), role="worker")
        .with_operator("send", Send(), role="worker")
        .with_operator("receive", Receive(), role="server")
        .connect("count", "send")
        .connect("send", "receive", route=Route.ALL_TO_ONE)
    )
    rig = Rig(nodes_of(graph, 4))
    _rest(rig)
    assert rig.sent() == [(2, 0), (2, 1)]
    assert rig.ends() == [2]


@pytest.mark.parametrize("window", [SIZE, 99 * SIZE])
def test_loopback_delivers_to_the_sender_in_order_within_the_window(window: int) -> None:
    graph = graph_of(
        {"count": Count(limit=5), "send": Send(), "receive": Receive(), "note": NetNote()},
        [("send", "receive", Route.ONE_TO_ALL, True), ("count", "send"), ("receive", "note")],
        ["log"],
    )
    rig = Rig(nodes_of(graph, 1, window=window))
    _rest(rig)
    assert rig.log() == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), "left 0", "end"]
    assert rig.engine.statistics().sent_nbytes == {}
    assert rig.engine.statistics().received_nbytes == {}
    assert not [command for command in rig.commands if isinstance(command, GrantCredit | SendEnd)]


def test_loopback_stops_at_the_window_while_the_receiver_is_busy() -> None:
    graph = graph_of(
        {"count": Count(limit=99), "send": Send(), "receive": Receive(), "hold": NetNote()},
        [("send", "receive", Route.ONE_TO_ALL, True), ("count", "send"), ("receive", "hold")],
        ["log"],
    )
    rig = Rig(nodes_of(graph, 1, window=3 * SIZE, network_tasks=2))
    rig.start()
    held = None
    for _ in range(60):
        ready = [task for task in rig.tasks if task is not held]
        if not ready:
            break
        if held is None and ready[0].chain == "receive":
            held = ready[0]
            continue
        rig.finish(ready[0])
    assert rig.running() == ["receive"]
    # one at the receiver and two waiting hold all the credit; two more wait before send
    assert rig.engine.statistics().tasks == 3 + 5


def test_latest_replaces_in_place_returns_the_credit_and_keeps_ports_apart() -> None:
    graph = graph_of(
        {"count": Count(limit=0), "send": Send(), "receive": Latest(), "note": NetNote()},
        [
            ("send", "receive.inp", Route.ONE_TO_ALL),
            ("send", "receive.other", Route.ONE_TO_ALL),
            ("count", "send"),
            ("receive", "note"),
        ],
        ["log"],
    )
    rig = Rig(nodes_of(graph, 2))
    for n, to, edge in ((0, 5, 0), (1, 6, 0), (2, 5, 0), (3, 5, 1)):
        rig.arrive(Num(n, to=to), edge=edge, nbytes=100 + n)
    assert rig.granted() == [(1, 100)]
    rig.start()
    rig.finish_all()
    assert [n for _, n in rig.log()] == [2, 1, 3]
    assert rig.granted() == [(1, 100), (1, 102), (1, 101), (1, 103)]


def test_late_offer_of_a_keyed_latest_sender_replaces_the_one_that_waits() -> None:
    rig = _sending(SendLatest(), Route.BY_DESTINATION, 2, window=SIZE, limit=6, loopback=True)
    _rest(rig)
    assert rig.sent() == [(1, 1)]
    rig.give(CreditGranted(StreamId(0, 0, 1), SIZE))
    rig.finish_all()
    assert rig.sent() == [(1, 1), (1, 5)]  # 3 was replaced by 5


def test_credit_returns_when_a_message_has_been_handled_not_when_it_arrives() -> None:
    rig = Rig(nodes_of(received(), 2))
    rig.give(StopAsked())
    _rest(rig)
    rig.arrive(Num(4, origin=1), nbytes=77)
    assert rig.granted() == []
    rig.finish(rig.tasks[0])
    assert rig.granted() == [(1, 77)]


def test_on_left_comes_behind_the_last_message_of_a_node() -> None:
    rig = Rig(nodes_of(received(), 3))
    rig.give(StopAsked())
    _rest(rig)
    for source, n in ((1, 0), (2, 1), (1, 2)):
        rig.arrive(Num(n, origin=source), source=source)
    rig.give(StreamEnded(StreamId(0, 1, 0)))
    rig.arrive(Num(3, origin=2), source=2)
    rig.finish_all()
    assert rig.log() == [(1, 0), (2, 1), (1, 2), "left 1", (2, 3)]
    rig.give(StreamEnded(StreamId(0, 2, 0)))
    rig.finish_all()
    assert rig.log()[5:] == ["left 2", "end"]


def test_node_left_gives_what_it_sent_but_gets_no_credit_for_it() -> None:
    rig = Rig(nodes_of(received(), 2))
    rig.give(StopAsked())
    _rest(rig)
    rig.arrive(Num(0, origin=1))
    rig.arrive(Num(1, origin=1))
    before = len(rig.granted())
    rig.give(NodeLeft(1))
    rig.arrive(Num(2, origin=1))  # was under way when the node was buried
    rig.finish_all()
    assert rig.log() == [(1, 0), (1, 1), "left 1", "end"]
    assert len(rig.granted()) == before
    assert isinstance(rig.commands[-1], Ended)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_end_and_leave_of_one_node_in_either_order_count_once(order: tuple[int, int]) -> None:
    rig = Rig(nodes_of(received(), 2))
    rig.give(StopAsked())
    _rest(rig)
    events = (StreamEnded(StreamId(0, 1, 0)), NodeLeft(1))
    for index in order:
        rig.give(events[index])
        rig.finish_all()
    assert rig.log() == ["left 1", "end"]
    assert [type(command) for command in rig.commands].count(Ended) == 1


def test_end_propagates_with_the_emissions_of_on_end_before_it() -> None:
    graph = graph_of(
        {"count": Count(limit=2, last=50), "send": Send(), "receive": Receive(), "note": NetNote()},
        [("send", "receive", Route.ONE_TO_ALL), ("count", "send"), ("receive", "note")],
        ["log"],
    )
    run = MemoryDriver(nodes_of(graph, 2)).execute()
    assert run.nodes[0].states["log"].snapshot() == ((1, 0), (1, 1), (1, 50), "left 1", "end")
    assert run.nodes[1].states["log"].snapshot() == ((0, 0), (0, 1), (0, 50), "left 0", "end")


def test_receiver_of_nobody_ends_at_once() -> None:
    plan: PhysicalPlan = nodes_of(received(), 1)
    assert MemoryDriver(plan).execute().nodes[0].states["log"].snapshot() == ("end",)


def test_messages_before_the_start_are_kept() -> None:
    rig = Rig(nodes_of(received(), 2))
    rig.arrive(Num(8, origin=1))
    assert rig.commands == []
    rig.start()
    rig.finish_all()
    assert rig.log() == [(1, 8)]


def test_members_that_an_all_to_one_edge_does_not_reach_wait_for_nothing_on_it() -> None:
    graph = graph_of(
        {"count": Count(limit=1), "send": Send(), "receive": Receive(), "note": NetNote()},
        [("count", "send"), ("send", "receive", Route.ALL_TO_ONE, True), ("receive", "note")],
        ["log"],
    )
    plan = nodes_of(graph, 3)
    assert list(plan.streams()) == [StreamId(1, 1, 0), StreamId(1, 2, 0)]
    last = Rig(plan, 2)
    last.start()
    assert "receive" in last.running()  # it ends at once
    _rest(last)
    assert (last.ends(), last.log()) == ([0], ["end"])
    first = Rig(plan, 0)
    _rest(first)
    assert first.log() == [(0, 0), "left 0"]
    for node in (1, 2):
        first.give(StreamEnded(StreamId(1, node, 0)))
        first.finish_all()
    assert first.log() == [(0, 0), "left 0", "left 1", "left 2", "end"]
