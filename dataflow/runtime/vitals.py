"""What a node measures of itself while it runs: where its processor time goes, how fast it is, what its links carry.

Tasks are not timed on the processor one by one, which would cost more than the short ones among them. Processor time is
read of threads, a few times a second; what tasks of different kinds took of one thread is told by the seconds that they
ran there.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, TypeAlias

from dataflow.plan.physical import PhysicalPlan
from dataflow.reports import NodeStatistics, ProcessorTimes, Rates, rates_between
from dataflow.runtime.engine_runner import EngineRunner
from dataflow.transport.links import Links

INTERVAL_S = 0.5
"""Seconds between two measurements."""

Kind: TypeAlias = Literal["compute", "exchange", "other"]
"""What a chain is for: the work of the compute pool, messages from or to other nodes, or anything else."""


class Vitals:
    """Measures a node of a job from `start` to `stop`, on its event loop.

    Args:
        plan: the physical plan.
        node: this node's number.
        runner: runs its engine.
        links: its links.
        on_rates: told what was measured, every `INTERVAL_S` seconds.
    """

    def __init__(
        self, plan: PhysicalPlan, node: int, runner: EngineRunner, links: Links, on_rates: Callable[[Rates], None]
    ) -> None:
        self._runner, self._links, self._on_rates = runner, links, on_rates
        self._kinds = chain_kinds(plan, node)
        self._before = NodeStatistics(node)
        self._taken: dict[str, float] = {}
        self._task_s: dict[tuple[str, str], float] = {}
        self._processor: ProcessorTimes | None = None
        self._measuring: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin: the node is about to run."""
        self._taken, self._processor = self._read_processor(), ProcessorTimes()
        self._measuring = asyncio.ensure_future(self._measure())
        self._measuring.add_done_callback(_tell_failure)

    def stop(self) -> None:
        """Tell no more rates."""
        if self._measuring is not None:
            self._measuring.cancel()

    async def statistics(self) -> NodeStatistics:
        """What has been counted and measured since the start."""
        counted = await self._runner.statistics()
        if self._processor is None:
            return counted
        self._processor = self._processor.plus(self._newly_taken())
        links, busy_s = self._links.carried()
        return replace(counted, processor=self._processor, links_busy_s=busy_s, links=links)

    async def _measure(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            before, self._before = self._before, await self.statistics()
            rates = rates_between(before, self._before)
            self._on_rates(replace(rates, busy_s=0.0) if self._links.stay_here() else rates)

    def _newly_taken(self) -> ProcessorTimes:
        """What was taken since the last time."""
        taken, self._taken = self._taken, self._read_processor()
        task_s, self._task_s = self._task_s, self._runner.task_s.copy()
        return processor_times(
            {name: total_s - taken[name] for name, total_s in self._taken.items()},
            {key: total_s - task_s.get(key, 0.0) for key, total_s in self._task_s.items()},
            self._kinds,
        )

    def _read_processor(self) -> dict[str, float]:
        return {**self._runner.processor_s(), "process": time.process_time()}


def _tell_failure(measuring: asyncio.Task[None]) -> None:
    """Show at once, in the job's log, why a node measures no more."""
    error = None if measuring.cancelled() else measuring.exception()
    if error is not None:
        what = f"the node measures itself no more: {error!r}"
        measuring.get_loop().call_exception_handler({"message": what, "exception": error})


def chain_kinds(plan: PhysicalPlan, node: int) -> dict[str, Kind]:
    """What every chain of a node is for, by the chain's id."""
    members, exchanging = plan.members(), set[str]()
    for edge in plan.stream_edges().values():
        sources, targets = plan.graph.ends(edge, members)
        if node in sources and any(target != node for target in targets):
            exchanging.add(edge.source)
        if node in targets and any(source != node for source in sources):
            exchanging.add(edge.target)
    kinds: dict[str, Kind] = {}
    for chain in plan.chains_on(node):
        aside: Kind = "exchange" if exchanging.intersection(chain.operators) else "other"
        kinds[chain.head] = "compute" if chain.pool == "compute" else aside
    return kinds


def processor_times(
    taken_s: Mapping[str, float], task_s: Mapping[tuple[str, str], float], kinds: Mapping[str, Kind]
) -> ProcessorTimes:
    """What a process has taken of the processor, and what for.

    Threads of the compute pool and the engine's own belong to the node's own work, but for the exchange's tasks that
    they ran. All the rest belongs to the exchange, the event loop and gRPC's threads among it, but for other tasks.
    A network thread's time is divided as its tasks' seconds are, since it may have waited in the middle of one.

    Args:
        taken_s: processor seconds of the ``process`` and of its ``compute``, ``network`` and ``engine`` threads.
        task_s: seconds of tasks by where they ran (as in `taken_s`, or ``loop``) and chain.
        kinds: what chains are for, by id.
    """
    spent: defaultdict[tuple[str, str], float] = defaultdict(float)
    for (place, chain), seconds in task_s.items():
        spent[place, kinds[chain]] += seconds
    own, aside = ("compute", "engine"), ("network", "loop")
    compute_s = taken_s["compute"] - spent["compute", "exchange"] - spent["compute", "other"]
    compute_s += sum(spent[place, "compute"] for place in ("engine", *aside))
    exchange_s = 0.0
    if "exchange" in kinds.values():
        exchange_s = taken_s["process"] - sum(taken_s[place] for place in (*own, "network"))
        exchange_s += sum(min(taken_s[place], spent[place, "exchange"]) for place in own)
        exchange_s -= spent["loop", "compute"] + spent["loop", "other"]
        in_network_s = sum(spent["network", kind] for kind in ("compute", "exchange", "other"))
        if in_network_s:
            exchange_s += taken_s["network"] * spent["network", "exchange"] / in_network_s
    return ProcessorTimes(taken_s["process"], max(0.0, compute_s), max(0.0, exchange_s))
