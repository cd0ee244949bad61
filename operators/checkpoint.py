"""Checkpoint: a worker's state as a safetensors file, while training and at the end."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import safetensors.numpy

from dataflow.node_context import NodeContext
from dataflow.operators_api import Artifact, Emissions, Operator
from dataflow.ports import In
from dataflow.state import Reads, Writes
from operators.clocks import ClocksState
from operators.dnn import NetworkSpec, build_network
from operators.messages import Progress, Vector
from operators.shared_replica import SharedReplicaState


class Checkpoint(Operator):
    """Keeps replica, statistics, velocity and clocks at each progress it is told, and the model at the final one.

    Snapshots are always taken between two steps; a checkpoint is named after the last gradient made before it, which
    may be a later one than the progress tells of.

    Args:
        model: the network; its specification is part of the model's file.
        rank: the node whose final model is kept.
    """

    pool = "network"
    model: NetworkSpec
    rank: int = 0
    progress = In(Progress, capacity=64)
    replica = Reads()
    statistics = Reads()
    velocity = Reads()
    clocks = Reads()

    def process(
        self,
        progress: Progress,
        replica: Vector,
        statistics: Vector,
        velocity: Vector,
        clocks: ClocksState,
        node: NodeContext,
    ) -> Emissions:
        """A checkpoint of this node, or the final model."""
        if not progress.final:
            yield checkpoint(replica, statistics, velocity, clocks, node)
        elif node.rank == self.rank:
            yield Artifact("model.safetensors", model_file(self.model, replica, statistics))


class CheckpointOwed(Checkpoint):
    """Keeps what the node owes, too: the tensors of `owed`, such as a residual or a window that has one."""

    owed = Reads()

    def process(  # type: ignore[override]
        self,
        progress: Progress,
        replica: Vector,
        statistics: Vector,
        velocity: Vector,
        clocks: ClocksState,
        owed: Mapping[str, np.ndarray],
        node: NodeContext,
    ) -> Emissions:
        """A checkpoint of this node, or the final model."""
        if progress.final:
            yield from Checkpoint.process(self, progress, replica, statistics, velocity, clocks, node)
        else:
            more = {f"owed.{name}": tensor for name, tensor in owed.items()}
            yield checkpoint(replica, statistics, velocity, clocks, node, more)


class CheckpointShared(Checkpoint):
    """Keeps x of a worker that shares its replica over a tree, too, and the counts of updates in it."""

    replica = Writes()  # type: ignore[assignment]

    def process(  # type: ignore[override]
        self,
        progress: Progress,
        replica: SharedReplicaState,
        statistics: Vector,
        velocity: Vector,
        clocks: ClocksState,
        node: NodeContext,
    ) -> Emissions:
        """A checkpoint of this node, or the final model."""
        if progress.final:
            yield from Checkpoint.process(self, progress, replica.current, statistics, velocity, clocks, node)
        else:
            own = replica.sharing.own
            more: dict[str, np.ndarray] = {"shared.x": own.values, "shared.counts": own.counts}
            yield checkpoint(replica.current, statistics, velocity, clocks, node, more)


def checkpoint(
    replica: Vector,
    statistics: Vector,
    velocity: Vector,
    clocks: ClocksState,
    node: NodeContext,
    more: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Artifact:
    """A node's checkpoint: a safetensors file of these tensors, the clocks', and `more` by their names."""
    tensors = {f"clocks.{name}": tensor for name, tensor in clocks.tensors().items()}
    tensors |= {"replica": replica, "statistics": statistics, "velocity": velocity, **more}
    data = safetensors.numpy.save(tensors, {"step": str(clocks.made)})
    return Artifact(f"checkpoints/{node.name}-step-{clocks.made:08d}.safetensors", data)


def model_file(spec: NetworkSpec, weights: Vector, statistics: Vector) -> bytes:
    """A safetensors file of named weights and statistics, with the network's specification as JSON in its header."""
    return safetensors.numpy.save(build_network(spec).tensors(weights, statistics), {"model": spec.model_dump_json()})
