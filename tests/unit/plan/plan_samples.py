"""Operators, and three arrangements of them, that the tests of plans share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.message import Message, Sharded
from dataflow.ports import In, Out
from dataflow.state import Reads, StateElement, StateKind, Writes
from tests.idle import Idle, IdleGather


@dataclass(frozen=True, slots=True)
class Batch(Sharded):
    images: np.ndarray


@dataclass(frozen=True, slots=True)
class Gradient(Message):
    part: int
    values: np.ndarray


class Model(StateElement):
    kind = StateKind.PARTIAL


class Shard(StateElement):
    kind = StateKind.PARTITIONED


class Clocks(StateElement):
    nodes: int = 0


class Source(Idle):
    source = True
    batches = Out(Batch)


class Blur(Idle):
    batches = In(Batch)
    blurred = Out(Batch)


class Compute(IdleGather):
    model = Reads()
    live = Writes("model")
    clocks = Reads()
    batches = In(Batch)
    gradients = Out(Gradient)


class Accumulate(Idle):
    gradients = In(Gradient)
    windows = Out(Gradient)


class Partition(Idle):
    gradients = In(Gradient)
    fragments = Out(Gradient)


class Send(Idle):
    pool = "network"
    sends = True
    gradients = In(Gradient, key="part")
    fragments = Out(Gradient)


class Receive(Idle):
    pool = "network"
    receives = True
    fragments = In(Gradient)
    gradients = Out(Gradient)


class Apply(Idle):
    model = Writes()
    clocks = Writes()
    gradients = In(Gradient)
    applied = Out(Gradient)


def worker(name: str) -> LogicalGraph:
    """A role of workers that compute gradients."""
    return (
        LogicalGraph(name=name)
        .with_role("worker", "all" if name != "parameter-server" else "rest")
        .with_state("model", Model(), role="worker")
        .with_state("clocks", Clocks(), role="worker")
        .with_operator("source", Source(), role="worker")
        .with_operator("compute", Compute(), role="worker")
        .connect("source", "compute")
    )


def exchange(graph: LogicalGraph, last: str) -> LogicalGraph:
    """The workers' graph whose `last` operator's output goes to all other workers."""
    return (
        graph.with_operator("send", Send(), role="worker")
        .with_operator("receive", Receive(), role="worker")
        .with_operator("apply", Apply(), role="worker")
        .connect(last, "send")
        .connect("send", "receive", route=Route.BY_DESTINATION)
        .connect("receive", "apply")
    )


def ako() -> LogicalGraph:
    """Accumulated gradients, partitioned, to every other worker."""
    graph = (
        worker("ako")
        .with_operator("accumulate", Accumulate(), role="worker")
        .with_operator("partition", Partition(), role="worker")
        .connect("compute", "accumulate")
        .connect("accumulate", "partition")
    )
    return exchange(graph, "partition")


def all_to_all() -> LogicalGraph:
    """Whole gradients to every other worker."""
    return exchange(worker("all-to-all"), "compute")


def parameter_server() -> LogicalGraph:
    """Gradients to servers that own a part of the model each, and the parts back."""
    return (
        worker("parameter-server")
        .with_role("server", 2)
        .with_state("shard", Shard(), role="server")
        .with_state("ticks", Clocks(), role="server")
        .with_operator("partition", Partition(), role="worker")
        .with_operator("send", Send(), role="worker")
        .with_operator("serve", Receive(), role="server")
        .with_operator("update", Apply(), role="server", bind={"model": "shard", "clocks": "ticks"})
        .with_operator("reply", Send(), role="server")
        .with_operator("receive", Receive(), role="worker")
        .with_operator("apply", Apply(), role="worker")
        .connect("compute", "partition")
        .connect("partition", "send")
        .connect("send", "serve", route=Route.BY_OWNER, key="part")
        .connect("serve", "update")
        .connect("update", "reply")
        .connect("reply", "receive", route=Route.ONE_TO_ALL)
        .connect("receive", "apply")
    )
