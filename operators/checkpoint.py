"""Checkpoint: the replica as a safetensors file, on a schedule and at the end."""

from __future__ import annotations

import safetensors.numpy
from pydantic import Field

from dataflow.node_context import NodeContext
from dataflow.operators_api import Artifact, Emissions, Operator
from dataflow.ports import In
from dataflow.state import Reads
from operators.clocks import ClocksState
from operators.dnn import Model, ModelSpec
from operators.messages import Progress, Vector


class Checkpoint(Operator):
    """Keeps snapshots of the replica and the clocks, always taken between two steps.

    Args:
        model: the network; its specification is part of the file.
        every: images that the whole role sees between two checkpoints; only the final model is kept if None.
        rank: the node whose final model is kept.
    """

    pool = "network"
    model: ModelSpec
    every: int | None = Field(default=None, ge=1)
    rank: int = 0
    progress = In(Progress, capacity=64)
    replica = Reads()
    clocks = Reads()

    def process(self, progress: Progress, replica: Vector, clocks: ClocksState, node: NodeContext) -> Emissions:
        """A checkpoint of this node, if one is due."""
        before = progress.images - progress.new_images
        if self.every is not None and progress.images // self.every > before // self.every:
            tensors = {f"clocks.{name}": tensor for name, tensor in clocks.tensors().items()}
            data = safetensors.numpy.save({"replica": replica, **tensors}, {"step": str(progress.step)})
            yield Artifact(f"checkpoints/{node.name}-step-{progress.step:08d}.safetensors", data)

    def on_end(self, replica: Vector, node: NodeContext) -> Emissions:
        """The final model."""
        if node.rank == self.rank:
            yield Artifact("model.safetensors", model_file(self.model, replica))


def model_file(spec: ModelSpec, weights: Vector) -> bytes:
    """A safetensors file of named weights, with the network's specification as JSON in its header."""
    views = Model(spec).views(weights)
    return safetensors.numpy.save(views, {"model": spec.model_dump_json()})
