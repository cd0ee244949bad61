"""A coordinator whose job runs, and what it is told, for tests of what it decides."""

from __future__ import annotations

import random
from typing import Any

from dataflow.engine import coordination as co
from dataflow.engine.coordinator import JobCoordinator
from dataflow.engine.job_life import JobState
from dataflow.engine.membership import Members
from dataflow.plan.job import StopRules
from dataflow.reports import NodeStatistics

KILLED = "its job process ended by SIGKILL"


class Middle(random.Random):
    """Draws what lies in the middle."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def running(nodes: int = 3, rules: StopRules | None = None, **options: Any) -> JobCoordinator:
    """A job that began to run at second 10."""
    job = JobCoordinator(nodes, rules or StopRules(), rng=Middle(), **options)
    job.handle(co.Placed(tuple(f"n{node}" for node in range(nodes))), 9.0)
    for node in range(nodes):
        job.handle(co.NodePrepared(node, f"host:{node}"), 9.0)
    for node in range(nodes):
        job.handle(co.NodeReady(node), 10.0)
    assert job.state is JobState.RUNNING
    return job


def members(epoch: int, incarnations: dict[int, int], *ended: int) -> Members:
    addresses = {node: f"host:{node + 10 * times}" for node, times in incarnations.items() if node not in ended}
    return Members(epoch, incarnations, addresses, frozenset(ended))


def ended(node: int, epoch: int | None = None) -> co.NodeEnded:
    return co.NodeEnded(node, NodeStatistics(node), epoch)
