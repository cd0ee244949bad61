"""Divergence: how far the workers' replicas are from each other, sampled while they train.

Exchange without consensus never heals a lost update, so this distance is watched in every run. Samples of different
nodes are taken at the same number of images, not at the same moment: updates under way are part of the distance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from pydantic import Field

from dataflow.message import Message
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, Operator, Sample
from dataflow.ports import In, Out
from dataflow.state import Reads, State, StateElement, StateKind, Writes
from operators.messages import Progress, Vector


@dataclass(frozen=True, slots=True)
class ReplicaSample(Message):
    """Some of a replica's weights.

    Args:
        origin: number of the node.
        turn: how often the node had been sampled before.
        values: (sampled weights,) float32, the same places on every node.
    """

    origin: int
    turn: int
    values: Vector


class SampleReplica(Operator):
    """Sends evenly spaced weights of the replica to the node that compares them.

    Args:
        every: images that the whole role sees between two samples.
        weights: how many weights are sampled at most.
    """

    pool = "network"
    sends = True
    every: int = Field(ge=1)
    weights: int = Field(default=1024, ge=1)
    progress = In(Progress, capacity=64)
    samples = Out(ReplicaSample)
    replica = Reads()

    def process(self, progress: Progress, replica: Vector, node: NodeContext) -> Emissions:
        """A sample, if one is due."""
        turn = progress.images // self.every
        if turn > (progress.images - progress.new_images) // self.every:
            step = -(-len(replica) // self.weights)
            yield self.samples(ReplicaSample(node.index, turn, replica[::step].copy()))


@dataclass
class SamplesState(State):
    """Samples that wait for those of the other nodes.

    Args:
        waiting: by turn and node.
    """

    waiting: dict[int, dict[int, Vector]] = field(default_factory=dict)

    def snapshot(self) -> SamplesState:
        """A copy."""
        return SamplesState({turn: dict(samples) for turn, samples in self.waiting.items()})

    def tensors(self) -> dict[str, np.ndarray]:
        """Nothing: samples under way are not part of a checkpoint."""
        return {}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Start without samples."""
        self.waiting.clear()


class Samples(StateElement):
    """Samples of replicas on the node that compares them."""

    kind: ClassVar[StateKind] = StateKind.LOCAL

    def create(self, node: NodeContext) -> SamplesState:
        """No samples yet."""
        return SamplesState()


class Divergence(Operator):
    """Measures each sampled turn's distance of the replicas from their mean: the largest, and root mean square."""

    pool = "network"
    receives = True
    samples = In(ReplicaSample)
    waiting = Writes("samples")

    def process(self, sample: ReplicaSample, waiting: SamplesState, node: NodeContext) -> Emissions:
        """Take in a sample; measure once all nodes' are there."""
        turn = waiting.waiting.setdefault(sample.turn, {})
        turn[sample.origin] = sample.values
        if len(turn) < node.size:
            return
        distance = np.stack([turn[origin] for origin in sorted(turn)])
        distance = distance - distance.mean(axis=0)
        yield Sample("max", float(np.abs(distance).max()))
        yield Sample("rms", float(np.sqrt(np.mean(np.square(distance)))))
        for old in [known for known in waiting.waiting if known <= sample.turn]:
            del waiting.waiting[old]
