"""Operators, state and a rig that drives one engine by hand, for the tests of the engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dataflow.engine.events import (
    Command,
    Event,
    Failed,
    GoOn,
    GrantCredit,
    MessageArrived,
    Outcome,
    RunTask,
    SendEnd,
    SendMessage,
    Started,
    Task,
    TaskFinished,
)
from dataflow.engine.loading import LoadedNode, load_node
from dataflow.engine.node_engine import NodeEngine
from dataflow.errors import AkoError
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.message import HEADER_NBYTES, Message, Sharded, Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, EndOfData, Gather, Operator, Sample
from dataflow.plan.compile import compile_graph
from dataflow.plan.physical import ChainPlan, PhysicalPlan, StreamId
from dataflow.ports import In, Out
from dataflow.state import Reads, State, StateElement, Writes


@dataclass(frozen=True, slots=True)
class Num(Message):
    """A number from a node, for a node."""

    n: int
    origin: int = 0
    to: int = 0


@dataclass(frozen=True, slots=True)
class Blob(Message):
    """Bytes."""

    data: np.ndarray


@dataclass(frozen=True, slots=True)
class Piece(Sharded):
    """A shard with a number."""

    n: float


@dataclass(frozen=True, slots=True)
class Drawn(Message):
    """Numbers drawn."""

    values: tuple[float, ...]


class LogState(State):
    """A list of whatever is noted."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def snapshot(self) -> tuple[Any, ...]:
        return tuple(self.items)

    def tensors(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        del tensors


class Log(StateElement):
    def create(self, node: NodeContext) -> LogState:
        del node
        return LogState()


class Count(Operator):
    """0, 1, ... below limit; what it says with on_end if `last`."""

    source = True
    limit: int = 3
    last: int | None = None
    numbers = Out(Num)

    def process(self, tick: Tick, node: NodeContext) -> Emissions:
        if tick.step >= self.limit:
            yield EndOfData()
            return
        yield self.numbers(Num(tick.step, node.index))

    def on_end(self, node: NodeContext) -> Emissions:
        if self.last is not None:
            yield self.numbers(Num(self.last, node.index))


class CountTo(Operator):
    """Numbers addressed to each node in turn."""

    source = True
    limit: int = 3
    nodes: int = 2
    numbers = Out(Num)

    def process(self, tick: Tick, node: NodeContext) -> Emissions:
        if tick.step >= self.limit:
            yield EndOfData()
            return
        yield self.numbers(Num(tick.step, node.index, tick.step % self.nodes))


class Relay(Operator):
    """Numbers as they come, plus `add`; drops those above `below`, repeats others `times` times."""

    add: int = 0
    below: int = 1 << 30
    times: int = 1
    inp = In(Num, capacity=2)
    out = Out(Num)

    def process(self, num: Num) -> Emissions:
        if num.n < self.below:
            for _ in range(self.times):
                yield self.out(Num(num.n + self.add, num.origin, num.to))


class NetRelay(Relay):
    pool = "network"


class Note(Operator):
    """Appends numbers to a log, and what happens."""

    inp = In(Num, capacity=2)
    out = Out(Num)
    log = Writes()

    def process(self, num: Num, log: LogState) -> Emissions:
        log.items.append((num.origin, num.n))
        yield self.out(num)

    def on_end(self, log: LogState) -> Emissions:
        log.items.append("end")
        yield from ()


class NetNote(Note):
    pool = "network"

    def on_left(self, node: int, log: LogState) -> Emissions:
        log.items.append(f"left {node}")
        yield from ()


class Compare(Operator):
    """Notes the lengths of the snapshots of two logs."""

    inp = In(Num)
    out = Out(Num)
    first = Reads()
    second = Reads()
    seen = Writes()

    def process(self, num: Num, first: tuple[Any, ...], second: tuple[Any, ...], seen: LogState) -> Emissions:
        seen.items.append((num.n, len(first), len(second)))
        yield from ()


class WriteBoth(Operator):
    pool = "network"
    inp = In(Num)
    out = Out(Num)
    first = Writes()
    second = Writes()

    def process(self, num: Num, first: LogState, second: LogState) -> Emissions:
        first.items.append(num.n)
        second.items.append(num.n)
        yield from ()


class Send(Operator):
    pool = "network"
    sends = True
    inp = In(Num, capacity=2)
    out = Out(Num)

    def process(self, num: Num) -> Emissions:
        yield self.out(num, to=num.to)


class SendKeyed(Send):
    inp = In(Num, key="to", capacity=4)


class SendLatest(Send):
    inp = In(Num, key="to", latest=("to",))


class Receive(Operator):
    pool = "network"
    receives = True
    inp = In(Num)
    out = Out(Num)

    def process(self, num: Num) -> Emissions:
        yield self.out(num)


class Pieces(Operator):
    """A step of pieces; with `swallow`, that shard of every step is left out."""

    source = True
    limit: int = 2
    swallow: int | None = None
    out = Out(Piece)

    def process(self, tick: Tick) -> Emissions:
        if tick.step >= self.limit:
            yield EndOfData()
        elif tick.shard != self.swallow:
            yield self.out(Piece(tick.step, tick.shard, tick.shards, 10.0 * tick.step + tick.shard))


class Cut(Operator):
    """Cuts a number into `shards` pieces, in reverse order; leaves out piece `swallow` of step 0."""

    shards: int = 3
    swallow: int | None = None
    inp = In(Num)
    out = Out(Piece)

    def process(self, num: Num) -> Emissions:
        for shard in reversed(range(self.shards)):
            if num.n or shard != self.swallow:
                yield self.out(Piece(num.n, shard, self.shards, 10.0 * num.n + shard))


class NetCut(Cut):
    pool = "network"


class Collect(Gather):
    """Notes the parts of every step with the length of the log it saw."""

    inp = In(Piece)
    out = Out(Num)
    log = Writes()

    def process(self, piece: Piece, log: tuple[Any, ...]) -> tuple[float, int]:
        return piece.n, len(log)

    def merge(self, parts: list[tuple[float, int]], log: LogState) -> Emissions:
        log.items.append(tuple(parts))
        yield Sample("parts", float(len(parts)))
        yield self.out(Num(len(parts)))


class GatedCollect(Collect):
    gate = Reads()

    def ready(self, gate: tuple[Any, ...], log: LogState) -> bool:
        return len(log.items) <= len(gate)


class Draw(Operator):
    """Adds what it draws to the number."""

    inp = In(Num)
    out = Out(Num)

    def process(self, num: Num, rng: np.random.Generator) -> Emissions:
        yield self.out(Num(int(rng.integers(1 << 40)), num.origin))


def nodes_of(graph: LogicalGraph, nodes: int = 1, *, window: int = 0, **sizes: int) -> PhysicalPlan:
    """The plan of a graph, with a window of so many bytes if not 0."""
    plan = compile_graph(graph, nodes, **sizes)
    return plan.model_copy(update={"window_nbytes": window}) if window else plan


def unchained(plan: PhysicalPlan) -> PhysicalPlan:
    """The same plan, every operator a task of its own."""
    operators = plan.graph.operators
    chains = tuple(ChainPlan(operators=(spec.id,), role=spec.role, pool=spec.pool) for spec in operators)
    return plan.model_copy(update={"chains": chains})


def graph_of(
    operators: Mapping[str, Operator], edges: Iterable[tuple[Any, ...]], logs: Iterable[str] = (), **binds: Any
) -> LogicalGraph:
    """A graph of one role; an edge is (source, target[, route[, loopback[, key]]])."""
    graph = LogicalGraph(name="test").with_role("worker")
    for log in logs:
        graph = graph.with_state(log, Log(), role="worker")
    for name, operator in operators.items():
        graph = graph.with_operator(name, operator, role="worker", bind=binds.get(name))
    for source, target, *rest in edges:
        options = dict(zip(("route", "loopback", "key"), rest, strict=False))
        graph = graph.connect(source, target, **options)
    return graph


@dataclass
class Rig:
    """One engine, driven by hand: `give` it events, `finish` the tasks it starts when and in the order you like."""

    plan: PhysicalPlan
    node: int = 0
    commands: list[Command] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loaded: LoadedNode = load_node(self.plan, self.node)
        self.loaded.open()
        self.engine = NodeEngine(self.plan, self.node, self.loaded)

    def start(self) -> list[Command]:
        return self.give(Started())

    def give(self, event: Event, now: float = 0.0) -> list[Command]:
        commands = self.engine.handle(event, now)
        while GoOn() in commands:
            commands.remove(GoOn())
            commands += self.engine.handle(GoOn(), now)
        self.commands += commands
        self.tasks += [command.task for command in commands if isinstance(command, RunTask)]
        return commands

    def arrive(self, message: Message, source: int = 1, edge: int = 0, nbytes: int = HEADER_NBYTES) -> list[Command]:
        return self.give(MessageArrived(StreamId(edge, source, self.node), message, nbytes))

    def finish(self, task: Task, now: float = 0.0, busy_s: float = 0.0) -> list[Command]:
        self.tasks.remove(task)
        try:
            event = TaskFinished(task, task.run(), busy_s)
        except AkoError as error:
            event = TaskFinished(task, Outcome(), busy_s, error)
        return self.give(event, now)

    def finish_all(self) -> None:
        while self.tasks:
            self.finish(self.tasks[0])

    def finish_one(self, chain: str) -> None:
        """Finish the oldest task of a chain."""
        self.finish(next(task for task in self.tasks if task.chain == chain))

    def finish_chain(self, chain: str) -> None:
        """Finish a chain's tasks until it has none."""
        while chain in self.running():
            self.finish_one(chain)

    def log(self, name: str = "log") -> list[Any]:
        state = self.loaded.states[name]
        assert isinstance(state, LogState)
        return state.items

    def running(self) -> list[str]:
        return [task.chain for task in self.tasks]

    def sent(self) -> list[tuple[int, int]]:
        """(receiver, number) of every message sent."""
        return [(c.stream.target, c.message.n) for c in self.commands if isinstance(c, SendMessage)]  # type: ignore[attr-defined]

    def ends(self) -> list[int]:
        return [c.stream.target for c in self.commands if isinstance(c, SendEnd)]

    def granted(self) -> list[tuple[int, int]]:
        """(sender, bytes) of every credit granted."""
        return [(c.stream.source, c.nbytes) for c in self.commands if isinstance(c, GrantCredit)]

    def failure(self) -> AkoError:
        last = self.commands[-1]
        assert isinstance(last, Failed)
        return last.error


def received(route: Route = Route.ONE_TO_ALL, note: Operator | None = None) -> LogicalGraph:
    """count -> send ==> receive -> note(log)."""
    return graph_of(
        {"count": Count(), "send": Send(), "receive": Receive(), "note": note or NetNote()},
        [("send", "receive", route), ("count", "send"), ("receive", "note")],
        ["log"],
    )
