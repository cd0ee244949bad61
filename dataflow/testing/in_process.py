"""A plan on several nodes in one process: real engines, task pools and links, over any network.

What differs from a cluster is that there is no master: all nodes are started together and share one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dataflow.clock import SystemClock
from dataflow.engine.events import Snapshot
from dataflow.engine.loading import LoadedNode
from dataflow.engine.membership import Members
from dataflow.errors import WireError
from dataflow.operators_api import Artifact
from dataflow.plan.physical import PhysicalPlan
from dataflow.reports import NodeStatistics, OperatorReport
from dataflow.runtime.control_groups import usable_cores
from dataflow.runtime.node_driver import NodeDriver
from dataflow.runtime.trouble import LinkBroken, Paused, Trouble
from dataflow.runtime.watchdog import TaskBoard
from dataflow.transport.base import Network

_Result = TypeVar("_Result")


@dataclass(repr=False)  # asyncio.run makes one of what it returns, and states are large
class InProcessRun:
    """A finished run.

    Args:
        nodes: the loaded nodes, with their live state.
        statistics: of every node.
        reports: (node, report) in the order they came.
        artifacts: files of the job's results by name.
        snapshots: what nodes have kept of themselves, in the order they came.
    """

    nodes: list[LoadedNode] = field(default_factory=list)
    statistics: list[NodeStatistics] = field(default_factory=list)
    reports: list[tuple[int, OperatorReport]] = field(default_factory=list)
    artifacts: dict[str, bytes] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)

    def note(self, node: int, report: OperatorReport | Artifact | Snapshot) -> None:
        """Keep what a node reports."""
        if isinstance(report, Artifact):
            self.artifacts[report.name] = report.data
        elif isinstance(report, Snapshot):
            self.snapshots.append(report)
        else:
            self.reports.append((node, report))


def run_in_process(plan: PhysicalPlan, make_network: Callable[[int], Network], *, record: bool = False) -> InProcessRun:
    """Run a plan to its end.

    Args:
        plan: the physical plan.
        make_network: the network as a node sees it, by the node's number; may be the same one for all.
        record: note the events that every engine is given; the record is among the artifacts.

    Raises:
        AkoError: what failed a node.
    """
    return asyncio.run(_run(plan, make_network, record=record))


async def _run(plan: PhysicalPlan, make_network: Callable[[int], Network], *, record: bool) -> InProcessRun:
    run = InProcessRun()
    broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def hear(node: int, report: OperatorReport | Artifact | Trouble) -> None:
        if isinstance(report, Paused):  # nobody is buried here
            drivers[node].resume(report.number)
        elif not isinstance(report, LinkBroken):
            run.note(node, report)
        elif not broken.done():
            broken.set_exception(WireError(report.reason, where=f"node {plan.nodes[node].name}"))

    networks = [make_network(node.index) for node in plan.nodes]
    drivers = [
        NodeDriver(
            plan,
            node.index,
            job="in-process",
            incarnation=0,
            network=networks[node.index],
            clock=SystemClock(),
            report=lambda report, index=node.index: hear(index, report),  # type: ignore[misc]
            board=TaskBoard.unread(),
            cores=max(1, usable_cores() // len(plan.nodes)),
            record=record,
        )
        for node in plan.nodes
    ]
    tasks: list[asyncio.Task[Any]] = []
    try:
        addresses = dict(enumerate([await driver.prepare() for driver in drivers]))
        members = Members(1, dict.fromkeys(addresses, 0), addresses)
        tasks = [asyncio.create_task(driver.connect(members)) for driver in drivers]
        await _unless(broken, tasks)
        for driver in drivers:
            driver.start()
        living = [asyncio.create_task(driver.wait()) for driver in drivers]
        tasks += living
        run.statistics = await _unless(broken, living)
        run.nodes = [driver.loaded for driver in drivers if driver.loaded is not None]
    finally:
        for task in tasks:
            task.cancel()
        broken.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(driver.close() for driver in drivers))
        for network in {id(network): network for network in networks}.values():
            await network.close()
    return run


async def _unless(broken: asyncio.Future[None], tasks: Sequence[asyncio.Task[_Result]]) -> list[_Result]:
    """The results of tasks; raises what the first that fails raises, or `broken` does."""
    done = asyncio.gather(*tasks)
    either: list[asyncio.Future[Any]] = [done, broken]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if broken.done():
        done.cancel()
        broken.result()
    return await done
