"""Clusters of real processes for tests of what jobs do on them: what these import is imported once for all."""

from __future__ import annotations

from typing import Any

from dataflow import LocalCluster
from dataflow.runtime.cluster_processes import Nursery

NURSERY = Nursery()
"""What their processes are forked from, in the environment that this one has when it begins."""


def shared_cluster(nodes: int, **options: Any) -> LocalCluster:
    """A cluster of nodes with one compute task each, whose processes have imported what workers need.

    Args:
        nodes: number of agents.
        options: others of `LocalCluster`.
    """
    return LocalCluster(nodes, tasks=1, ahead=("ako_jobs.worker",), nursery=NURSERY, **options)
