"""Whatever the graph and the order of events: runs end, and every message arrives once, in order."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from engine_rig import (
    CountTo,
    GatedCollect,
    Log,
    LogState,
    NetNote,
    NetRelay,
    Note,
    Num,
    Pieces,
    Receive,
    Relay,
    Send,
    SendKeyed,
    graph_of,
    nodes_of,
    unchained,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.engine.events import Command, CreditGranted, Event, MessageArrived, SendMessage, TaskFinished
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.engine.node_engine import NodeEngine
from dataflow.errors import JobFailedError
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.message import HEADER_NBYTES as SIZE
from dataflow.operators_api import Operator
from dataflow.plan.physical import PhysicalPlan
from dataflow.ports import Out

STAGES: dict[str, type[Operator]] = {"relay": Relay, "net": NetRelay}
LIMIT = 5


class Saying(Relay):
    """A relay that reports."""

    out = Out(Num, reported=True)


@dataclass(frozen=True)
class Shape:
    """A random graph: branches of relays behind the source, some of which cross nodes."""

    branches: tuple[tuple[str, ...], ...]
    nodes: int
    compute_tasks: int
    network_tasks: int
    window: int
    chained: bool

    def plan(self) -> PhysicalPlan:
        graph = LogicalGraph(name="random").with_role("worker")
        graph = graph.with_operator("count", CountTo(limit=LIMIT, nodes=self.nodes), role="worker")
        for number, stages in enumerate(self.branches):
            graph = _branch(graph, f"b{number}", stages)
        plan = nodes_of(
            graph,
            self.nodes,
            window=self.window,
            compute_tasks=self.compute_tasks,
            network_tasks=self.network_tasks,
        )
        return plan if self.chained else unchained(plan)

    def expected(self, number: int, node: int) -> dict[int, list[int]]:
        """By node of origin, the numbers that the end of a branch notes on `node`."""
        noted: dict[int, list[int]] = {node: list(range(LIMIT))}
        for stage in self.branches[number]:
            if stage == "all":
                return {origin: list(range(LIMIT)) for origin in range(self.nodes)}
            if stage == "to":
                numbers = [n for n in range(LIMIT) if n % self.nodes == node]
                return {origin: numbers for origin in range(self.nodes) if numbers}
        return noted


def _branch(graph: LogicalGraph, name: str, stages: tuple[str, ...]) -> LogicalGraph:
    graph = graph.with_state(name, Log(), role="worker")
    last = "count"
    for position, stage in enumerate(stages):
        place = f"{name}_{position}"
        if stage in STAGES:
            graph = graph.with_operator(place, STAGES[stage](), role="worker").connect(last, place)
            last = place
            continue
        send: Operator = Send() if stage == "all" else SendKeyed()
        route = Route.ONE_TO_ALL if stage == "all" else Route.BY_DESTINATION
        graph = graph.with_operator(f"{place}s", send, role="worker").connect(last, f"{place}s")
        graph = graph.with_operator(f"{place}r", Receive(), role="worker")
        graph = graph.connect(f"{place}s", f"{place}r", route=route, loopback=True)
        last = f"{place}r"
    note = NetNote() if len(stages) % 2 else Note()
    graph = graph.with_operator(f"{name}_note", note, role="worker", bind={"log": name})
    return graph.connect(last, f"{name}_note")


def _with_at_most_one_crossing(stages: list[str]) -> tuple[str, ...]:
    kept: list[str] = []
    for stage in stages:
        if stage in STAGES or not {"all", "to"} & set(kept):
            kept.append(stage)
    return tuple(kept)


shapes = st.builds(
    Shape,
    branches=st.lists(
        st.lists(st.sampled_from(["relay", "net", "all", "to"]), max_size=4).map(_with_at_most_one_crossing),
        min_size=1,
        max_size=3,
    ).map(tuple),
    nodes=st.integers(1, 3),
    compute_tasks=st.integers(1, 2),
    network_tasks=st.integers(1, 3),
    window=st.sampled_from([1, SIZE, 3 * SIZE, 1 << 20]),
    chained=st.booleans(),
)


@dataclass
class Recorder:
    """Stands before an engine and writes down what it is given and what it answers."""

    engine: NodeEngine
    events: list[tuple[Any, ...]] = field(default_factory=list)
    under_way: dict[object, int] = field(default_factory=lambda: defaultdict(int))

    def handle(self, event: Event, now: float) -> list[Command]:
        self.events.append(_plain(event))
        if isinstance(event, CreditGranted):
            self.under_way[event.stream] -= event.nbytes
            assert self.under_way[event.stream] >= 0
        commands = self.engine.handle(event, now)
        for command in commands:
            if isinstance(command, SendMessage):
                self.under_way[command.stream] += command.nbytes
        self.events += [_plain(command) for command in commands]
        return commands


def _plain(item: Event | Command) -> tuple[Any, ...]:
    match item:
        case TaskFinished(task, outcome):
            return ("finished", task.chain, repr(outcome))
        case MessageArrived(stream, message, size):
            return ("arrived", stream, message, size)
        case _ if hasattr(item, "task"):
            return (type(item).__name__, item.task.chain)
        case _:
            return (type(item).__name__, repr(item))


def _driver(plan: PhysicalPlan, seed: int | None) -> tuple[MemoryDriver, list[Recorder]]:
    driver = MemoryDriver(plan, order=None if seed is None else np.random.default_rng(seed))
    recorders = [Recorder(engine) for engine in driver.engines]
    driver.engines = recorders  # type: ignore[assignment]
    return driver, recorders


@settings(deadline=None, max_examples=60)
@given(shape=shapes, seed=st.integers(0, 1 << 30))
def test_random_graph_in_random_order_delivers_every_message_once_in_order(shape: Shape, seed: int) -> None:
    driver, recorders = _driver(shape.plan(), seed)
    run = driver.execute()
    assert run.ended == set(range(shape.nodes))
    for node in range(shape.nodes):
        for number in range(len(shape.branches)):
            state = run.nodes[node].states[f"b{number}"]
            assert isinstance(state, LogState)
            noted: dict[int, list[int]] = defaultdict(list)
            for item in state.items:
                if isinstance(item, tuple):
                    noted[item[0]].append(item[1])
            assert noted == shape.expected(number, node)
            assert state.items[-1] == "end"
    for recorder in recorders:  # every byte of credit has come back, exactly
        assert set(recorder.under_way.values()) <= {0}


@settings(deadline=None, max_examples=25)
@given(shape=shapes)
def test_two_runs_in_first_in_first_out_order_are_the_same_event_by_event(shape: Shape) -> None:
    (first, recorded), (second, recorded_again) = _driver(shape.plan(), None), _driver(shape.plan(), None)
    states = [
        [loaded.states[name].snapshot() for name in sorted(loaded.states)]
        for run in (first.execute(), second.execute())
        for loaded in run.nodes
    ]
    assert [recorder.events for recorder in recorded] == [recorder.events for recorder in recorded_again]
    assert states[: shape.nodes] == states[shape.nodes :]


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 1 << 30), tasks=st.integers(1, 3))
def test_gathering_in_random_order_gives_the_same_log(seed: int, tasks: int) -> None:
    graph = graph_of(
        {"pieces": Pieces(limit=4), "collect": GatedCollect(), "note": Note()},
        [("pieces", "collect"), ("collect", "note")],
        ["log", "gate"],
        note={"log": "gate"},
    )
    run = MemoryDriver(nodes_of(graph, compute_tasks=tasks), order=np.random.default_rng(seed)).execute()
    assert run.nodes[0].states["log"].snapshot() == tuple(
        tuple((10.0 * step + shard, step) for shard in range(tasks)) for step in range(4)
    )


def test_nodes_that_wait_for_each_other_for_ever_fail_the_run() -> None:
    graph = graph_of({"pieces": Pieces(limit=4), "collect": GatedCollect()}, [("pieces", "collect")], ["log", "gate"])
    with pytest.raises(JobFailedError, match="wait for each other for ever"):
        MemoryDriver(nodes_of(graph)).execute()


def test_stop_from_a_report_ends_every_node() -> None:
    graph = graph_of({"count": CountTo(limit=1 << 30), "says": Saying()}, [("count", "says")])

    def stop_at_five(driver: MemoryDriver, node: int, report: Any) -> None:
        del node
        if report.fields["n"] == 5:
            driver.stop()

    run = MemoryDriver(nodes_of(graph, 2), on_report=stop_at_five).execute()
    assert run.ended == {0, 1}
    assert max(report.fields["n"] for _, report in run.reports) < 10
