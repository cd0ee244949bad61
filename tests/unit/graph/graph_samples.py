"""Messages, operators and graphs that the tests of graphs share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.message import Message, Sharded, Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, Operator
from dataflow.ports import In, Out
from dataflow.state import Reads, State, StateElement, StateKind, Writes
from tests.idle import Idle, IdleGather


@dataclass(frozen=True, slots=True)
class Batch(Sharded):
    images: np.ndarray


@dataclass(frozen=True, slots=True)
class GreyBatch(Batch):
    depth: int = 8


@dataclass(frozen=True, slots=True)
class Gradient(Message):
    values: np.ndarray


@dataclass(frozen=True, slots=True)
class Loss(Message):
    step: int
    value: float
    label: str | None = None


class Model(StateElement):
    kind = StateKind.PARTIAL
    width: int = 3

    def create(self, node: NodeContext) -> State:
        raise NotImplementedError


class Source(Operator):
    source = True
    count: int = 10
    batches = Out(Batch)

    def process(self, tick: Tick) -> Emissions:
        yield self.batches(Batch(tick.step, tick.shard, tick.shards, np.zeros(1)))


class Blur(Operator):
    radius: int = 1
    batches = In(Batch)
    blurred = Out(Batch)

    def process(self, batch: Batch) -> Emissions:
        yield self.blurred(batch)


class GreyScale(Idle):
    batches = In(Batch)
    grey = Out(GreyBatch)


class Split(Idle):
    batches = In(Batch)
    left = Out(Batch)
    right = Out(Batch)


class Join(Idle):
    left = In(Batch)
    right = In(Batch)
    joined = Out(Batch)


class Compute(IdleGather):
    model = Reads()
    live = Writes("model")
    batches = In(Batch)
    gradients = Out(Gradient)
    losses = Out(Loss, reported=True)


class Send(Idle):
    pool = "network"
    sends = True
    gradients = In(Gradient)
    sent = Out(Gradient)


class Receive(Idle):
    pool = "network"
    receives = True
    arrived = In(Gradient)
    gradients = Out(Gradient)


class Apply(Idle):
    model = Writes()
    gradients = In(Gradient)


class Scale(Idle):
    gradients = In(Gradient)
    scaled = Out(Gradient)


def pipeline() -> LogicalGraph:
    """source -> blur -> compute, on one role."""
    return (
        LogicalGraph(name="pipeline")
        .with_role("worker")
        .with_state("model", Model(), role="worker")
        .with_operator("source", Source(), role="worker")
        .with_operator("blur", Blur(), role="worker")
        .with_operator("compute", Compute(), role="worker")
        .connect("source", "blur")
        .connect("blur", "compute")
    )


def exchange() -> LogicalGraph:
    """The pipeline, whose gradients are sent to all other workers and applied there."""
    return (
        pipeline()
        .with_operator("send", Send(), role="worker")
        .with_operator("receive", Receive(), role="worker")
        .with_operator("apply", Apply(), role="worker")
        .connect("compute.gradients", "send")
        .connect("send", "receive", route=Route.ONE_TO_ALL)
        .connect("receive", "apply")
    )


def edges(graph: LogicalGraph) -> set[str]:
    """The names of all edges."""
    return {edge.name for edge in graph.edges}
