"""How the nodes of a job are doing, from the statistics that they told last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dataflow.reports import NodeStatistics, rates_between, samples_named

RECENT = 4
"""So many of a node's statistics are looked at: three whiles of about a second each lie between them."""


def node_name(names: Sequence[str], node: int) -> str:
    """Name of a node, of the names by number; one made of its number where there is none."""
    return names[node] if node < len(names) else f"node-{node}"


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """What the nodes of a job have told of themselves.

    Args:
        id: of the job.
        name: of the job.
        node_names: by node number.
        told: the newest statistics of each node, by its number, oldest first; at least one of each.
    """

    id: str
    name: str
    node_names: tuple[str, ...]
    told: Mapping[int, Sequence[NodeStatistics]]

    def node_name(self, node: int) -> str:
        """Name of a node."""
        return node_name(self.node_names, node)


@dataclass(frozen=True, slots=True)
class Condition:
    """How a node was between the oldest and the newest of its statistics; if there is only one, since the start.

    Args:
        name: of the node.
        seconds: how long that was.
        gradients_per_s: gradients finished per second.
        computing: share of the time in which the compute pool's threads computed, from 0.
        blocked: share in which its `ready` predicates held it back.
        idle: share in which it did neither.
        cpu: processor seconds of its process per second; None if unknown.
        sent_nbytes_s: bytes per second that peers have acknowledged; None if unknown, or nothing was ever sent.
        goodput_nbytes_s: bytes per second while any of its links was busy; None if none was.
        p: partitions, as sampled by the operator that chooses them; None if none does.
        every: gradients of a round, likewise.
        predicted_nbytes_s: bytes per second that this choice is to send, likewise.
        compression: how many times as large as codes what they stand for is, as their sender samples it.
        poisoned: gradients and fragments since the start that were not finite, and counted as zeros; None if none was.
        lag: updates between a gradient's weights and those that it was applied to, likewise.
        gap: how far these were apart, likewise.
        normalised_gap: the gap over the gradient's norm, likewise.
    """

    name: str
    seconds: float
    gradients_per_s: float
    computing: float
    blocked: float
    idle: float
    cpu: float | None = None
    sent_nbytes_s: float | None = None
    goodput_nbytes_s: float | None = None
    p: float | None = None
    every: float | None = None
    predicted_nbytes_s: float | None = None
    compression: float | None = None
    poisoned: int | None = None
    lag: float | None = None
    gap: float | None = None
    normalised_gap: float | None = None


def group(statistics: Iterable[NodeStatistics]) -> dict[int, list[NodeStatistics]]:
    """Statistics by node; those of one node in the order in which they are given."""
    told: dict[int, list[NodeStatistics]] = {}
    for each in statistics:
        told.setdefault(each.node, []).append(each)
    return dict(sorted(told.items()))


def conditions(job: MeasuredJob) -> list[Condition]:
    """How every node was lately, in the nodes' order; those that have not run yet are left out."""
    return [
        condition(job.node_name(node), told[0] if len(told) > 1 else NodeStatistics(node), told[-1])
        for node, told in job.told.items()
        if told[-1].running_s > 0.0
    ]


def condition(name: str, before: NodeStatistics, after: NodeStatistics) -> Condition:
    """How a node was between two of its statistics, which lie some time apart."""
    rates = rates_between(before, after)
    seconds = rates.seconds
    computing = (after.computing_s - before.computing_s) / after.compute_tasks / seconds if seconds else 0.0
    blocked = rates.blocked_s / seconds if seconds else 0.0
    cpu_before_s = before.processor.process if before.processor else 0.0
    return Condition(
        name=name,
        seconds=seconds,
        gradients_per_s=rates.steps / seconds if seconds else 0.0,
        computing=computing,
        blocked=blocked,
        idle=max(0.0, 1.0 - computing - blocked),
        cpu=(after.processor.process - cpu_before_s) / seconds if after.processor and seconds else None,
        sent_nbytes_s=rates.sent_nbytes / seconds if after.links and seconds else None,
        goodput_nbytes_s=rates.goodput if rates.busy_s else None,
        p=_newest(after, "p"),
        every=_newest(after, "every"),
        predicted_nbytes_s=_newest(after, "predicted_nbytes_s"),
        compression=_newest(after, "compression_ratio"),
        lag=_newest(after, "lag"),
        gap=_newest(after, "gap"),
        normalised_gap=_newest(after, "normalised_gap"),
        poisoned=poisoned([after]) or None,
    )


def poisoned(statistics: Iterable[NodeStatistics]) -> int:
    """Gradients and fragments that were not finite, and counted as zeros."""
    return sum(sample.count for sample in samples_named(statistics, "poisoned_gradients", "poisoned_fragments"))


def _newest(statistics: NodeStatistics, name: str) -> float | None:
    """The newest sample of this name, of whichever operator."""
    return next((sample.last for sample in samples_named([statistics], name)), None)
