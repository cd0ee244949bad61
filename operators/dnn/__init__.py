"""Deep networks as flat float32 vectors.

`ModelSpec` describes a network, `Model` computes with it, `reference` is the same in plain NumPy.
"""

from operators.dnn.layers import (
    Activation,
    AvgPool,
    BatchNorm,
    Conv,
    Dense,
    Dropout,
    GlobalAvgPool,
    Layer,
    MaxPool,
    Residual,
)
from operators.dnn.model import Model, ModelSpec, WeightRange, Workspace

__all__ = [
    "Activation",
    "AvgPool",
    "BatchNorm",
    "Conv",
    "Dense",
    "Dropout",
    "GlobalAvgPool",
    "Layer",
    "MaxPool",
    "Model",
    "ModelSpec",
    "Residual",
    "WeightRange",
    "Workspace",
]
