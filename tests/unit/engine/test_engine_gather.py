"""Gathering operators: shards, snapshots, merges, gates."""

from collections.abc import Callable

import pytest
from engine_rig import (
    Collect,
    Count,
    Cut,
    GatedCollect,
    LogState,
    NetNote,
    NetRelay,
    Num,
    Piece,
    Pieces,
    Receive,
    Rig,
    Send,
    graph_of,
    nodes_of,
)

from dataflow.engine.events import Ended, GoOn, MessageArrived, NodeLeft, RunTask, StopAsked, StreamEnded, TaskFinished
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.message import Tick
from dataflow.operators_api import Emissions, Operator
from dataflow.plan.physical import PhysicalPlan, StreamId
from dataflow.ports import In, Out
from dataflow.state import Reads, Writes


class SendPiece(Operator):
    pool = "network"
    sends = True
    inp = In(Piece)
    out = Out(Piece)

    def process(self, piece: Piece) -> Emissions:
        yield self.out(piece)


class CollectArrived(Collect):
    """A gathering operator fed by streams, that notes who left."""

    receives = True

    def on_left(self, node: int, log: LogState) -> Emissions:
        log.items.append(f"left {node}")
        yield from ()


class LastPiece(Pieces):
    """Pieces, and one more when all is over."""

    def on_end(self) -> Emissions:
        yield self.out(Piece(99, 0, 1, 99.0))


class NoPieces(Operator):
    """A source whose every second step is empty."""

    source = True
    out = Out(Piece)

    def process(self, tick: Tick) -> Emissions:
        if tick.step % 2 == 0:
            yield self.out(Piece(tick.step, tick.shard, tick.shards, float(tick.step)))


class Watch(Operator):
    """Notes the length of the log."""

    pool = "network"
    inp = In(Num, capacity=64)
    log = Reads()
    seen = Writes()

    def process(self, num: Num, log: tuple[object, ...], seen: LogState) -> Emissions:
        del num
        seen.items.append(len(log))
        yield from ()


class NetCount(Count):
    pool = "network"


class WatchAtTheEnd(Operator):
    """Notes the length of the log when all is over, which is at once."""

    pool = "network"
    receives = True
    inp = In(Num)
    log = Reads()
    seen = Writes()

    def process(self, num: Num) -> Emissions:
        del num
        yield from ()

    def on_end(self, log: tuple[object, ...], seen: LogState) -> Emissions:
        seen.items.append(len(log))
        yield from ()


def _watched() -> Rig:
    """A step is followed by a message to a reader of what its merge writes, by way of a chain that does not read it."""
    graph = graph_of(
        {"pieces": Pieces(limit=8), "collect": Collect(), "relay": NetRelay(), "watch": Watch()},
        [("pieces", "collect"), ("collect", "relay"), ("relay", "watch")],
        ["log", "seen"],
    )
    rig = Rig(nodes_of(graph, network_tasks=2))
    rig.start()
    rig.finish_chain("pieces")  # all steps are read ahead
    return rig


def _fed(source: Operator | None = None, collect: Operator | None = None) -> LogicalGraph:
    return graph_of(
        {"pieces": source or Pieces(), "collect": collect or Collect()}, [("pieces", "collect")], ["log", "gate"]
    )


def _inbox_fed(cut: Cut, limit: int = 2) -> LogicalGraph:
    """The cutting operator keeps no state but another consumer, so it is a task of its own."""
    return graph_of(
        {"count": Count(limit=limit), "cut": cut, "collect": Collect(), "other": Collect()},
        [("count", "cut"), ("cut", "collect"), ("cut", "other")],
        ["log", "log2"],
        other={"log": "log2"},
    )


def test_shards_run_at_the_same_time_and_merge_in_shard_order() -> None:
    rig = Rig(nodes_of(_fed(), compute_tasks=3))
    rig.start()
    rig.finish_chain("pieces")
    shards = [task for task in rig.tasks if task.chain == "collect"]
    assert [task.role for task in shards] == ["shard"] * 3
    for task in reversed(shards):
        rig.finish(task)
    (merge,) = rig.tasks
    assert (merge.chain, merge.role) == ("collect", "merge")
    assert rig.log() == []
    rig.finish(merge)
    assert rig.log() == [((0.0, 0), (1.0, 0), (2.0, 0))]


def test_steps_do_not_overlap_and_each_sees_the_merge_before() -> None:
    rig = Rig(nodes_of(_fed(), compute_tasks=2))
    rig.start()
    rig.finish_chain("pieces")
    rig.finish(rig.tasks[0])
    assert [task.role for task in rig.tasks] == ["shard"]  # shard 1 of step 0 is out; step 1 has not begun
    rig.finish_all()
    assert rig.log() == [((0.0, 0), (1.0, 0)), ((10.0, 1), (11.0, 1))]
    assert rig.engine.statistics().steps == 2
    assert rig.engine.statistics().samples["collect.parts"].total == 4
    assert isinstance(rig.commands[-1], Ended)


def test_only_shard_of_a_step_is_merged_in_the_same_task_if_no_other_chain_writes_the_state() -> None:
    rig = Rig(nodes_of(_fed(), compute_tasks=1))
    rig.start()
    rig.finish_chain("pieces")
    assert [(task.chain, task.role) for task in rig.tasks] == [("collect", "step")]
    assert rig.log() == []
    rig.finish(rig.tasks[0])
    assert rig.log() == [((0.0, 0),)]
    rig.finish_all()
    assert rig.log() == [((0.0, 0),), ((10.0, 1),)]
    assert rig.engine.statistics().steps == 2


def test_only_shard_of_a_step_leaves_the_state_to_other_chains_until_the_last_of_them_has_ended() -> None:
    graph = graph_of(
        {"pieces": Pieces(limit=4), "collect": Collect(), "count": Count(limit=1), "note": NetNote()},
        [("pieces", "collect"), ("count", "note")],
        ["log"],
    )
    rig = Rig(nodes_of(graph, compute_tasks=1))
    rig.start()
    done: list[tuple[str, str]] = []
    while rig.tasks:
        done.append((rig.tasks[0].chain, rig.tasks[0].role))
        rig.finish(rig.tasks[0])
    roles = [role for chain, role in done if chain == "collect"]
    ended = [role for chain, role in done[: done.index(("note", "end"))] if chain == "collect"]
    assert set(ended) == {"shard", "merge"}
    assert roles.count("merge") + roles.count("step") == 4
    assert "step" in roles[len(ended) :]
    assert [item[0][0] for item in rig.log() if isinstance(item[0], tuple)] == [0.0, 10.0, 20.0, 30.0]


def test_shards_of_a_step_share_a_snapshot_although_there_is_one_slot() -> None:
    graph = graph_of(
        {"pieces": Pieces(limit=1), "collect": Collect(), "count": Count(limit=1), "note": NetNote()},
        [("pieces", "collect"), ("count", "note")],
        ["log"],
    )
    rig = Rig(nodes_of(graph, compute_tasks=2, network_tasks=2))
    rig.start()
    rig.finish_one("pieces")
    shard = next(task for task in rig.tasks if task.chain == "collect")
    rig.finish_one("count")
    rig.finish_one("note")  # writes the log while the step is open and its second shard has not begun
    assert rig.log() == [(0, 0)]
    assert shard in rig.tasks
    rig.finish_all()
    assert ((0.0, 0), (1.0, 0)) in rig.log()


def test_swallowed_shard_is_left_out_of_the_merge() -> None:
    run = MemoryDriver(nodes_of(_fed(Pieces(limit=2, swallow=1)), compute_tasks=3)).execute()
    assert run.nodes[0].states["log"].snapshot() == (((0.0, 0), (2.0, 0)), ((10.0, 1), (12.0, 1)))


def test_step_without_any_part_is_not_merged() -> None:
    rig = Rig(nodes_of(_fed(NoPieces()), compute_tasks=1))
    rig.start()
    for _ in range(4):
        rig.finish(rig.tasks[0])
    rig.give(StopAsked())
    rig.finish_all()
    assert rig.log()[:2] == [((0.0, 0),), ((2.0, 1),)]


def test_piece_of_on_end_is_merged_too() -> None:
    run = MemoryDriver(nodes_of(_fed(LastPiece(limit=1)), compute_tasks=2)).execute()
    assert run.nodes[0].states["log"].snapshot() == (((0.0, 0), (1.0, 0)), ((99.0, 1),))


def test_stop_finishes_the_open_step() -> None:
    rig = Rig(nodes_of(_fed(Pieces(limit=99)), compute_tasks=2))
    rig.start()
    rig.finish(rig.tasks[0])
    rig.give(StopAsked())
    rig.finish_all()
    assert rig.log() == [((0.0, 0), (1.0, 0))]
    assert isinstance(rig.commands[-1], Ended)


@pytest.mark.parametrize("tasks", [1, 2, 4])
def test_gather_fed_by_an_inbox_merges_each_step_in_shard_order(tasks: int) -> None:
    run = MemoryDriver(nodes_of(_inbox_fed(Cut()), compute_tasks=tasks)).execute()
    expected = (((0.0, 0), (1.0, 0), (2.0, 0)), ((10.0, 1), (11.0, 1), (12.0, 1)))
    assert run.nodes[0].states["log"].snapshot() == expected
    assert run.nodes[0].states["log2"].snapshot() == expected


def test_gather_fed_by_an_inbox_closes_a_step_that_lacks_a_shard_once_the_next_has_come() -> None:
    run = MemoryDriver(nodes_of(_inbox_fed(Cut(swallow=1), limit=6), compute_tasks=2)).execute()
    log = run.nodes[0].states["log"].snapshot()
    assert log[0] == ((0.0, 0), (2.0, 0))
    assert [len(parts) for parts in log] == [2, 3, 3, 3, 3, 3]


def test_gather_fed_by_an_inbox_closes_a_step_that_lacks_a_shard_at_the_end() -> None:
    run = MemoryDriver(nodes_of(_inbox_fed(Cut(swallow=2), limit=1))).execute()
    assert run.nodes[0].states["log"].snapshot() == (((0.0, 0), (1.0, 0)),)


def test_message_that_is_cut_in_front_of_a_gather_is_a_step_of_its_own() -> None:
    class_of = {"count": Count(limit=2), "send": Send(), "receive": Receive(), "cut": Cut(), "collect": Collect()}
    graph = graph_of(
        class_of,
        [("count", "send"), ("send", "receive", Route.ONE_TO_ALL, True), ("receive", "cut"), ("cut", "collect")],
        ["log"],
    )
    plan = nodes_of(graph)
    run = MemoryDriver(plan).execute()
    assert run.nodes[0].states["log"].snapshot() == (
        ((0.0, 0), (1.0, 0), (2.0, 0)),
        ((10.0, 1), (11.0, 1), (12.0, 1)),
    )


def _streams() -> PhysicalPlan:
    graph = graph_of(
        {"pieces": Pieces(limit=0), "send": SendPiece(), "collect": CollectArrived()},
        [("send", "collect", Route.ONE_TO_ALL), ("pieces", "send")],
        ["log"],
    )
    return nodes_of(graph, 3)


@pytest.mark.parametrize("goes", [lambda: StreamEnded(StreamId(0, 1, 0)), lambda: NodeLeft(1)], ids=["ends", "leaves"])
def test_gather_of_other_nodes_shards_goes_on_without_one_that(goes: Callable[[], StreamEnded | NodeLeft]) -> None:
    rig = Rig(_streams())
    rig.start()
    rig.finish_all()
    for source, step in ((1, 0), (2, 0), (2, 1), (2, 2)):
        rig.arrive(Piece(step, source - 1, 2, 10.0 * step + source), source=source)
    rig.finish_all()
    assert rig.log() == [((1.0, 0), (2.0, 0))]
    rig.give(goes())
    rig.finish_all()
    # step 1 closes since node 2 has gone on to step 2, which stays open
    assert rig.log()[1:] == [((12.0, 1),), "left 1"]
    rig.give(StreamEnded(StreamId(0, 2, 0)))
    rig.finish_all()
    assert rig.log()[3:] == [((22.0, 3),), "left 2"]
    assert isinstance(rig.commands[-1], Ended)


def test_lower_step_is_served_first_whichever_came_first() -> None:
    rig = Rig(_streams())
    for source, step in ((1, 1), (2, 0), (1, 0), (2, 1)):
        rig.arrive(Piece(step, source - 1, 2, 10.0 * step + source), source=source)
    rig.start()
    rig.finish_all()
    assert rig.log() == [((1.0, 0), (2.0, 0)), ((11.0, 1), (12.0, 1))]


def test_shut_gate_holds_back_the_next_step_and_counts_as_waiting() -> None:
    graph = graph_of(
        {
            "pieces": Pieces(limit=3),
            "collect": GatedCollect(),
            "count": Count(limit=0),
            "send": Send(),
            "receive": Receive(),
            "open": NetNote(),
        },
        [("send", "receive", Route.ONE_TO_ALL), ("pieces", "collect"), ("count", "send"), ("receive", "open")],
        ["log", "gate"],
        open={"log": "gate"},
    )
    rig = Rig(nodes_of(graph, 2, compute_tasks=1))
    rig.start()
    while rig.tasks:
        rig.finish(rig.tasks[0], now=10.0)
    assert len(rig.log()) == 1
    assert rig.engine.statistics().waiting_s == 0.0
    assert rig.give(StreamEnded(StreamId(0, 9, 0)), now=11.5) == []  # from nobody: nothing changes but the time
    assert rig.engine.statistics().waiting_s == 1.5
    assert (rig.engine.statistics(now=13.5).waiting_s, rig.engine.statistics(now=13.5).running_s) == (3.5, 13.5)
    rig.give(MessageArrived(StreamId(0, 1, 0), Num(1), 128), now=12.0)
    assert rig.running() == ["receive"]
    rig.finish(rig.tasks[0], now=14.0)
    assert rig.running() == ["collect"]
    assert rig.engine.statistics().waiting_s == 4.0
    while rig.tasks:
        rig.finish(rig.tasks[0], now=15.0)
    assert len(rig.log()) == 2


def test_gate_is_asked_again_only_after_its_state_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    ready = GatedCollect.ready

    def counting(self: GatedCollect, gate: tuple[int, ...], log: LogState) -> bool:
        asked.append(len(gate))
        return ready(self, gate, log)

    monkeypatch.setattr(GatedCollect, "ready", counting)
    graph = graph_of(
        {"pieces": Pieces(limit=9), "collect": GatedCollect(), "count": Count(limit=5), "note": NetNote()},
        [("pieces", "collect"), ("count", "note")],
        ["log", "gate", "elsewhere"],
        note={"log": "elsewhere"},
    )
    rig = Rig(nodes_of(graph))
    rig.start()
    rig.finish_all()
    assert rig.log("elsewhere")[-1] == "end"
    assert asked == [0, 0]  # before step 0 and, shut, after its merge


def test_next_step_starts_ahead_of_all_that_follows_from_the_one_before() -> None:
    graph = graph_of(
        {"pieces": Pieces(), "collect": Collect(), "note": NetNote()},
        [("pieces", "collect"), ("collect", "note")],
        ["log", "elsewhere"],
        note={"log": "elsewhere"},
    )
    rig = Rig(nodes_of(graph))
    rig.start()
    rig.finish_chain("pieces")  # both steps are read ahead
    (step,) = rig.tasks
    commands = rig.engine.handle(TaskFinished(step, step.run()), 0.0)
    assert [command.task.chain if isinstance(command, RunTask) else command for command in commands] == [
        "collect",
        GoOn(),
    ]
    started = [command.task.chain for command in rig.engine.handle(GoOn(), 0.0) if isinstance(command, RunTask)]
    assert started == ["note"]


def test_next_step_starts_ahead_of_what_leads_to_a_reader_that_waits_for_nothing_yet() -> None:
    rig = _watched()
    (step,) = rig.tasks
    commands = rig.engine.handle(TaskFinished(step, step.run()), 0.0)
    assert [command.task.chain if isinstance(command, RunTask) else command for command in commands] == [
        "collect",
        GoOn(),
    ]


def test_next_step_stands_back_for_a_reader_that_waits_for_what_the_step_writes() -> None:
    rig = _watched()
    rig.finish_one("collect")  # step 0; step 1 has begun
    rig.finish_one("relay")
    assert rig.running() == ["collect"]  # the reader waits for the log
    rig.finish_one("collect")
    assert rig.running() == ["watch", "collect", "relay"]
    rig.finish_one("watch")
    assert rig.log("seen") == [2]


def test_slow_reader_sees_the_log_as_it_is_one_step_after_it_has_asked() -> None:
    """The driver goes on with the next step at once, and the reader takes as long as two steps."""
    rig = _watched()

    def step() -> None:
        rig.finish_one("collect")
        rig.finish_chain("relay")

    step()
    for made in (2, 5):
        assert "watch" not in rig.running()
        step()
        assert len(rig.log()) == made
        assert "watch" in rig.running()
        step()
        step()
        rig.finish_one("watch")  # more messages wait for it, and so does it, since another step has begun
    assert rig.log("seen") == [2, 5]


def test_end_of_a_reader_comes_between_two_steps_of_one_task() -> None:
    graph = graph_of(
        {"pieces": Pieces(limit=5), "collect": Collect(), "count": NetCount(limit=0), "send": Send()},
        [("pieces", "collect"), ("count", "send")],
        ["log", "seen"],
    ).with_operator("watch", WatchAtTheEnd(), role="worker")
    rig = Rig(nodes_of(graph.connect("send", "watch", route=Route.ONE_TO_ALL), 2))
    rig.start()
    while rig.running() != ["collect"]:
        rig.finish(rig.tasks[-1])
    rig.give(StreamEnded(StreamId(2, 1, 0)))
    assert rig.running() == ["collect"]  # the reader cannot end yet
    rig.finish_one("collect")
    assert rig.running() == ["watch", "collect"]
    rig.finish_one("watch")
    assert rig.log("seen") == [1]


def test_next_step_takes_turns_with_other_chains_of_its_pool() -> None:
    graph = graph_of(
        {"pieces": Pieces(limit=3), "collect": Collect(), "count": Count(limit=3), "note": NetNote()},
        [("pieces", "collect"), ("count", "note")],
        ["log", "elsewhere"],
        note={"log": "elsewhere"},
    )
    rig = Rig(nodes_of(graph))
    rig.start()
    order: list[str] = []
    while rig.tasks:
        order += [rig.tasks[0].chain] if rig.tasks[0].pool == "compute" else []
        rig.finish(rig.tasks[0])
    assert order[:6] == ["count", "collect"] * 3


def test_source_reads_ahead_of_a_gather_as_many_shards_as_its_port_has_room_for() -> None:
    rig = Rig(nodes_of(_fed(Pieces(limit=99)), compute_tasks=2))
    rig.start()
    rig.finish_chain("pieces")
    made = rig.engine.statistics().tasks
    assert rig.running() == ["collect"] * 2
    assert made == 2 + 8  # those of the open step have left the inbox, whose capacity is 8


def test_stop_between_two_shards_lets_the_source_finish_the_step() -> None:
    rig = Rig(nodes_of(_fed(Pieces(limit=99)), compute_tasks=3))
    rig.start()
    rig.finish_one("pieces")
    rig.give(StopAsked())
    rig.finish_all()
    assert rig.log() == [((0.0, 0), (1.0, 0), (2.0, 0))]
    assert isinstance(rig.commands[-1], Ended)
