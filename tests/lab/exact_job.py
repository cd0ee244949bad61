"""A job for labs whose replicas are known: integer updates, about a hundred per second, whose sum every node tells.

As text for `ako run`: ``tests.lab.exact_job:build``.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from pydantic import BaseModel

from dataflow.graph.logical import LogicalGraph
from dataflow.message import Message
from dataflow.operators_api import Emissions, Operator
from dataflow.ports import In, Out
from dataflow.reports import Rates
from dataflow.state import Writes
from operators.clocks import ClocksState
from operators.layout import Layout
from operators.messages import Progress
from operators.partition import LivePartition, RotationState
from operators.vector_state import VectorState
from tests.known_answers.integers import Beat, IntegerGather, integer_gradient, live_graph

WEIGHTS, STEP_S, ENDLESS = 50_000, 0.01, 1 << 40


class Config(BaseModel):
    """No settings."""

    @classmethod
    def parse(cls, settings: dict[str, Any]) -> Self:
        return cls.model_validate(settings)


@dataclass(frozen=True, slots=True)
class Sum(Message):
    """What a replica is in the end, after `made` updates of its own node and all of the others."""

    made: int
    rejected: int
    digest: str


class PacedGather(IntegerGather):
    """Leaves the processor to others for most of each step."""

    progress = Out(Progress)

    def process(self, beat: Beat) -> int:
        time.sleep(STEP_S)
        return beat.shard


@dataclass(frozen=True, slots=True)
class Chosen(Message):
    """What a node chose by a measurement: p r, its span, and when by the clock on the wall that all hosts share."""

    span: int
    wall_s: float


class TellingPartition(LivePartition):
    """Tells of each choice when it is made."""

    choices = Out(Chosen, reported=True)

    def on_rates(self, rates: Rates, rotation: RotationState) -> Emissions:
        yield from super().on_rates(rates, rotation)
        yield self.choices(Chosen(rotation.choice.span, time.time()))


class Tell(Operator):
    """Tells of the replica when all has ended."""

    progress = In(Progress)
    sums = Out(Sum, reported=True)
    replica = Writes()
    clocks = Writes()

    def process(self, progress: Progress) -> Emissions:
        yield from ()

    def on_end(self, replica: VectorState, clocks: ClocksState) -> Emissions:
        yield self.sums(Sum(clocks.made, clocks.rejected, digest(replica.values)))


def build(_config: Config) -> LogicalGraph:
    """Workers that choose p and the gradients of a round while they run, and go on until they are cancelled."""
    graph = live_graph(WEIGHTS, ENDLESS)
    graph = graph.replace("compute", PacedGather(n_weights=WEIGHTS))
    graph = graph.replace("partition", TellingPartition(layout=Layout.of(WEIGHTS, cells=256)))
    return (
        graph.with_operator("tell", Tell(), role="worker")
        .connect("compute.progress", "tell")
        .connect("apply.finished", "tell")
    )


def digest(values: np.ndarray) -> str:
    return hashlib.sha256(values.astype(np.float32).tobytes()).hexdigest()


def digest_of_sum(made: Sequence[int]) -> str:
    """The digest of a replica to which each node's updates, so many, were applied."""
    total = np.zeros(WEIGHTS, np.float64)
    for node, count in enumerate(made):
        for number in range(1, count + 1):
            total -= integer_gradient(node, number, WEIGHTS)
    return digest(total)
