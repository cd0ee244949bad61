"""Networks by name."""

from __future__ import annotations

from dataflow.errors import ConfigError, suggest
from operators.dnn import Activation, BatchNorm, Conv, Dense, GlobalAvgPool, Layer, MaxPool, ModelSpec, Residual

RELU = Activation(function="relu")

PAPER = (
    Conv(filters=10, kernel=5),
    RELU,
    MaxPool(size=2),
    Conv(filters=20, kernel=5),
    RELU,
    MaxPool(size=2),
    Conv(filters=100, kernel=4),
    RELU,
    Dense(units=200),
    RELU,
    Dense(units=10),
)
"""The MNIST network of ako.txt 5.1: 10, 20 and 100 filters and 200 neurons; 59,590 weights."""

SMALL = (
    Conv(filters=16, kernel=3, padding=1),
    RELU,
    MaxPool(size=2),
    Conv(filters=32, kernel=3),
    RELU,
    Dense(units=64),
    RELU,
    Dense(units=10),
)
"""A network for 8x8 digits."""

CIFAR = (
    Conv(filters=32, kernel=5),
    RELU,
    MaxPool(size=2),
    Conv(filters=64, kernel=5),
    RELU,
    MaxPool(size=2),
    Dense(units=128),
    RELU,
    Dense(units=10),
)
"""A network for 32x32 colour images."""


def _norm_conv(filters: int, kernel: int, stride: int = 1) -> tuple[Layer, ...]:
    return Conv(filters=filters, kernel=kernel, padding=kernel // 2, stride=stride), BatchNorm()


def _block(filters: int, stride: int = 1) -> tuple[Layer, ...]:
    """Two convolutions beside a shortcut, which is a 1x1 convolution where the body takes every second pixel."""
    body = (*_norm_conv(filters, 3, stride), RELU, *_norm_conv(filters, 3))
    return Residual(layers=body, shortcut=_norm_conv(filters, 1, stride) if stride > 1 else ()), RELU


RESNET20 = (
    *_norm_conv(16, 3),
    RELU,
    *(_block(16) * 3),
    *(_block(32, 2) + _block(32) * 2),
    *(_block(64, 2) + _block(64) * 2),
    GlobalAvgPool(),
    Dense(units=10),
)
"""The residual network of He et al., 2015, 4.2, with n = 3 and their shortcuts B; 273,258 weights on colour images."""

SIGMOID_MLP = (Dense(units=100), Activation(function="sigmoid"), Dense(units=10))
"""A sigmoid multi-layer perceptron for any input."""

NETWORKS = {"paper": PAPER, "small": SMALL, "cifar": CIFAR, "resnet20": RESNET20, "mlp": SIGMOID_MLP}
INPUTS = {"digits": (1, 8, 8), "mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
DEFAULTS = {"digits": "small", "mnist": "paper", "fashion-mnist": "paper", "cifar10": "cifar"}


def network(name: str, data: str, init: str) -> ModelSpec:
    """The network called `name` for the images of data set `data`; ``auto`` picks the data set's own.

    Raises:
        ConfigError: no such network, or it does not fit the images.
    """
    name = DEFAULTS[data] if name == "auto" else name
    if name not in NETWORKS:
        raise ConfigError(what="there is no such model", got=name, fix=suggest(name, [*NETWORKS, "auto"]))
    try:
        return ModelSpec.model_validate({"input": INPUTS[data], "layers": NETWORKS[name], "init": init})
    except ValueError as error:
        what = f"model {name!r} does not fit the images of {data!r}, {INPUTS[data]}"
        raise ConfigError(what, fix="use model=auto") from error
