"""A network of one's own: a small `torch.nn.Module` with batch normalisation and dropout, trained by Ako.

    pip install 'ako-dataflow[torch]'
    ako run examples/own_model_job.py width=16 --nodes 2

Nothing is registered: the file travels to the nodes with the job. See docs/own_model.md.
"""

from __future__ import annotations

from torch import nn

from ako_jobs import ako
from ako_jobs.models import INPUTS
from dataflow import LogicalGraph
from operators.dnn import TorchSpec


def small_net(channels: int, width: int, dropout: float) -> nn.Module:
    """Two convolutions with batch normalisation, for images of any size."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(8 * width, 10),
    )


class Config(ako.Config):
    """Ako's settings and two more.

    Args:
        width: channels of the first convolution.
        dropout: share of the features that a training step leaves out.
    """

    width: int = 16
    dropout: float = 0.1

    def network(self) -> TorchSpec:
        """The module above, for the images of the data set."""
        shape = INPUTS[self.data]
        arguments = {"channels": shape[0], "width": self.width, "dropout": self.dropout}
        return TorchSpec(factory=small_net, arguments=arguments, input=shape, classes=10)


def build(config: Config) -> LogicalGraph:
    return ako.build(config)
