"""The job `sparse` with a hidden layer of sigmoids as wide as one likes, for strom_width.toml."""

from __future__ import annotations

from ako_jobs import sparse
from ako_jobs.models import INPUTS
from dataflow import LogicalGraph
from operators.dnn import Activation, Dense, ModelSpec


class Config(sparse.Config):
    """Settings of `sparse` and one more.

    Args:
        width: units of the hidden layer.
    """

    width: int = 100

    def network(self) -> ModelSpec:
        """A hidden layer, and one unit for each of ten classes."""
        layers = (Dense(units=self.width), Activation(function="sigmoid"), Dense(units=10))
        return ModelSpec(input=INPUTS[self.data], layers=layers)


def build(config: Config) -> LogicalGraph:
    return sparse.build(config)
