"""Layer specifications: what each layer of a network is, and the shapes it maps between.

A shape is (channels, height, width); a vector of n features is (n, 1, 1). A layer knows
its own arithmetic only: which layers precede it is the business of `operators.dnn.spec`.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

Shape = tuple[int, int, int]
"""(channels, height, width) of one image or one layer's output."""

WeightShapes = tuple[tuple[int, ...], tuple[int]] | tuple[()]
"""Shapes of a layer's weight and bias, or nothing where a layer has none; the weight's first axis is its outputs."""


class _Layer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


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


class MaxPool(_Layer):
    """Maximum over square windows of each channel; rows and columns that fill no window are dropped.

    `stride` defaults to `size`. Among equal values the first in row-major order gets the gradient.
    """

    kind: Literal["max_pool"] = "max_pool"
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

    def weight_shapes(self, shape: Shape) -> WeightShapes:
        """Nothing: pooling has no weights."""
        return ()


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

    def output_shape(self, shape: Shape) -> Shape:
        """Shape of the output: that of the input."""
        return shape

    def weight_shapes(self, shape: Shape) -> WeightShapes:
        """Nothing: an activation has no weights."""
        return ()


Layer = Annotated[Conv | MaxPool | Dense | Activation, Field(discriminator="kind")]
"""Any layer; `kind` tells which in JSON."""
