"""What a task is given, when its effects are seen, and in which order."""

import pytest
from engine_rig import (
    Compare,
    Count,
    Draw,
    NetNote,
    NetRelay,
    Note,
    Num,
    Receive,
    Relay,
    Rig,
    Send,
    WriteBoth,
    graph_of,
    nodes_of,
    received,
    unchained,
)

from dataflow.engine.events import (
    CreditGranted,
    Ended,
    MessageArrived,
    RunTask,
    SendMessage,
    StopAsked,
    StreamEnded,
    TaskFinished,
)
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.graph.routes import Route
from dataflow.operators_api import random_generator
from dataflow.plan.physical import StreamId

TWO_RECEIVERS = {
    "send_a": Send(),
    "send_b": Send(),
    "count_a": Count(),
    "count_b": Count(),
    "write": Receive(),
    "read": Receive(),
    "both": WriteBoth(),
    "compare": Compare(),
}
EDGES = [
    ("send_a", "write", Route.ONE_TO_ALL),
    ("send_b", "read", Route.ONE_TO_ALL),
    ("count_a", "send_a"),
    ("count_b", "send_b"),
    ("write", "both"),
    ("read", "compare"),
]


def _two_elements(**sizes: int) -> Rig:
    graph = graph_of(TWO_RECEIVERS, EDGES, ["first", "second", "seen"])
    return Rig(nodes_of(graph, 2, **sizes))


def _quiet(rig: Rig) -> None:
    """Start, and let the sources end."""
    rig.give(StopAsked())
    rig.start()
    rig.finish_all()


def test_snapshot_of_a_started_reader_is_not_changed_by_a_later_write() -> None:
    rig = _two_elements()
    _quiet(rig)
    rig.arrive(Num(7), edge=1)
    rig.finish(rig.tasks[0])  # receive hands the number to compare
    (compare,) = rig.tasks
    rig.arrive(Num(1), edge=0)
    rig.finish(rig.tasks[1])
    assert rig.log("first") == [1]
    rig.finish(compare)
    assert rig.log("seen") == [(7, 0, 0)]


def test_reader_waits_for_a_writer_and_sees_both_of_its_writes() -> None:
    rig = _two_elements(network_tasks=2)
    _quiet(rig)
    rig.arrive(Num(1), edge=0)
    (writer,) = rig.tasks
    outcome = writer.run()  # has run, but is not committed
    rig.arrive(Num(7), edge=1)
    rig.finish(rig.tasks[1])
    assert rig.running() == ["write"]
    rig.tasks.clear()
    rig.give(TaskFinished(writer, outcome))
    rig.finish_all()
    assert rig.log("seen") == [(7, 1, 1)]


def test_emissions_become_visible_only_with_task_finished() -> None:
    rig = Rig(nodes_of(received(), 2))
    rig.start()
    (count,) = rig.tasks
    outcome = count.run()
    assert [type(command) for command in rig.commands] == [RunTask]
    rig.tasks.clear()
    rig.give(TaskFinished(count, outcome))
    assert rig.running() == ["send", "count"]
    assert not rig.sent()
    rig.finish(rig.tasks[0])
    assert rig.sent() == [(1, 0)]


def test_writes_to_one_element_come_one_at_a_time_in_order() -> None:
    rig = Rig(nodes_of(received(), 2, network_tasks=4))
    rig.give(StopAsked())
    rig.start()
    rig.finish_all()
    for n in range(3):
        rig.arrive(Num(n, origin=1))
    assert rig.running() == ["receive"]
    rig.finish_all()
    assert rig.log() == [(1, 0), (1, 1), (1, 2)]


def test_outcomes_of_one_chain_commit_in_the_order_its_tasks_started() -> None:
    graph = graph_of(
        {"count": Count(), "send": Send(), "receive": Receive(), "relay": Relay()},
        [("send", "receive", Route.ONE_TO_ALL), ("count", "send"), ("receive", "relay")],
    )
    graph = graph.with_operator("out", Send(), role="worker").connect("relay", "out")
    graph = graph.with_operator("sink", Receive(), role="worker").connect("out", "sink", route=Route.ONE_TO_ALL)
    rig = Rig(nodes_of(graph, 2, compute_tasks=3))
    rig.give(StopAsked())
    rig.start()
    rig.finish_all()
    for n in range(3):
        rig.arrive(Num(n, origin=1))
        rig.finish(rig.tasks[-1])
    first, second, third = rig.tasks
    assert rig.running() == ["relay"] * 3
    rig.finish(third)
    rig.finish(second)
    assert rig.tasks == [first]  # nothing is committed before it
    rig.finish(first)
    rig.finish_all()
    assert rig.sent() == [(1, 0), (1, 1), (1, 2)]


def test_slots_limit_the_tasks_of_each_pool() -> None:
    graph = graph_of(
        {"count": Count(limit=9), "relay": NetRelay(), "slow": Relay()}, [("count", "relay"), ("relay", "slow")]
    )
    rig = Rig(nodes_of(graph, compute_tasks=2, network_tasks=1))
    rig.start()
    for _ in range(20):
        pools = [task.pool for task in rig.tasks]
        assert pools.count("compute") <= 2
        assert pools.count("network") <= 1
        if rig.tasks:
            rig.finish(rig.tasks[-1])
    rig.finish_all()
    assert isinstance(rig.commands[-1], Ended)


def test_chain_of_three_operators_is_one_task_per_message() -> None:
    graph = graph_of(
        {"count": Count(limit=2), "add": Relay(add=5), "note": Note()}, [("count", "add"), ("add", "note")], ["log"]
    )
    rig = Rig(nodes_of(graph))
    rig.start()
    rig.finish_all()
    assert rig.log() == [(0, 5), (0, 6), "end"]
    # two messages, the end of data, and on_end
    assert rig.engine.statistics().tasks == 4


@pytest.mark.parametrize("tasks", [1, 3])
def test_random_numbers_are_the_same_chained_or_not(tasks: int) -> None:
    graph = graph_of(
        {"count": Count(limit=4), "draw": Draw(), "note": Note()}, [("count", "draw"), ("draw", "note")], ["log"]
    )
    expected = [(0, int(random_generator(3, "draw", 0, step, 0).integers(1 << 40))) for step in range(4)]
    plan = nodes_of(graph, seed=3, compute_tasks=tasks)
    assert len(plan.chains) == 1
    for some in (plan, unchained(plan)):
        run = MemoryDriver(some).execute()
        assert run.nodes[0].states["log"].snapshot()[:-1] == tuple(expected)


def test_two_messages_of_one_task_draw_different_numbers() -> None:
    graph = graph_of(
        {"count": Count(limit=1), "twice": Relay(times=2), "draw": Draw(), "note": Note()},
        [("count", "twice"), ("twice", "draw"), ("draw", "note")],
        ["log"],
    )
    run = MemoryDriver(nodes_of(graph)).execute()
    first, second, _ = run.nodes[0].states["log"].snapshot()
    assert first != second


def test_full_inbox_holds_its_chain_back_until_there_is_room() -> None:
    graph = graph_of({"count": Count(limit=9), "relay": NetRelay()}, [("count", "relay")])
    rig = Rig(nodes_of(graph, compute_tasks=1))
    rig.start()
    for expected in (["count"], ["relay", "count"], ["relay", "count"]):
        assert rig.running() == expected
        rig.finish(rig.tasks[-1])
    assert rig.running() == ["relay"]  # two numbers wait: the inbox is full
    rig.finish(rig.tasks[0])
    assert rig.running() == ["relay", "count"]


def test_end_in_a_chain_gives_every_operator_its_turn_with_its_state() -> None:
    graph = graph_of({"count": Count(limit=1, last=99), "note": Note()}, [("count", "note")], ["log"])
    plan = nodes_of(graph)
    for some in (plan, unchained(plan)):
        assert MemoryDriver(some).execute().nodes[0].states["log"].snapshot() == ((0, 0), (0, 99), "end")


def test_stop_ends_a_source_after_the_message_it_is_at() -> None:
    graph = graph_of({"count": Count(limit=99), "note": NetNote()}, [("count", "note")], ["log"])
    rig = Rig(nodes_of(graph))
    rig.start()
    rig.finish(rig.tasks[0])
    rig.give(StopAsked())
    rig.finish_all()
    assert rig.log() == [(0, 0), (0, 1), "end"]
    assert isinstance(rig.commands[-1], Ended)


def test_stop_before_the_start_runs_nothing_but_the_ends() -> None:
    rig = Rig(nodes_of(graph_of({"count": Count(), "note": NetNote()}, [("count", "note")], ["log"])))
    assert rig.give(StopAsked()) == []
    rig.start()
    rig.finish_all()
    assert rig.log() == ["end"]


def test_busy_writer_does_not_starve_another_chain_of_the_element() -> None:
    graph = graph_of(
        {"count": Count(limit=2), "note": Note(), "send": Send(), "receive": Receive(), "apply": NetNote()},
        [("send", "receive", Route.ONE_TO_ALL), ("count", "note"), ("note", "send"), ("receive", "apply")],
        ["log"],
    )
    rig = Rig(nodes_of(graph, 2))
    for n in range(50):
        rig.arrive(Num(n, origin=1))
    rig.start()
    for _ in range(6):
        rig.finish(rig.tasks[0])
    own = [item for item in rig.log() if item[0] == 0]
    assert own == [(0, 0), (0, 1)]
    assert len(rig.log()) < 7


def test_statistics_count_tasks_time_bytes_and_samples() -> None:
    rig = Rig(nodes_of(received(), 2))
    rig.start()
    rig.finish(rig.tasks[0], busy_s=0.5)
    rig.finish(next(task for task in rig.tasks if task.chain == "send"), busy_s=0.25)
    rig.give(MessageArrived(StreamId(0, 1, 0), Num(5), 300))
    statistics = rig.engine.statistics()
    assert (statistics.node, statistics.tasks, statistics.steps) == (0, 2, 0)
    assert statistics.busy_s == {"compute": 0.5, "network": 0.25}
    assert statistics.sent_nbytes == {1: 128}
    assert statistics.received_nbytes == {1: 300}


def test_operator_with_two_inputs_takes_from_both_in_order_of_arrival() -> None:
    graph = graph_of(
        {"a": Count(limit=2), "b": Relay(add=100), "c": Relay(), "note": Note()},
        [("a", "b"), ("a", "c"), ("b", "note"), ("c", "note")],
        ["log"],
    )
    run = MemoryDriver(nodes_of(graph)).execute()
    items = run.nodes[0].states["log"].snapshot()
    assert items[-1] == "end"
    assert sorted(n for _, n in items[:-1]) == [0, 1, 100, 101]
    assert [n for _, n in items[:-1] if n < 100] == [0, 1]


def test_ended_comes_once_and_only_after_everything_was_sent() -> None:
    rig = Rig(nodes_of(received(), 2, window=100))
    rig.start()
    rig.finish_all()
    rig.give(StreamEnded(StreamId(0, 1, 0)))
    rig.finish_all()
    assert rig.sent() == [(1, 0)]  # the window is less than one message
    assert not rig.ends()
    for _ in range(3):
        rig.give(CreditGranted(StreamId(0, 0, 1), 128))
        rig.finish_all()
    assert [n for _, n in rig.sent()] == [0, 1, 2]
    assert rig.ends() == [1]
    assert [type(c) for c in rig.commands].count(Ended) == 1
    assert isinstance(rig.commands[-1], Ended)
    assert [type(c) for c in rig.commands].count(SendMessage) == 3
