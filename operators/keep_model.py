"""Keep the model: the trained weights as a safetensors file, once training is over."""

from __future__ import annotations

import safetensors.numpy

from dataflow.operators_api import Artifact, Emissions, Operator
from dataflow.ports import In, Out
from dataflow.state import Reads
from operators.dnn import NetworkSpec, build_network
from operators.messages import Progress, Vector


class KeepModel(Operator):
    """Keeps the node's model, or its average where there is one, at the final progress that it is told of.

    Nothing is ever said on `over`: whoever it leads to hears when the model has been kept.

    Args:
        model: the network; its specification is part of the file.
    """

    pool = "network"
    sends = True
    model: NetworkSpec
    progress = In(Progress, capacity=64)
    over = Out(Progress)
    replica = Reads()
    average = Reads()
    statistics = Reads()

    def process(self, progress: Progress, replica: Vector, average: Vector | None, statistics: Vector) -> Emissions:
        """The final model."""
        if progress.final:
            weights = replica if average is None else average
            yield Artifact("model.safetensors", model_file(self.model, weights, statistics))


def model_file(spec: NetworkSpec, weights: Vector, statistics: Vector) -> bytes:
    """A safetensors file of named weights and statistics, with the network's specification as JSON in its header."""
    return safetensors.numpy.save(build_network(spec).tensors(weights, statistics), {"model": spec.model_dump_json()})
