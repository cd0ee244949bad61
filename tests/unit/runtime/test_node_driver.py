"""What a node's driver does about members that it cannot reach."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dataflow.clock import SystemClock
from dataflow.engine.membership import Members
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.message import Message, Tick
from dataflow.operators_api import Emissions, EndOfData, Operator
from dataflow.plan.compile import compile_graph
from dataflow.ports import In, Out
from dataflow.runtime.node_driver import NodeDriver
from dataflow.runtime.trouble import LinkBroken
from dataflow.runtime.watchdog import TaskBoard
from dataflow.transport.memory import MemoryNetwork


@dataclass(frozen=True, slots=True)
class Number(Message):
    value: int


class Say(Operator):
    source = True
    sends = True
    numbers = Out(Number)

    def process(self, tick: Tick) -> Emissions:
        yield EndOfData()


class Hear(Operator):
    receives = True
    numbers = In(Number)

    def process(self, _number: Number) -> Emissions:
        yield from ()


GRAPH = (
    LogicalGraph(name="numbers")
    .with_role("worker")
    .with_operator("say", Say(), role="worker")
    .with_operator("hear", Hear(), role="worker")
    .connect("say", "hear", route=Route.ONE_TO_ALL)
)


def driver_of(network: MemoryNetwork, told: list[object]) -> NodeDriver:
    return NodeDriver(
        compile_graph(GRAPH, 2),
        0,
        job="job",
        incarnation=0,
        network=network,
        clock=SystemClock(),
        report=told.append,
        board=TaskBoard.unread(),
    )


def test_member_that_cannot_be_reached_is_told_of_and_waited_for_until_the_membership_is_another_one() -> None:
    async def scene() -> list[object]:
        network, told = MemoryNetwork(), list[object]()
        driver = driver_of(network, told)
        address = await driver.prepare()
        members = Members(3, {0: 0, 1: 2}, {0: address, 1: "memory:99"})
        connecting = asyncio.create_task(driver.connect(members))
        async with asyncio.timeout(60):
            while not told:
                await asyncio.sleep(0.01)
            assert not connecting.done()
            await driver.meet(Members(4, {0: 0}, {0: address}))
            await connecting
        await driver.close()
        await network.close()
        return told

    (broken,) = asyncio.run(scene())
    assert isinstance(broken, LinkBroken)
    assert (broken.peer, broken.incarnation) == (1, 2)
    assert "nobody listens at memory:99" in broken.reason


def test_newest_membership_is_the_last_whose_newcomers_the_engine_heard_of_before_it_ended() -> None:
    async def scene() -> list[int]:
        network = MemoryNetwork()
        driver, epochs = driver_of(network, []), list[int]()
        address = await driver.prepare()
        alone, with_other = {0: address}, {0: address, 1: "memory:99"}
        async with asyncio.timeout(60):
            for members in (
                Members(1, {0: 0}, alone),
                Members(2, {0: 0, 1: 1}, with_other),
                Members(3, {0: 0}, alone),
            ):
                await driver.meet(members)
                epochs.append(driver.epoch)
            driver.start()
            await driver.wait()
            await driver.meet(Members(4, {0: 0, 1: 2}, with_other))
            epochs.append(driver.epoch)
        await driver.close()
        await network.close()
        return epochs

    assert asyncio.run(scene()) == [1, 2, 3, 3]
