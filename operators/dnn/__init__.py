"""Deep networks as flat float32 vectors.

`ModelSpec` describes a network of layers, `Model` computes with it, `reference` is the same in plain NumPy.
`TorchSpec` names a `torch.nn.Module` of the user's own. `PhantomSpec` is a network of a size and nothing else.
`build_network` makes a `Network` of each.
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
from operators.dnn.network import Network, NetworkSpec, build_network
from operators.dnn.phantom import PhantomSpec
from operators.dnn.torch_spec import TorchSpec

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
    "Network",
    "NetworkSpec",
    "PhantomSpec",
    "Residual",
    "TorchSpec",
    "WeightRange",
    "Workspace",
    "build_network",
]
