"""Audit: whether nodes that share parameters over a tree all end with the sum of all updates, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dataflow import JobSpec, MemoryDriver, State, compile_graph
from dataflow.errors import ConfigError, JobFailedError
from operators.shared_replica_state import SharedReplicaState

_ROUNDINGS: Final = 64
"""Roundings of float32 that two sums of the same x may differ by, each of the largest weight: one for each term, and
those of the replica."""


@dataclass(frozen=True)
class Audit:
    """What nodes hold once nothing is under way.

    Args:
        updates: by node, how many it has pushed.
        apart: the largest difference between a weight of any replica and the model at the start plus all x.
        allowed: what rounding explains.
    """

    updates: tuple[int, ...]
    apart: float
    allowed: float


def audit(spec: JobSpec, *, order: int | None = None) -> Audit:
    """Run a job in memory to its end, and compare what its nodes hold.

    Args:
        spec: the job.
        order: seed by which events come in any order; as they happen if None.

    Raises:
        ConfigError: its nodes share no parameters over a tree.
        JobFailedError: an update is missing somewhere, or counted twice; the message says which.
        AkoError: an operator raised.
    """
    plan = compile_graph(spec.graph, spec.nodes, seed=spec.seed)
    driver = MemoryDriver(plan, order=None if order is None else np.random.default_rng(order))
    states = [_shared(list(node.states.values())) for node in driver.run.nodes]
    start = states[0].current.astype(np.float64)
    driver.execute()
    return compare(states, start)


def compare(states: Sequence[SharedReplicaState], start: np.ndarray) -> Audit:
    """Compare replicas with the model at the start plus all x.

    Args:
        states: of every node.
        start: (weights,) float64, the model at the start.

    Raises:
        JobFailedError: an update is missing somewhere, or counted twice; the message says which.
    """
    owns = [state.sharing.own for state in states]
    counts = np.sum([own.counts for own in owns], axis=0)
    for state in states:
        wrong = np.flatnonzero(state.sharing.counts != counts)
        if wrong.size:
            maker, have = int(wrong[0]), int(state.sharing.counts[wrong[0]])
            what = f"node {state.sharing.node} has {have} updates of node {maker}, which has pushed {counts[maker]}"
            raise JobFailedError(what)
    oracle = start + np.sum([own.values for own in owns], axis=0, dtype=np.float64)
    apart = max(float(np.abs(state.current - oracle).max()) for state in states)
    allowed = _ROUNDINGS * float(np.finfo(np.float32).eps) * max(1.0, float(np.abs(oracle).max()))
    if not apart <= allowed:
        what = f"a weight differs by {apart:g} from the sum of all updates, and rounding explains {allowed:g}"
        raise JobFailedError(what)
    return Audit(tuple(int(count) for count in counts), apart, allowed)


def _shared(states: Sequence[State]) -> SharedReplicaState:
    found = next((state for state in states if isinstance(state, SharedReplicaState)), None)
    if found is None:
        what = "there is nothing to audit: nodes of this job share no parameters over a tree"
        raise ConfigError(what, fix="leave out --audit")
    return found
