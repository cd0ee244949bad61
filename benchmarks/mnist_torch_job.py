"""Ako on the MNIST network of ako.txt 5.1 as a PyTorch module: the engine with the kernels that DDP has.

ako run benchmarks/mnist_torch_job.py data=mnist data_dir=DIR
"""

from __future__ import annotations

import torch
from torch import nn

from ako_jobs import ako
from dataflow import LogicalGraph
from operators.dnn import TorchSpec


def paper() -> nn.Module:
    """Convolutions of 10, 20 and 100 filters, 200 neurons, initial weights uniform in +-1/sqrt(fan_in)."""
    network = nn.Sequential(
        *(nn.Conv2d(1, 10, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(10, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 100, 4), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10)),
    )
    # With the images' one channel it is the weights that decide how convolutions lay out what they compute.
    return network.to(memory_format=torch.channels_last)


class Config(ako.Config):
    """Ako's settings, with another network."""

    def network(self) -> TorchSpec:
        """The network as PyTorch has it."""
        return TorchSpec(factory=paper, input=(1, 28, 28), classes=10)


def build(config: Config) -> LogicalGraph:
    """Ako's graph."""
    return ako.build(config)
