"""ResNet-20 for CIFAR-10 as a `torch.nn.Module`, under every topology (He et al., 2015, section 4.2).

    ako run examples/resnet20_job.py --nodes 2
    ako run examples/resnet20_job.py:parameter_server --nodes 3
    ako run examples/resnet20_job.py:all_to_all consistency=bsp --nodes 2
    ako run examples/resnet20_job.py model=resnet8 data=digits epochs=2 --nodes 2
    ako run examples/resnet20_job.py:dana rule=dana-dc --nodes 9

A network of depth 6 n + 2: a convolution, three stages of n blocks with 16, 32 and 64 channels, and a linear layer.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional

from ako_jobs import ako
from ako_jobs import all_to_all as everybody
from ako_jobs import parameter_server as servers
from ako_jobs.config import TrainingConfig
from ako_jobs.models import INPUTS
from ako_jobs.update_rules import RuleName
from dataflow import LogicalGraph
from operators.dnn import TorchSpec


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut without weights (the paper's option A)."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(filters)
        self.stride, self.more = stride, filters - channels

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(images, channels, height, width) to (images, filters, height / stride, width / stride)."""
        features = functional.relu(self.norm1(self.conv1(images)))
        shortcut = functional.pad(images[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
        return functional.relu(self.norm2(self.conv2(features)) + shortcut)


def resnet(depth: int, channels: int = 3, classes: int = 10) -> nn.Module:
    """The residual network of `depth` = 6 n + 2 layers; weights of convolutions start as He et al. have them."""
    blocks = (depth - 2) // 6
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    filters = 16
    for stage in (16, 32, 64):
        for number in range(blocks):
            layers.append(Block(filters, stage, stride=2 if number == 0 and stage > 16 else 1))
            filters = stage
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return module


class Resnet(TrainingConfig):
    """Settings of a job that trains a residual network.

    Args:
        data: data set.
        model: resnet and its depth.
        init: initial weights; he is the paper's.
    """

    data: Literal["cifar10", "digits", "mnist", "fashion-mnist"] = "cifar10"
    model: Literal["resnet8", "resnet20", "resnet32", "resnet44", "resnet56"] = "resnet20"
    init: Literal["he"] = "he"

    def network(self) -> TorchSpec:
        """The network for the images of the data set."""
        shape = INPUTS[self.data]
        arguments = {"depth": int(self.model.removeprefix("resnet")), "channels": shape[0]}
        return TorchSpec(factory=resnet, arguments=arguments, input=shape, classes=10)


class Config(Resnet, ako.Config):
    """Settings under Ako."""


class ServerConfig(Resnet, servers.Config):
    """Settings under parameter servers."""


class DanaConfig(ServerConfig):
    """Settings of ResNet-20 on CIFAR-10 under an update rule, as in dana.txt, appendix A.5: for any rule the same.

    The rate rises from lr / n over the first epochs. With rule=ssgd and asgd add nesterov=true: "0.9 with NAG".

    Args:
        rule: how gradients move the servers' weights.
    """

    rule: RuleName = "dana-slim"
    lr: float = Field(default=0.1, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    batch: int = Field(default=128, ge=1)
    weight_decay: float = Field(default=1e-4, ge=0)
    schedule: Literal["constant", "step", "cosine"] = "step"
    milestones: str | None = "80,120"
    epochs: float = Field(default=160, gt=0)
    warmup: float = Field(default=5, ge=0)
    warm_start: float = Field(default=0, ge=0, le=1)
    holdout: float = Field(default=0, ge=0, lt=1)
    average: float = Field(default=0, ge=0)


class EverybodyConfig(Resnet, everybody.Config):
    """Settings under all-to-all."""


def build(config: Config) -> LogicalGraph:
    return ako.build(config)


def parameter_server(config: ServerConfig) -> LogicalGraph:
    return servers.build(config)


def dana(config: DanaConfig) -> LogicalGraph:
    return servers.build(config)


def all_to_all(config: EverybodyConfig) -> LogicalGraph:
    return everybody.build(config)
