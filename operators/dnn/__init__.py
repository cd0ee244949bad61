"""Deep networks as flat float32 vectors.

`ModelSpec` describes a network, `Model` computes with it, `reference` is the same in plain NumPy.
"""

from operators.dnn.layers import Activation, Conv, Dense, Layer, MaxPool
from operators.dnn.model import Model, ModelSpec, WeightRange, Workspace

__all__ = ["Activation", "Conv", "Dense", "Layer", "MaxPool", "Model", "ModelSpec", "WeightRange", "Workspace"]
