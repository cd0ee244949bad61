"""Ako on the MNIST network of ako.txt 5.1 as a PyTorch module: the engine with the kernels that DDP has.

ako run benchmarks/mnist_torch_job.py data=mnist data_dir=DIR
"""

from __future__ import annotations

import torch
from torch import nn

from ako_jobs import ako
from dataflow import LogicalGraph
from dataflow.errors import ConfigError
from operators.dnn import TorchSpec


def paper(init: str = "uniform") -> nn.Module:
    """`layers` in the layout in which PyTorch computes them faster; with one channel it is the weights that decide."""
    return layers(init).to(memory_format=torch.channels_last)


def layers(init: str = "uniform") -> nn.Sequential:
    """Convolutions of 10, 20 and 100 filters, 200 neurons; `init` as in `initialise`.

    Two things are other than in the paper, and the same function. Pooling comes before ReLU: PyTorch takes 30% less
    time to evaluate that. The third convolution, whose filters are as large as what they are given, is a linear layer:
    8% less for a gradient.
    """
    network = nn.Sequential(
        *(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(20 * 4 * 4, 100), nn.ReLU()),
        *(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10)),
    )
    initialise(network, init)
    filters = nn.Conv2d(20, 100, 4)
    initialise(filters, init)
    network[7].load_state_dict({"weight": filters.weight.flatten(1), "bias": filters.bias})
    return network


def initialise(network: nn.Module, init: str) -> None:
    """Give a new network initial weights as PyTorch draws them, uniform in +-1/sqrt(fan_in), or after Glorot.

    Raises:
        ConfigError: something else is asked for.
    """
    if init not in ("uniform", "glorot"):
        raise ConfigError(what="init: must be uniform or glorot here", got=init)
    if init == "glorot":
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)


class Config(ako.Config):
    """Ako's settings, with another network."""

    def network(self) -> TorchSpec:
        """The network as PyTorch has it."""
        return TorchSpec(factory=paper, arguments={"init": self.init}, input=(1, 28, 28), classes=10)


def build(config: Config) -> LogicalGraph:
    """Ako's graph."""
    return ako.build(config)
