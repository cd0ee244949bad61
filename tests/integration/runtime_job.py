"""A small job for the tests of the runtime: every node sends numbers to every node, which reports their sum."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.message import Message, Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Artifact, Emissions, EndOfData, Operator
from dataflow.ports import In, Out


@dataclass(frozen=True, slots=True)
class Number(Message):
    value: int


@dataclass(frozen=True, slots=True)
class Total(Message):
    accuracy: float
    received: int
    constant: int = 0


class Numbers(Operator):
    """0, 1, ... `count` - 1, one every `pause_s` seconds, or until there is a file `ends`."""

    source = True
    count: int
    pause_s: float = 0.0
    ends: str = ""
    numbers = Out(Number)

    def process(self, tick: Tick) -> Emissions:
        if tick.step >= self.count or (self.ends and os.path.exists(self.ends)):
            yield EndOfData()
            return
        time.sleep(self.pause_s)
        yield self.numbers(Number(tick.step))


class Send(Operator):
    pool = "network"
    sends = True
    numbers = In(Number)
    sent = Out(Number)

    def process(self, number: Number) -> Emissions:
        yield self.sent(number)


class Receive(Operator):
    """Reports a message for every number and keeps an artifact at the end; may do harm at one number on node 1."""

    receives = True
    harm: str = ""
    at: int = -1
    numbers = In(Number)
    totals = Out(Total, reported=True)

    def open(self, node: NodeContext) -> None:
        print(f"opened on {node.name}")
        print(f"complained on {node.name}", file=sys.stderr)
        if self.harm == "open" and node.index == 1:
            raise ValueError("no data here")

    def process(self, number: Number, node: NodeContext) -> Emissions:
        if self.harm and node.index == 1 and number.value == self.at:
            self.do_harm()
        yield self.totals(Total(number.value / 100, number.value + 1))

    def on_end(self, node: NodeContext) -> Emissions:
        yield Artifact(f"node-{node.index}/result.bin", bytes(3_000_000 + node.index))

    def do_harm(self) -> None:
        if self.harm == "raise":
            raise ValueError("thirteen")  # the line that the error names
        if self.harm == "kill":
            print("about to die", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if self.harm == "spawn":
            subprocess.Popen(["sleep", "1000"])
        if self.harm == "hang":
            time.sleep(1000)
        if self.harm == "spin":  # and keeps the interpreter
            sys.setswitchinterval(1000)
            while True:
                pass


def build(count: int = 10, pause_s: float = 0.0, harm: str = "", at: int = -1, ends: str = "") -> LogicalGraph:
    return (
        LogicalGraph(name="numbers")
        .with_role("worker")
        .with_operator("source", Numbers(count=count, pause_s=pause_s, ends=ends), role="worker")
        .with_operator("send", Send(), role="worker")
        .with_operator("receive", Receive(harm=harm, at=at), role="worker")
        .connect("source", "send")
        .connect("send", "receive", route=Route.ONE_TO_ALL, loopback=True)
    )
