"""Operators that are called by the clock, and those that say that they emit nothing more."""

from __future__ import annotations

from engine_rig import Count, LogState, NetNote, Num, Receive, Relay, Rig, Send, graph_of, nodes_of, received

from dataflow.engine.events import MessageArrived, SetTimer, StreamEnded, TimerFired
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.engine.recording import Chunk, Kind, RecordedEngine
from dataflow.graph.routes import Route
from dataflow.operators_api import Emissions, EndOfData
from dataflow.plan.physical import StreamId


class Ticks(NetNote):
    """Notes when its time has come, and passes it on as a number."""

    period_s: float = 0.25

    @property
    def timer_s(self) -> float:
        return self.period_s

    def on_timer(self, log: LogState) -> Emissions:
        log.items.append("tick")
        yield self.out(Num(-1))


def ticking(note: Ticks | None = None) -> Rig:
    """receive -> note(log) on node 0, where nothing else goes on."""
    rig = Rig(nodes_of(received(note=note or Ticks()).replace("count", Count(limit=0)), 2))
    rig.start()
    rig.finish_all()
    return rig


def timers(rig: Rig) -> list[SetTimer]:
    return [command for command in rig.commands if isinstance(command, SetTimer)]


def test_timer_is_set_at_the_start_and_again_each_time_it_fires() -> None:
    rig = ticking()
    assert timers(rig) == [SetTimer("receive", 0.25)]
    for fired in (1, 2, 3):
        rig.give(TimerFired("receive"))
        rig.finish_all()
        assert rig.log() == ["tick"] * fired
        assert len(timers(rig)) == 1 + fired


def test_timer_of_an_operator_without_a_period_is_not_set() -> None:
    assert timers(ticking(Ticks(period_s=0.0))) == []


def test_timer_that_fires_twice_while_its_chain_is_busy_calls_once_ahead_of_messages() -> None:
    rig = ticking()
    rig.arrive(Num(1))
    rig.arrive(Num(2))
    rig.give(TimerFired("receive"))
    rig.give(TimerFired("receive"))
    rig.finish_all()
    assert rig.log() == [(0, 1), "tick", (0, 2)]


def test_timer_that_fires_after_the_end_of_its_chain_does_nothing() -> None:
    rig = ticking()
    rig.give(StreamEnded(StreamId(0, 1, 0)))
    rig.finish_all()
    assert rig.log() == ["left 1", "end"]
    assert rig.give(TimerFired("receive")) == []
    assert rig.tasks == []


def test_timers_in_memory_fire_when_there_is_nothing_else_to_do() -> None:
    graph = received(note=Ticks())
    run = MemoryDriver(nodes_of(graph, 2)).execute()
    assert [item for item in run.nodes[0].states["log"].items if item != "tick"][-1] == "end"  # type: ignore[attr-defined]


def test_record_says_which_timer_has_fired() -> None:
    plan = nodes_of(received(note=Ticks()), 2)
    rig = Rig(plan)
    engine = RecordedEngine(plan, 0, rig.loaded, digest=plan.digest())
    engine.handle(TimerFired("receive"), 0.5)
    rest = engine.rest()
    assert rest is not None
    (noted,) = Chunk.decode(rest.data).events()
    assert (noted.kind, plan.chains[noted.edge].head, noted.now_s) == (Kind.TIMER_FIRED, "receive", 0.5)


class PassOn(NetNote):
    """Passes on what comes to the next node, until it has seen number `last` and wants to say no more."""

    last: int = 1

    def process(self, num: Num, log: LogState) -> Emissions:
        log.items.append((num.origin, num.n))
        if num.n < self.last:
            yield self.out(Num(num.n + 1, num.origin, 1 - num.to))
        else:
            yield EndOfData()


class Starts(Count):
    limit: int = 1

    def process(self, tick: object, node: object) -> Emissions:  # type: ignore[override]
        if tick.step or node.index:  # type: ignore[attr-defined]
            yield EndOfData()
        else:
            yield self.numbers(Num(0, 0, 1))


def ring(last: int) -> MemoryDriver:
    """Two nodes that send each other what each has sent the other: neither can wait for the other's last message."""
    graph = graph_of(
        {"count": Starts(), "send": Send(), "receive": Receive(), "note": PassOn(last=last)},
        [("count", "send"), ("send", "receive", Route.BY_DESTINATION), ("receive", "note"), ("note", "send")],
        ["log"],
    )
    return MemoryDriver(nodes_of(graph, 2))


def test_nodes_that_answer_each_other_end_once_one_says_no_more() -> None:
    run = ring(4).execute()
    logs = [node.states["log"].items for node in run.nodes]  # type: ignore[attr-defined]
    assert logs[1][:3] == [(0, 0), (0, 2), (0, 4)]
    assert logs[0][:2] == [(0, 1), (0, 3)]
    assert [log[-1] for log in logs] == ["end", "end"]


class Silent(Relay):
    """Says that it emits nothing more, and lets the next operator of its chain wait."""

    def process(self, num: Num) -> Emissions:
        yield EndOfData()


def test_end_of_data_of_an_operator_in_the_middle_of_a_chain_is_refused() -> None:
    graph = graph_of({"count": Count(), "middle": Silent(), "last": Relay()}, [("count", "middle"), ("middle", "last")])
    rig = Rig(nodes_of(graph))
    rig.start()
    rig.finish_all()
    assert "operator 'middle' yielded something that is no effect of its own" in str(rig.failure())


def test_operator_that_emits_after_the_end_of_its_data_fails() -> None:
    graph = graph_of(
        {"count": Count(limit=0), "send": Send(), "receive": Receive(), "note": PassOn(last=5)},
        [("count", "send"), ("send", "receive", Route.BY_DESTINATION), ("receive", "note"), ("note", "send")],
        ["log"],
    )
    rig = Rig(nodes_of(graph, 2))
    rig.start()
    rig.finish_all()
    edge = next(number for number, each in enumerate(graph.edges) if each.target == "receive")
    for n in (5, 2):
        rig.give(MessageArrived(StreamId(edge, 1, 0), Num(n), 128))
        rig.finish_all()
    assert "has emitted something after it had yielded EndOfData" in str(rig.failure())
