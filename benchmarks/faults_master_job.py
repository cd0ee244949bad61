"""The job of faults_master.py: every node multiplies matrices, sends a number to every node, and says when it did."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dataflow import LogicalGraph, Message, NodeContext, Operator, Route, SystemClock, Tick
from dataflow.operators_api import Emissions, EndOfData
from dataflow.ports import In, Out

SIZE = 256


@dataclass(frozen=True, slots=True)
class Number(Message):
    """A number."""

    value: int


@dataclass(frozen=True, slots=True)
class Sum(Message):
    """How many numbers have come, their sum, and seconds on the machine's monotonic clock."""

    received: int
    total: int
    at_s: float


class Numbers(Operator):
    """0, 1, ... `count` - 1, each after a product of matrices."""

    source = True
    count: int
    numbers = Out(Number)

    def process(self, tick: Tick) -> Emissions:
        """The next number."""
        if tick.step >= self.count:
            yield EndOfData()
            return
        matrix = np.full((SIZE, SIZE), 1.0 / SIZE, dtype=np.float32)
        for _ in range(8):
            matrix = matrix @ matrix
        yield self.numbers(Number(tick.step))


class Send(Operator):
    """Passes numbers on."""

    pool = "network"
    sends = True
    numbers = In(Number)
    sent = Out(Number)

    def process(self, number: Number) -> Emissions:
        """The number."""
        yield self.sent(number)


class Receive(Operator):
    """Reports how many numbers have come, their sum, and when, every `every` of them and at the end."""

    receives = True
    every: int
    numbers = In(Number)
    sums = Out(Sum, reported=True)

    def open(self, node: NodeContext) -> None:
        """Nothing has come yet."""
        self._received, self._total, self._clock = 0, 0, SystemClock()

    def process(self, number: Number) -> Emissions:
        """The sum, now and then."""
        self._received, self._total = self._received + 1, self._total + number.value
        if self._received % self.every == 0:
            yield self.sums(Sum(self._received, self._total, self._clock.now()))

    def on_end(self) -> Emissions:
        """The whole sum."""
        yield self.sums(Sum(self._received, self._total, self._clock.now()))


def build(count: int, every: int) -> LogicalGraph:
    return (
        LogicalGraph(name="sums")
        .with_role("worker")
        .with_operator("source", Numbers(count=count), role="worker")
        .with_operator("send", Send(), role="worker")
        .with_operator("receive", Receive(every=every), role="worker")
        .connect("source", "send")
        .connect("send", "receive", route=Route.ONE_TO_ALL, loopback=True)
    )
