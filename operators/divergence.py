"""Divergence: how far the workers' replicas are from each other, sampled while they train.

Exchange without consensus never heals a lost update, so this distance is watched in every run. Samples of different
nodes are due after as many images of them all, not at the same moment, and a node may have made one step more when its
own is taken: that, and updates under way, are part of the distance, but for the last sample, which is taken when
nothing is under way.
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
from operators.due import Every, turn_of
from operators.messages import Progress, Vector

SAMPLED_WEIGHTS = 1024
"""Weights of a sample at most: 4 KiB, little beside a model."""


@dataclass(frozen=True, slots=True)
class ReplicaSample(Message):
    """Some of a replica's weights.

    Args:
        origin: number of the node.
        turn: how many times one was due by then, on every node alike, so that samples find each other; 0 for the final.
            Steps are not alike where gradients are made by whoever is first.
        final: all updates that reach the node were applied.
        values: (sampled weights,) float32, the same places on every node.
    """

    origin: int
    turn: int
    final: bool
    values: Vector


class SampleReplica(Operator):
    """Sends evenly spaced weights of the replica to the node that compares them.

    Args:
        weights: how many weights are sampled at most.
        every: when samples are due; see `Due`.
    """

    pool = "network"
    sends = True
    weights: int = Field(default=SAMPLED_WEIGHTS, ge=1)
    every: Every = "epoch"
    progress = In(Progress, capacity=64)
    samples = Out(ReplicaSample)
    replica = Reads()

    def process(self, progress: Progress, replica: Vector, node: NodeContext) -> Emissions:
        """A sample."""
        stride = -(-len(replica) // self.weights)
        turn = 0 if progress.final else turn_of(progress, self.every)
        yield self.samples(ReplicaSample(node.index, turn, progress.final, replica[::stride].copy()))


@dataclass
class SamplesState(State):
    """Samples that wait for those of the other nodes.

    Args:
        waiting: by whether it is final and turn, then by node.
        left: nodes of which no samples come any more.
    """

    waiting: dict[tuple[bool, int], dict[int, Vector]] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)

    def snapshot(self) -> SamplesState:
        """A copy."""
        return SamplesState({turn: dict(samples) for turn, samples in self.waiting.items()}, set(self.left))

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
    """Measures the distance of the replicas from their mean at each turn: the largest, and root mean square."""

    pool = "network"
    receives = True
    samples = In(ReplicaSample)
    waiting = Writes("samples")

    def process(self, sample: ReplicaSample, waiting: SamplesState, node: NodeContext) -> Emissions:
        """Take in a sample; measure once all nodes' are there."""
        number = (sample.final, sample.turn)
        waiting.waiting.setdefault(number, {})[sample.origin] = sample.values
        yield from self._measure(number, waiting, node)

    def on_left(self, origin: int, waiting: SamplesState, node: NodeContext) -> Emissions:
        """Measure what only a node that sends none any more was missing from."""
        waiting.left.add(origin)
        for number in sorted(waiting.waiting):
            yield from self._measure(number, waiting, node)

    def on_joined(self, origin: int, waiting: SamplesState) -> Emissions:
        """Wait for a node that has come back, too."""
        waiting.left.discard(origin)
        yield from ()

    def _measure(self, number: tuple[bool, int], waiting: SamplesState, node: NodeContext) -> Emissions:
        samples = waiting.waiting.get(number, {})
        if len(samples) < min(2, node.size) or not set(node.members[node.role]) <= samples.keys() | waiting.left:
            return
        distance = np.stack([samples[origin] for origin in sorted(samples)])
        distance = distance - distance.mean(axis=0)
        yield Sample("max", float(np.abs(distance).max()))
        yield Sample("rms", float(np.sqrt(np.mean(np.square(distance)))))
        for old in [known for known in waiting.waiting if known <= number]:
            del waiting.waiting[old]
