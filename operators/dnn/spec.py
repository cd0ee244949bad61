"""A network's specification, and where each of its weights lies in the flat vector.

Invariant: the ranges of `weight_ranges` tile [0, number of weights) in layer order, weight
before bias, so any range of the vector is a partition of the model.
"""

import math
from itertools import pairwise
from typing import Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, PositiveInt, model_validator

from operators.dnn.layers import Dense, Layer, Shape


class WeightRange(NamedTuple):
    """A named run of the weight vector: elements start <= i < stop, viewed as `shape` in C order."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


class ModelSpec(BaseModel):
    """A feed-forward classifier: input shape, layers, and how its weights start.

    The last layer is `Dense`; its units are the classes, and softmax cross-entropy follows it.
    Inconsistent shapes raise pydantic's ValidationError (a ValueError) that names the layer's index.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: tuple[PositiveInt, PositiveInt, PositiveInt]
    layers: tuple[Layer, ...]
    init: Literal["uniform", "he", "glorot"] = "uniform"

    @model_validator(mode="after")
    def _layers_fit(self) -> Self:
        self.shapes()
        if not self.layers or not isinstance(self.layers[-1], Dense):
            last = f"layer {len(self.layers) - 1} is {self.layers[-1].kind}" if self.layers else "there are no layers"
            msg = f"the last layer must be dense, with one unit per class, but {last}: append Dense(units=classes)"
            raise ValueError(msg)
        return self

    def shapes(self) -> list[Shape]:
        """Shape (channels, height, width) of the input, then of each layer's output: one more than there are layers."""
        shapes: list[Shape] = [self.input]
        for index, layer in enumerate(self.layers):
            try:
                shapes.append(layer.output_shape(shapes[-1]))
            except ValueError as error:
                msg = f"layer {index} ({layer.kind}): {error}"
                raise ValueError(msg) from None
        return shapes


def weight_ranges(spec: ModelSpec) -> list[WeightRange]:
    """Return every layer's weight and bias in vector order, named by kind and count, such as conv2.weight."""
    ranges: list[WeightRange] = []
    counts: dict[str, int] = {}
    start = 0
    for layer, (shape, _) in zip(spec.layers, pairwise(spec.shapes()), strict=True):
        weight_shapes = layer.weight_shapes(shape)
        if weight_shapes:
            counts[layer.kind] = counts.get(layer.kind, 0) + 1
        for suffix, weight_shape in zip(("weight", "bias"), weight_shapes, strict=False):
            stop = start + math.prod(weight_shape)
            ranges.append(WeightRange(f"{layer.kind}{counts[layer.kind]}.{suffix}", start, stop, weight_shape))
            start = stop
    return ranges
