"""Layer specifications: what each layer of a network is, and the shapes it maps between.

A shape is (channels, height, width); a vector of n features is (n, 1, 1). A layer knows
its own arithmetic only: which layers precede it is the business of `operators.dnn.spec`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

Shape = tuple[int, int, int]
"""(channels, height, width) of one image or one layer's output."""

WeightShapes = tuple[tuple[int, ...], tuple[int]] | tuple[()]
"""Shapes of a layer's weight and bias, or nothing where a layer has none; the weight's first axis is its outputs."""

StatisticShapes = tuple[tuple[int], tuple[int]] | tuple[()]
"""Shapes of the mean and the variance that a layer keeps of its inputs, or nothing where it keeps none."""


class _Layer(BaseModel):
    """What holds for a layer that says nothing else: it keeps the shape, has no weights and keeps no statistics."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def output_shape(self, shape: Shape) -> Shape:
        """Shape of the output for an input of `shape`; ValueError if the layer does not fit."""
        return shape

    def weight_shapes(self, shape: Shape) -> WeightShapes:
        """Shapes of the weight and the bias for an input of `shape`."""
        return ()

    def statistic_shapes(self, shape: Shape) -> StatisticShapes:
        """Shapes of the running mean and variance for an input of `shape`."""
        return ()


class Conv(_Layer):
    """Two-dimensional convolution (cross-correlation) with square kernels and a bias per filter.

    Weight: (filters, channels, kernel, kernel). Zeros pad every border by `padding` pixels.
    """

    kind: Literal["conv"] = "conv"
    filters: PositiveInt
    kernel: PositiveInt
    padding: int = Field(default=0, ge=0)
    stride: PositiveInt = 1

    def output_shape(self, shape: Shape) -> Shape:
        """Shape of the output for an input of `shape`; ValueError if the kernel does not fit."""
        _, height, width = shape
        smallest = min(height, width) + 2 * self.padding
        if self.kernel > smallest:
            msg = (
                f"a {self.kernel}x{self.kernel} kernel does not fit an input of shape {shape} with padding "
                f"{self.padding}: use kernel <= {smallest} or more padding"
            )
            raise ValueError(msg)
        if self.padding >= self.kernel:
            msg = f"padding {self.padding} must be below the kernel size {self.kernel}: windows would hold only zeros"
            raise ValueError(msg)
        return (
            self.filters,
            (height + 2 * self.padding - self.kernel) // self.stride + 1,
            (width + 2 * self.padding - self.kernel) // self.stride + 1,
        )

    def weight_shapes(self, shape: Shape) -> WeightShapes:
        """Shapes of the weight and the bias for an input of `shape`."""
        return (self.filters, shape[0], self.kernel, self.kernel), (self.filters,)


class _Pool(_Layer):
    size: PositiveInt = 2
    stride: PositiveInt | None = None

    @property
    def step(self) -> int:
        """Distance between neighbouring windows, pixels."""
        return self.size if self.stride is None else self.stride

    def output_shape(self, shape: Shape) -> Shape:
        """Shape of the output for an input of `shape`; ValueError if no window fits."""
        channels, height, width = shape
        smallest = min(height, width)
        if self.size > smallest:
            msg = (
                f"a {self.size}x{self.size} window does not fit an input of shape {shape}: "
                f"use size <= {smallest}, or drop this layer"
            )
            raise ValueError(msg)
        return channels, (height - self.size) // self.step + 1, (width - self.size) // self.step + 1


class MaxPool(_Pool):
    """Maximum over square windows of each channel; rows and columns that fill no window are dropped.

    `stride` defaults to `size`. Among equal values the first in row-major order gets the gradient.
    """

    kind: Literal["max_pool"] = "max_pool"


class AvgPool(_Pool):
    """Mean over square windows of each channel; rows and columns that fill no window are dropped.

    `stride` defaults to `size`. `GlobalAvgPool` has one window, whatever the input's size.
    """

    kind: Literal["avg_pool"] = "avg_pool"


class GlobalAvgPool(_Layer):
    """Mean of each channel (Lin et al., Network in Network, 2014, section 3.2)."""

    kind: Literal["global_avg_pool"] = "global_avg_pool"

    def output_shape(self, shape: Shape) -> Shape:
        """Shape of the output: (channels, 1, 1)."""
        return shape[0], 1, 1


class Dense(_Layer):
    """Fully connected layer: weight (units, inputs) and bias (units,).

    An input of several rows and columns is read in (channel, row, column) order.
    """

    kind: Literal["dense"] = "dense"
    units: PositiveInt

    def output_shape(self, shape: Shape) -> Shape:
        """Shape of the output: (units, 1, 1)."""
        return self.units, 1, 1

    def weight_shapes(self, shape: Shape) -> WeightShapes:
        """Shapes of the weight and the bias for an input of `shape`."""
        channels, height, width = shape
        return (self.units, channels * height * width), (self.units,)


class Activation(_Layer):
    """Element-wise non-linearity: max(x, 0), 1 / (1 + exp(-x)), or tanh(x). The derivative of relu at 0 is 0."""

    kind: Literal["activation"] = "activation"
    function: Literal["relu", "sigmoid", "tanh"]


class Dropout(_Layer):
    """In training, zero each element with probability `rate` and divide the others by 1 - rate; else, do nothing.

    Which elements are zeroed follows from a seed: see `operators.dnn.masks`. The division keeps the expectation, so
    that evaluation needs no factor (inverted dropout; Srivastava et al., JMLR 15, 2014, section 10).
    """

    kind: Literal["dropout"] = "dropout"
    rate: float = Field(ge=0, lt=1)


class BatchNorm(_Layer):
    """Normalise each channel to mean 0 and variance 1, then multiply by a weight and add a bias.

    weight, bias: (channels,), gamma and beta in Ioffe and Szegedy, 2015, whose algorithms 1 and 2 these are:
    y = weight * (x - mean) / sqrt(variance + epsilon) + bias. Training takes mean and biased variance over the images,
    rows and columns of the batch, and moves the running statistics towards them:
    running = (1 - momentum) * running + momentum * batch, with the unbiased variance. Evaluation takes the running
    ones. A batch with one value per channel has output `bias`, and leaves the running variance as it was.
    """

    kind: Literal["batch_norm"] = "batch_norm"
    momentum: float = Field(default=0.1, gt=0, le=1)
    epsilon: float = Field(default=1e-5, gt=0)

    def weight_shapes(self, shape: Shape) -> WeightShapes:
        """Shapes of the weight and the bias for an input of `shape`."""
        return (shape[0],), (shape[0],)

    def statistic_shapes(self, shape: Shape) -> StatisticShapes:
        """Shapes of the running mean and variance for an input of `shape`."""
        return (shape[0],), (shape[0],)


class Residual(_Layer):
    """The sum of two chains of layers with one input: `layers` (the body) and `shortcut`; no shortcut is the identity.

    He et al., Deep Residual Learning, 2015, eq. 1 and 2. The sum is not followed by an activation. Residuals may nest.
    """

    kind: Literal["residual"] = "residual"
    layers: tuple[Layer, ...] = Field(min_length=1)
    shortcut: tuple[Layer, ...] = ()

    def output_shape(self, shape: Shape) -> Shape:
        """Shape of the output for an input of `shape`; ValueError if body and shortcut do not agree."""
        body, shortcut = _after(self.layers, shape), _after(self.shortcut, shape)
        if body != shortcut:
            msg = f"the body's output has shape {body}, but the shortcut's {shortcut}: {_remedy(shape, body)}"
            raise ValueError(msg)
        return body


Layer = Annotated[
    Conv | MaxPool | AvgPool | GlobalAvgPool | Dense | Activation | Dropout | BatchNorm | Residual,
    Field(discriminator="kind"),
]
"""Any layer; `kind` tells which in JSON."""

Residual.model_rebuild()


def _after(layers: tuple[Layer, ...], shape: Shape) -> Shape:
    for layer in layers:
        shape = layer.output_shape(shape)
    return shape


def _remedy(shape: Shape, body: Shape) -> str:
    """The shortcut that makes `body` out of `shape`, as a sentence."""
    for stride in range(1, max(shape[1:]) + 1):
        shortcut = Conv(filters=body[0], kernel=1, stride=stride)
        if shortcut.output_shape(shape) == body:
            return f"use shortcut=(Conv(filters={body[0]}, kernel=1, stride={stride}),)"
    return f"change the padding and strides of the body, or use a shortcut from {shape} to {body}"
