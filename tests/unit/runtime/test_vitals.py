from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

import pytest

from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.message import Message, Tick
from dataflow.operators_api import Emissions, EndOfData, Operator
from dataflow.plan.compile import compile_graph
from dataflow.plan.physical import PhysicalPlan
from dataflow.ports import In, Out
from dataflow.reports import LinkRates, LinkStatistics, NodeStatistics, ProcessorTimes, Rates
from dataflow.runtime import vitals
from dataflow.runtime.vitals import Kind, Vitals, chain_kinds, processor_times
from tests.idle import Idle, IdleGather


@dataclass(frozen=True, slots=True)
class Number(Message):
    value: int


class Source(Operator):
    source = True
    numbers = Out(Number)

    def process(self, tick: Tick) -> Emissions:
        yield EndOfData()


class Compute(IdleGather):
    numbers = In(Number)
    sums = Out(Number)


class Send(Idle):
    pool = "network"
    sends = True
    sums = In(Number)
    sent = Out(Number)


class Receive(Idle):
    pool = "network"
    arriving = In(Number)
    got = Out(Number)


class Keep(Idle):
    pool = "network"
    got = In(Number, capacity=1)


def plan(nodes: int) -> PhysicalPlan:
    graph = (
        LogicalGraph(name="sums")
        .with_role("worker")
        .with_operator("source", Source(), role="worker")
        .with_operator("compute", Compute(), role="worker")
        .with_operator("send", Send(), role="worker")
        .with_operator("receive", Receive(), role="worker")
        .with_operator("keep", Keep(), role="worker")
        .connect("source", "compute")
        .connect("compute", "send")
        .connect("send", "receive", route=Route.ONE_TO_ALL)
        .connect("receive", "keep")
    )
    return compile_graph(graph, nodes)


def test_chain_kinds_tell_chains_that_exchange_from_the_node_s_own() -> None:
    assert chain_kinds(plan(2), 1) == {
        "source": "other",
        "compute": "compute",
        "send": "exchange",
        "receive": "exchange",
    }


def test_chain_kinds_on_one_node_have_no_exchange() -> None:
    assert set(chain_kinds(plan(1), 0).values()) == {"compute", "other"}


KINDS: dict[str, Kind] = {"compute": "compute", "send": "exchange", "source": "other"}


@pytest.mark.parametrize(
    ("tasks", "compute_s", "exchange_s"),
    [
        # The loop and gRPC have what is left of the process: 10 - 6 - 1 - 2.
        ({}, 6.0, 1.0),
        ({("compute", "compute"): 7.0}, 6.0, 1.0),
        # The exchange's tasks are its own wherever they run, ...
        ({("compute", "send"): 0.5}, 5.5, 1.5),
        ({("engine", "send"): 0.5}, 6.0, 1.5),
        ({("engine", "send"): 30.0}, 6.0, 3.0),
        ({("loop", "send"): 0.5}, 6.0, 1.0),
        # ... and other tasks are not.
        ({("loop", "source"): 0.25}, 6.0, 0.75),
        ({("loop", "compute"): 0.25}, 6.25, 0.75),
        ({("compute", "source"): 0.5}, 5.5, 1.0),
        # A network thread's second is divided as its tasks' three seconds are.
        ({("network", "source"): 2.0, ("network", "send"): 1.0}, 6.0, 1.0 + 1.0 / 3.0),
        ({("loop", "source"): 30.0}, 6.0, 0.0),
    ],
)
def test_processor_times_are_shared_out(
    tasks: dict[tuple[str, str], float], compute_s: float, exchange_s: float
) -> None:
    taken = {"process": 10.0, "compute": 6.0, "network": 1.0, "engine": 2.0}
    found = processor_times(taken, tasks, KINDS)
    assert found.process == 10.0
    assert found.compute == pytest.approx(compute_s)
    assert found.exchange == pytest.approx(exchange_s)


def test_processor_times_without_an_exchange_have_none() -> None:
    taken = {"process": 10.0, "compute": 6.0, "network": 1.0, "engine": 2.0}
    assert processor_times(taken, {}, {"compute": "compute"}) == ProcessorTimes(10.0, 6.0, 0.0)


class Runner:
    """Stands in for a runner: 4 steps and a quarter of a second on compute threads between two readings."""

    def __init__(self) -> None:
        self.asked = self.read = 0
        self.task_s: dict[tuple[str, str], float] = {}

    async def statistics(self) -> NodeStatistics:
        self.asked += 1
        return NodeStatistics(1, steps=4 * self.asked, running_s=0.5 * self.asked, waiting_s=0.125 * self.asked)

    def processor_s(self) -> dict[str, float]:
        self.read += 1
        return {"compute": 0.25 * self.read, "network": 0.0, "engine": 0.0}


class Links:
    """Stands in for links that carry 100 bytes between two readings."""

    def __init__(self, here: bool = False) -> None:
        self.read, self.here = 0, here

    def stay_here(self) -> bool:
        return self.here

    def carried(self) -> tuple[dict[int, LinkStatistics], float]:
        self.read += 1
        link = LinkStatistics(100 * self.read, 2 * self.read, 0.125 * self.read, 0.5 * self.read)
        return {0: link}, 0.25 * self.read


@pytest.mark.parametrize("here", [False, True])
def test_vitals_tell_the_rates_of_every_interval_until_they_are_stopped(
    monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    """Among nodes of one machine no link is busy."""
    monkeypatch.setattr(vitals, "INTERVAL_S", 0.001)
    told: list[Rates] = []

    async def go() -> NodeStatistics:
        measured = Vitals(plan(2), 1, cast(Any, Runner()), cast(Any, Links(here)), told.append)
        measured.start()
        while len(told) < 3:
            await asyncio.sleep(0.001)
        measured.stop()
        heard = len(told)
        await asyncio.sleep(0.01)
        assert len(told) == heard
        return await measured.statistics()

    statistics = asyncio.run(go())
    assert told[1].exchange_s >= 0.0
    assert (told[1].seconds, told[1].steps, told[1].compute_s, told[1].blocked_s) == (0.5, 4, 0.25, 0.125)
    assert (told[1].busy_s, told[1].links) == (0.0 if here else 0.25, {0: LinkRates(100, 0.125, 0.25)})
    assert statistics.links_busy_s is not None
    assert statistics.links_busy_s > 0.0
    assert told[1].sent_nbytes == 100
    assert statistics.links[0].goodput == 800.0
    assert statistics.processor is not None
    assert 0.0 < statistics.processor.process < 10.0


def test_vitals_that_break_say_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vitals, "INTERVAL_S", 0.001)

    def fail(_: Rates) -> None:
        what = "boom"
        raise ZeroDivisionError(what)

    async def go() -> str:
        shown: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: shown.set_result(context["message"]))
        measured = Vitals(plan(2), 1, cast(Any, Runner()), cast(Any, Links()), fail)
        measured.start()
        async with asyncio.timeout(60):
            return await shown

    assert asyncio.run(go()) == "the node measures itself no more: ZeroDivisionError('boom')"


def test_vitals_before_the_start_are_what_the_engine_counted() -> None:
    async def go() -> NodeStatistics:
        return await Vitals(plan(2), 1, cast(Any, Runner()), cast(Any, Links()), lambda _: None).statistics()

    assert asyncio.run(go()) == NodeStatistics(1, steps=4, running_s=0.5, waiting_s=0.125)
