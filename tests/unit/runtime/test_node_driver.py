"""The driver of a node: what of its work runs on the event loop."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from dataflow.clock import SystemClock
from dataflow.graph.logical import LogicalGraph
from dataflow.message import Message, Tick
from dataflow.operators_api import Emissions, EndOfData, Operator
from dataflow.plan.compile import compile_graph
from dataflow.ports import In, Out
from dataflow.runtime.node_driver import IN_A_ROW, NodeDriver
from dataflow.transport.memory import MemoryNetwork

LIMIT = 2_000


class Numbered(Message):
    """A message without content."""


class Quick(Operator):
    """Messages that take no time to make."""

    source = True
    numbers = Out(Numbered)

    def process(self, tick: Tick) -> Emissions:
        yield self.numbers(Numbered()) if tick.step < LIMIT else EndOfData()


class Drop(Operator):
    """Takes messages and does nothing."""

    pool = "network"
    numbers = In(Numbered)

    def process(self, number: Numbered) -> Emissions:
        del number
        yield from ()


def test_short_tasks_do_not_keep_the_loop_from_everything_else() -> None:
    graph = (
        LogicalGraph(name="quick")
        .with_role("worker")
        .with_operator("quick", Quick(), role="worker")
        .with_operator("drop", Drop(), role="worker")
        .connect("quick", "drop")
    )

    async def tasks_between_turns() -> list[int]:
        driver = NodeDriver(
            compile_graph(graph, 1),
            0,
            job="job",
            incarnation=0,
            network=MemoryNetwork(),
            clock=SystemClock(),
            report=lambda _report: None,
            progress=lambda: None,
        )
        await driver.prepare()
        driver.start()
        waiting = asyncio.ensure_future(driver.wait())
        counts = [0]
        while not waiting.done():
            await asyncio.sleep(0)
            counts.append(driver.statistics().tasks)
        await driver.close()
        assert (await waiting).tasks > 2 * LIMIT
        return [after - before for before, after in pairwise(counts)]

    # A turn of the loop may also take in what two pools' threads have brought back, each with its own row.
    assert max(asyncio.run(tasks_between_turns())) <= 2 * (IN_A_ROW + 1)
