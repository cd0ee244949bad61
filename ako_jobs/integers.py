"""Integers: a job whose replicas show which gradients they hold, and each how often.

A gradient is 0 but for two weights in each cell, which are its node's and its incarnation's own: there it is 1, and a
number made of its own. So the replica tells how many gradients of each incarnation it holds, cell by cell, and whether
they are the first ones that were made, each once (docs/decisions/0025). It is for faults: `ako chaos`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ako_jobs.ako import add_exchange
from ako_jobs.worker import add_joining
from dataflow import StopRules
from dataflow.errors import ConfigError, OperatorError, refusal
from dataflow.graph.logical import LogicalGraph
from dataflow.message import Message, Sharded, Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Checkpoint, Emissions, EndOfData, Gather, Operator
from dataflow.ports import In, Out
from dataflow.state import Reads, StateElement, StateKind, Writes
from operators.apply import ApplyFromPeers
from operators.checkpointing import Checkpoints
from operators.clocks import Clocks, ClocksState
from operators.cost_model import CostModel
from operators.course import Course, CourseState
from operators.layout import Layout
from operators.messages import Gradient, Progress
from operators.partition import Rotation
from operators.receive import ReceiveFromPeers
from operators.roll import Present, Roll
from operators.send import SendToPeers
from operators.vector_state import VectorState
from operators.window import Window

CELLS, SLOTS = 64, 64
WEIGHTS: Final = CELLS * SLOTS * 2
LAYOUT = Layout.of(WEIGHTS, cells=CELLS)

_MARKS: Final = 997


class Config(BaseModel):
    """Settings.

    Args:
        gradients: of each node, after which the job ends.
        pace_ms: milliseconds that a gradient takes at least, without use of the processor.
        p: partitions.
        tau: gradients that a worker may be ahead of what the staleness bound allows.
        checkpoint_every: gradients of all workers between two checkpoints; none if left out.
        time: end the job after so many seconds.
        seed: of random numbers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    gradients: int = Field(default=1_000_000, ge=1)
    pace_ms: float = Field(default=10.0, ge=0)
    p: int = Field(default=4, ge=1, le=CELLS)
    tau: int = Field(default=4, ge=0)
    checkpoint_every: int | None = Field(default=None, ge=1)
    time: float | None = Field(default=None, gt=0)
    seed: int = Field(default=0, ge=0)

    @classmethod
    def parse(cls, settings: dict[str, Any]) -> Self:
        """A configuration from settings, such as those of a command line.

        Raises:
            ConfigError: an unknown key, or a value that does not fit.
        """
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            first = error.errors()[0]
            what = f"the setting {first['loc'][0]} of integers cannot be used: {refusal(first)}"
            raise ConfigError(what, got=first["input"], fix=f"settings: {', '.join(cls.model_fields)}") from None

    def stop_rules(self) -> StopRules:
        """When the coordinator stops the job."""
        return StopRules(time_s=self.time)

    @staticmethod
    def violations(record: Mapping[str, Any]) -> list[str]:
        """What of a run's replicas is not exact; see `violations`."""
        return violations(record["reports"])


@dataclass(frozen=True, slots=True)
class Beat(Sharded):
    """A gradient is to be made."""


@dataclass(frozen=True, slots=True)
class Began(Message):
    """An incarnation of a node has made its first gradient, which is behind number `base`."""

    incarnation: int
    base: int


@dataclass(frozen=True, slots=True)
class Holding(Message):
    """What a node holds in the end.

    Args:
        incarnation: of the node.
        made: number of its last gradient.
        rejected: fragments that it has refused.
        held: JSON: by ``node.incarnation``, the different [gradients, sum of marks] of its cells.
    """

    incarnation: int
    made: int
    rejected: int
    held: str


class Zeros(StateElement):
    """A vector that begins with zeros."""

    kind: ClassVar[StateKind] = StateKind.PARTIAL
    n_weights: int

    def create(self, _node: NodeContext) -> VectorState:
        """The vector, (n_weights,) float32."""
        return VectorState(np.zeros(self.n_weights, np.float32))


class Beats(Operator):
    """One for each of so many gradients, once the node has caught up with the others."""

    source = True
    gradients: int
    beats = Out(Beat)
    roll = Reads()
    course = Writes()

    def ready(self, roll: Present) -> bool:
        """Whether the node has caught up, or never will."""
        return roll.settled or roll.idle

    def process(self, tick: Tick, roll: Present, course: CourseState) -> Emissions:
        """A beat, or the end."""
        if not tick.shard:
            course.read(course.base + tick.step)
            course.closed = roll.idle or course.number >= self.gradients
        yield EndOfData() if course.closed else self.beats(Beat(tick.step, tick.shard, tick.shards))

    def on_end(self, course: CourseState) -> Emissions:
        """Nothing more comes, even where this source has been stopped."""
        course.stop()
        yield from ()


class Mark(Gather):
    """Makes gradients that can be told apart, at its own pace, within the staleness bound."""

    pace_s: float
    slack: int
    checkpoints: Checkpoints | None = None
    beats = In(Beat)
    gradients = Out(Gradient)
    progress = Out(Progress)
    began = Out(Began, reported=True)
    replica = Writes()
    clocks = Writes()
    course = Reads()

    def ready(self, clocks: ClocksState) -> bool:
        """Whether the staleness bound allows another gradient."""
        return clocks.made <= clocks.slowest() + self.slack

    def process(self, beat: Beat) -> bool:
        """Take time; whether this is the first beat of the incarnation."""
        if not beat.shard:
            time.sleep(self.pace_s)
        return beat.step == 0

    def merge(self, parts: list[bool], replica: VectorState, clocks: ClocksState, node: NodeContext) -> Emissions:
        """Make the gradient, apply it here and emit it."""
        number = clocks.made + 1
        if parts[0]:
            yield self.began(Began(node.incarnation, clocks.made))
        gradient = marked(slot(node.index, node.incarnation, node.size), number)
        replica.values -= gradient
        clocks.made = number
        yield self.gradients(Gradient(number, gradient, 1))
        yield self.progress(Progress(number, number, 0.0, 0.0))
        due = self.checkpoints.due(number - 1, number, node.size) if self.checkpoints else None
        if due is not None:
            yield Checkpoint(due)


class Tell(Operator):
    """Tells what the replica holds when all has ended; one that never caught up takes no part in the end."""

    progress = In(Progress)
    holding = Out(Holding, reported=True)
    replica = Writes()
    clocks = Writes()
    roll = Reads()

    def process(self, progress: Progress) -> Emissions:
        """Nothing yet."""
        yield from ()

    def on_end(self, replica: VectorState, clocks: ClocksState, roll: Present, node: NodeContext) -> Emissions:
        """Tell."""
        if node.index in roll.late:
            return
        held = json.dumps(holding(replica.current, node.size))
        yield self.holding(Holding(node.incarnation, clocks.made, clocks.rejected, held))


def build(config: Config) -> LogicalGraph:
    """Partial gradient exchange of workers that make gradients at one pace."""
    cost = CostModel(model_nbytes=4 * WEIGHTS, cells=CELLS, partitions=config.p, every=1)
    every = config.checkpoint_every
    mark = Mark(
        pace_s=config.pace_ms / 1e3,
        slack=config.tau,
        checkpoints=None if every is None else Checkpoints(images=every, batch=1),
    )
    graph = (
        LogicalGraph(name="integers")
        .with_role("worker")
        .with_state("replica", Zeros(n_weights=WEIGHTS), role="worker")
        .with_state("statistics", Zeros(n_weights=1), role="worker")
        .with_state("roll", Roll(), role="worker")
        .with_state("course", Course(), role="worker")
        .with_state("clocks", Clocks(cells=CELLS, origins="worker", span=cost.first(0).span), role="worker")
        .with_operator("beats", Beats(gradients=config.gradients), role="worker")
        .with_operator("compute", mark, role="worker")
        .with_operator("tell", Tell(), role="worker")
        .connect("beats", "compute")
    )
    window = Window(layout=LAYOUT, receivers="worker")
    graph = add_exchange(graph, LAYOUT, Rotation(receivers="worker", cost=cost), window)
    graph = graph.replace("send", SendToPeers(layout=LAYOUT)).replace("receive", ReceiveFromPeers())
    graph = graph.replace("apply", ApplyFromPeers(layout=LAYOUT))
    return add_joining(graph).connect("compute.progress", "tell").connect("apply.finished", "tell")


def slot(node: int, incarnation: int, nodes: int) -> int:
    """Which of the `SLOTS` pairs of weights of a cell are an incarnation's.

    Raises:
        OperatorError: there are none left.
    """
    found = node + nodes * incarnation
    if found >= SLOTS:
        what = f"there is room for {SLOTS} incarnations of all nodes together"
        raise OperatorError(what, got=f"incarnation {incarnation} of node {node}", fix="run it on fewer nodes")
    return found


def mark(number: int) -> int:
    """What tells gradient `number` from others near it: small, so that sums of thousands are exact in float32."""
    return number % _MARKS + 1


def marked(of_slot: int, number: int) -> np.ndarray:
    """Gradient `number` of a slot: (WEIGHTS,) float32."""
    gradient = np.zeros((CELLS, SLOTS, 2), np.float32)
    gradient[:, of_slot] = 1, mark(number)
    return gradient.ravel()


def holding(replica: np.ndarray, nodes: int) -> dict[str, list[list[int]]]:
    """What a replica holds: by ``node.incarnation``, the different [gradients, sum of marks] of its cells, if any."""
    pairs = -replica.reshape(CELLS, SLOTS, 2).astype(np.int64)
    return {
        f"{each % nodes}.{each // nodes}": np.unique(pairs[:, each], axis=0).tolist()
        for each in range(SLOTS)
        if pairs[:, each].any()
    }


def violations(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is not exact in what the nodes of a run have told, in words; nothing if all is.

    Exact is: of every incarnation that lived in the end, each replica that lived holds every gradient once, in each
    cell; of every other one a prefix, cell by cell (docs/decisions/0025).
    """
    bases = {
        f"{each['node']}.{each['incarnation']}": int(each["base"])
        for each in reports
        if each["port"] == "compute.began"
    }
    last = {each["node"]: each for each in reports if each["port"] == "tell.holding"}
    live = {f"{node}.{each['incarnation']}": int(each["made"]) for node, each in last.items()}
    found = [] if last else ["no node has told what it holds"]
    for node, told in sorted(last.items()):
        if told["rejected"]:
            found.append(f"node {node} has refused {told['rejected']} fragments")
        held = json.loads(told["held"])
        for origin in sorted(live.keys() | held.keys()):
            base = bases.get(origin, live.get(origin, 0))
            wanted = live[origin] - base if origin in live else None
            for count, total in held.get(origin, [[0, 0]]):
                if wanted is not None and count != wanted:
                    found.append(f"node {node} holds {count} gradients of {origin}, which has made {wanted}")
                elif total != sum(map(mark, range(base + 1, base + count + 1))):
                    found.append(f"node {node} does not hold the first {count} gradients of {origin}, each once")
    return found
