"""A network's specification, its steps, and where each of its weights and statistics lies in a flat vector.

Invariant: the ranges of `weight_ranges` tile [0, number of weights) in the order of the steps, weight
before bias, so any range of the vector is a partition of the model; likewise those of `statistic_ranges`.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, PositiveInt, model_validator

from operators.dnn.layers import Dense, Layer, Residual, Shape


class WeightRange(NamedTuple):
    """A named run of a flat vector: elements start <= i < stop, viewed as `shape` in C order."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


class ModelSpec(BaseModel):
    """A feed-forward classifier: input shape, layers, and how its weights start.

    The last layer is `Dense`; its units are the classes, and softmax cross-entropy follows it.
    Inconsistent shapes raise pydantic's ValidationError (a ValueError) that names the layer by its path.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: tuple[PositiveInt, PositiveInt, PositiveInt]
    layers: tuple[Layer, ...]
    init: Literal["uniform", "he", "glorot"] = "uniform"

    @model_validator(mode="after")
    def _layers_fit(self) -> Self:
        steps(self)
        if not self.layers or not isinstance(self.layers[-1], Dense):
            last = f"layer {len(self.layers) - 1} is {self.layers[-1].kind}" if self.layers else "there are no layers"
            msg = f"the last layer must be dense, with one unit per class, but {last}: append Dense(units=classes)"
            raise ValueError(msg)
        return self

    def shapes(self) -> list[Shape]:
        """Shape (channels, height, width) of the input, then of each layer's output: one more than there are layers."""
        return [self.input, *(step.output for step in steps(self) if len(step.path) == 1)]


class Step(NamedTuple):
    """One layer in execution order. Array 0 is the images, array i + 1 the output of step i.

    layer: a `Residual` here is the addition alone: the layers of its body, then of its shortcut, are steps before it.
    sources: the arrays it reads: one, or body and shortcut of a `Residual`.
    shape, output: the shapes of the first source and of the output.
    path: the names of the layer and those around it, outermost first: ("layer 3 (residual)", "body layer 1 (conv)").
    """

    layer: Layer
    sources: tuple[int, ...]
    shape: Shape
    output: Shape
    path: tuple[str, ...]


def steps(spec: ModelSpec) -> list[Step]:
    """Flatten a network to steps, each after those whose outputs it reads; ValueError names the layer that misfits."""
    found: list[Step] = []
    _flatten(spec.layers, 0, spec.input, ("layer",), found)
    return found


def _flatten(layers: tuple[Layer, ...], source: int, shape: Shape, path: tuple[str, ...], found: list[Step]) -> int:
    """Append the steps of a chain that reads the array `source`, of `shape`; return the array that it ends in."""
    *around, what = path
    for number, layer in enumerate(layers):
        here = (*around, f"{what} {number} ({layer.kind})")
        sources: tuple[int, ...] = (source,)
        if isinstance(layer, Residual):
            body = _flatten(layer.layers, source, shape, (*here, "body layer"), found)
            sources = body, _flatten(layer.shortcut, source, shape, (*here, "shortcut layer"), found)
        try:
            output = layer.output_shape(shape)
        except ValueError as error:
            msg = f"{', '.join(here)}: {error}"
            raise ValueError(msg) from None
        found.append(Step(layer, sources, shape, output, here))
        source, shape = len(found), output
    return source


def weight_ranges(spec: ModelSpec) -> list[WeightRange]:
    """Return every layer's weight and bias in vector order, named by kind and count, such as conv2.weight."""
    flattened = steps(spec)
    return _ranges(flattened, [step.layer.weight_shapes(step.shape) for step in flattened], ("weight", "bias"))


def statistic_ranges(spec: ModelSpec) -> list[WeightRange]:
    """Return the running mean and variance of every layer that keeps them, as ranges of a vector of their own.

    They are named by kind and count, such as batch_norm1.mean; a network without such layers has no ranges.
    """
    flattened = steps(spec)
    return _ranges(flattened, [step.layer.statistic_shapes(step.shape) for step in flattened], ("mean", "variance"))


def _ranges(
    flattened: list[Step], shapes: Sequence[tuple[tuple[int, ...], ...]], names: tuple[str, str]
) -> list[WeightRange]:
    ranges: list[WeightRange] = []
    counts: Counter[str] = Counter()
    start = 0
    for step, pair in zip(flattened, shapes, strict=True):
        kind = step.layer.kind
        counts[kind] += bool(pair)
        for name, shape in zip(names, pair, strict=False):
            stop = start + math.prod(shape)
            ranges.append(WeightRange(f"{kind}{counts[kind]}.{name}", start, stop, shape))
            start = stop
    return ranges
