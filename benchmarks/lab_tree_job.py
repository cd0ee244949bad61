"""A job for `lab_tree.py`: nodes that make updates at a pace, share them over a tree, and tell when they have all.

ako lab run benchmarks/lab_tree_job.py topology=star updates=180
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ako_jobs.models import network
from ako_jobs.tree import add_sharing
from dataflow import LogicalGraph, Tick
from dataflow.message import Message
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, EndOfData, Operator
from dataflow.ports import In, Out
from dataflow.state import Writes
from operators.contribution import Contribution
from operators.layout import Layout
from operators.messages import Gradient
from operators.neighbours import Absorb, Push
from operators.share_clocks import ShareClocks, ShareClocksState
from operators.shared_replica import SharedReplica
from operators.shared_replica_state import SharedReplicaState
from operators.topology import parse_topology


class Config(BaseModel):
    """Settings.

    Args:
        topology: as a tree job's.
        flow: as a tree job's.
        period_s: with flow=period, seconds between two sums for a neighbour.
        nbytes: of a sum.
        updates: of each node.
        pace_s: seconds between two of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    topology: str = "chain"
    flow: str = "period"
    period_s: float = Field(default=1.0, gt=0)
    nbytes: int = Field(default=240_000, ge=4)
    updates: int = Field(default=180, ge=1)
    pace_s: float = Field(default=1 / 3, ge=0)

    @classmethod
    def parse(cls, settings: dict[str, Any]) -> Self:
        """A configuration of settings as they are typed."""
        return cls.model_validate(settings)


@dataclass(frozen=True, slots=True)
class Have(Message):
    """A node has made its last update (`last`), or has come to know `updates` of all nodes."""

    last: bool
    updates: int


class Zeros(SharedReplica):
    """A shared replica that begins with zeros."""

    def create(self, node: NodeContext) -> SharedReplicaState:
        """No updates yet."""
        return self.begin(np.zeros(self.layout.n_weights, np.float32), node)


@dataclass(frozen=True, slots=True)
class Due(Message):
    """It is time for an update."""


class Pace(Operator):
    """Says when it is time for an update; in a pool of its own, so that whoever shares goes on while it waits."""

    source = True
    updates: int
    pace_s: float
    due = Out(Due)

    def process(self, tick: Tick) -> Emissions:
        """Wait until it is time."""
        if tick.step == self.updates:
            yield EndOfData()
            return
        time.sleep(self.pace_s)
        yield self.due(Due())


class Make(Operator):
    """Makes an update, as far as sharing goes: ones."""

    pool = "network"
    n_weights: int
    updates: int
    due = In(Due)
    gradients = Out(Gradient)
    have = Out(Have, reported=True)
    replica = Writes()
    clocks = Writes()

    def process(self, _due: Due, replica: SharedReplicaState, clocks: ShareClocksState) -> Emissions:
        """Make one, and say so if it is the last."""
        clocks.made += 1
        update = np.ones(self.n_weights, np.float32)
        replica.descend(update, 1.0, scale=True)
        yield self.gradients(Gradient(clocks.made, update, 1))
        if clocks.made == self.updates:
            yield self.have(Have(last=True, updates=clocks.made))


class AbsorbAndTell(Absorb):
    """Absorbs, and tells how many updates have come, whenever that are more."""

    have = Out(Have, reported=True)

    def process(self, contribution: Contribution, replica: SharedReplicaState, clocks: ShareClocksState) -> Emissions:
        """What is absorbed."""
        before = int(replica.sharing.counts.sum())
        yield from super().process(contribution, replica, clocks)
        after = int(replica.sharing.counts.sum())
        if after > before:
            yield self.have(Have(last=False, updates=after))


def build(config: Config) -> LogicalGraph:
    """Nodes that make updates and share them."""
    n_weights = config.nbytes // 4
    shared: dict[str, Any] = {"flow": config.flow}
    replica = Zeros(
        model=network("mlp", "digits", "uniform"),
        topology=parse_topology(config.topology),
        layout=Layout.of(n_weights, cells=1),
        **shared,
    )
    graph = (
        LogicalGraph(name="lab_tree")
        .with_role("worker")
        .with_state("replica", replica, role="worker")
        .with_state("clocks", ShareClocks(), role="worker")
        .with_operator("pace", Pace(updates=config.updates, pace_s=config.pace_s), role="worker")
        .with_operator("compute", Make(n_weights=n_weights, updates=config.updates), role="worker")
        .connect("pace", "compute")
    )
    period_s = config.period_s if config.flow == "period" else 0.0
    return add_sharing(graph, Push(), AbsorbAndTell(period_s=period_s))
