"""Networks and batches that the DNN tests share."""

import numpy as np
from hypothesis import strategies as st

from operators.dnn import (
    Activation,
    AvgPool,
    BatchNorm,
    Conv,
    Dense,
    Dropout,
    GlobalAvgPool,
    MaxPool,
    ModelSpec,
    Residual,
)
from operators.dnn.spec import weight_ranges

RELU = Activation(function="relu")
SIGMOID = Activation(function="sigmoid")
TANH = Activation(function="tanh")

# The Ako paper's MNIST network: convolutions of 10, 20 and 100 filters, dense 200; 59,590 weights.
MNIST = ModelSpec(
    input=(1, 28, 28),
    layers=(
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
    ),
)

# One network per thing that can go wrong: every layer, activation, stride, padding, and order of fused operations.
SMALL = {
    "dense_only": ModelSpec(input=(3, 2, 2), layers=(Dense(units=4),)),
    "one_pixel": ModelSpec(input=(1, 1, 1), layers=(Conv(filters=2, kernel=1), RELU, Dense(units=2))),
    "one_class": ModelSpec(input=(2, 3, 3), layers=(Dense(units=1),)),
    "two_dense_sigmoid": ModelSpec(input=(1, 3, 5), layers=(Dense(units=7), SIGMOID, Dense(units=3))),
    "conv_relu_non_square": ModelSpec(
        input=(2, 5, 8), layers=(Conv(filters=3, kernel=3), RELU, Conv(filters=4, kernel=2), TANH, Dense(units=3))
    ),
    "conv_padded": ModelSpec(
        input=(2, 4, 3),
        layers=(Conv(filters=3, kernel=3, padding=1), SIGMOID, Conv(filters=2, kernel=3, padding=2), Dense(units=3)),
    ),
    "conv_strided": ModelSpec(
        input=(1, 9, 7),
        layers=(
            Conv(filters=3, kernel=3, stride=2, padding=1),
            TANH,
            Conv(filters=2, kernel=2, stride=3),
            Dense(units=2),
        ),
    ),
    "conv_wide_padding": ModelSpec(
        input=(1, 1, 2), layers=(Conv(filters=2, kernel=5, padding=4, stride=3), RELU, Dense(units=3))
    ),
    "pool_drops_edge": ModelSpec(
        input=(2, 7, 5), layers=(Conv(filters=3, kernel=2), RELU, MaxPool(size=2), Dense(units=3))
    ),
    "pool_overlapping": ModelSpec(
        input=(1, 8, 6), layers=(Conv(filters=2, kernel=2), MaxPool(size=3, stride=2), TANH, Dense(units=3))
    ),
    "pool_with_gaps": ModelSpec(
        input=(1, 7, 7), layers=(Conv(filters=2, kernel=1), MaxPool(size=2, stride=3), Dense(units=2))
    ),
    "starts_without_weights": ModelSpec(
        input=(2, 6, 6),
        layers=(TANH, MaxPool(size=2), SIGMOID, TANH, Conv(filters=3, kernel=2), RELU, SIGMOID, Dense(units=4)),
    ),
}

# The same for what the paper's networks do not have: averages, dropout, batch normalisation and residuals.
FURTHER = {
    "average_drops_edge": ModelSpec(
        input=(2, 7, 5), layers=(Conv(filters=3, kernel=2), RELU, AvgPool(size=2), Dense(units=3))
    ),
    "average_overlapping": ModelSpec(
        input=(1, 8, 6), layers=(Conv(filters=2, kernel=2), AvgPool(size=3, stride=2), TANH, Dense(units=3))
    ),
    "average_with_gaps": ModelSpec(input=(2, 7, 8), layers=(AvgPool(size=2, stride=3), TANH, Dense(units=2))),
    "average_of_all": ModelSpec(
        input=(2, 3, 5), layers=(Conv(filters=4, kernel=2), SIGMOID, GlobalAvgPool(), Dense(units=3))
    ),
    "dropout_first_and_twice": ModelSpec(
        input=(2, 4, 3),
        layers=(Dropout(rate=0.25), Dense(units=9), RELU, Dropout(rate=0.5), Dropout(rate=0.0), Dense(units=3)),
    ),
    "batch_norm_first_and_after_dense": ModelSpec(
        input=(2, 3, 4),
        layers=(
            BatchNorm(momentum=0.3),
            Conv(filters=3, kernel=2),
            BatchNorm(),
            RELU,
            Dense(units=4),
            BatchNorm(),
            TANH,
            Dense(units=2),
        ),
    ),
    "residual_of_identity": ModelSpec(
        input=(2, 4, 3),
        layers=(Residual(layers=(Conv(filters=2, kernel=3, padding=1), TANH)), Dense(units=3)),
    ),
    # the convolution's output is read by the body's activation and by the sum
    "residual_after_conv_begins_with_activation": ModelSpec(
        input=(1, 4, 4),
        layers=(
            Conv(filters=2, kernel=2),
            Residual(layers=(RELU, Conv(filters=2, kernel=1))),
            RELU,
            Dense(units=2),
        ),
    ),
    "residual_strided": ModelSpec(
        input=(2, 5, 7),
        layers=(
            Residual(
                layers=(
                    Conv(filters=3, kernel=3, padding=1, stride=2),
                    BatchNorm(),
                    RELU,
                    Conv(filters=3, kernel=3, padding=1),
                    BatchNorm(),
                ),
                shortcut=(Conv(filters=3, kernel=1, stride=2), BatchNorm()),
            ),
            RELU,
            GlobalAvgPool(),
            Dense(units=3),
        ),
    ),
    "residual_nested_and_in_shortcut": ModelSpec(
        input=(2, 4, 4),
        layers=(
            Residual(
                layers=(Residual(layers=(TANH, Dropout(rate=0.5))), MaxPool(size=2)),
                shortcut=(Residual(layers=(SIGMOID,), shortcut=(BatchNorm(),)), AvgPool(size=2)),
            ),
            Residual(layers=(GlobalAvgPool(), Dense(units=5), TANH), shortcut=(Dense(units=5),)),
            Dense(units=3),
        ),
    ),
}


def batch_of(
    spec: ModelSpec, size: int, dtype: type = np.float32, seed: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw weights, images and labels, the same for the same arguments."""
    rng = np.random.default_rng(seed)
    weights = rng.uniform(-0.7, 0.7, weight_ranges(spec)[-1].stop).astype(dtype)
    images = rng.normal(size=(size, *spec.input)).astype(dtype)
    labels = rng.integers(0, spec.shapes()[-1][0], size)
    return weights, images, labels


@st.composite
def any_layer(draw, shape: tuple[int, int, int], depth: int = 2):
    """Draw a smooth layer, or a pool, that fits an input of `shape`; residuals nest up to `depth`."""
    kinds = ["conv", "max_pool", "avg_pool", "global_avg_pool", "dense", "activation", "dropout", "batch_norm"]
    kind = draw(st.sampled_from([*kinds, "residual", "residual"] if depth else kinds))
    side = min(shape[1:])
    if kind == "conv":
        kernel = draw(st.integers(1, min(side + 2, 4)))
        least = max(0, -(-(kernel - side) // 2))
        padding, stride = draw(st.integers(least, max(least, kernel - 1))), draw(st.integers(1, 5))
        return Conv(filters=draw(st.integers(1, 3)), kernel=kernel, padding=padding, stride=stride)
    if kind in ("max_pool", "avg_pool"):
        pool = MaxPool if kind == "max_pool" else AvgPool
        return pool(size=draw(st.integers(1, min(side, 3))), stride=draw(st.none() | st.integers(1, 4)))
    if kind == "dense":
        return Dense(units=draw(st.integers(1, 4)))
    if kind == "dropout":
        return Dropout(rate=draw(st.sampled_from([0.0, 0.3, 0.5])))
    if kind == "batch_norm":
        return BatchNorm(momentum=draw(st.sampled_from([0.1, 0.5, 1.0])), epsilon=draw(st.sampled_from([0.01, 0.5])))
    if kind == "residual":
        body, after = draw(any_chain(shape, depth - 1))
        # a shortcut that ends where the body does: as it is, as a strided convolution, or over a dense layer
        if after == shape and draw(st.booleans()):
            return Residual(layers=body)
        for stride in range(1, max(shape[1:]) + 1):
            shortcut = Conv(filters=after[0], kernel=1, stride=stride)
            if shortcut.output_shape(shape) == after:
                return Residual(layers=body, shortcut=(shortcut,))
        units = Dense(units=3)
        return Residual(layers=(*body, units), shortcut=(GlobalAvgPool(), units))
    if kind == "activation":
        return draw(st.sampled_from([SIGMOID, TANH]))
    return GlobalAvgPool()


@st.composite
def any_chain(draw, shape: tuple[int, int, int], depth: int):
    """Draw one to three layers that fit an input of `shape`, and the shape of their output."""
    layers = []
    for _ in range(draw(st.integers(1, 3))):
        layers.append(draw(any_layer(shape, depth)))
        shape = layers[-1].output_shape(shape)
    return tuple(layers), shape


@st.composite
def any_network(draw):
    """Draw a network of any layers that is small enough to be differentiated numerically."""
    shape = draw(st.tuples(st.integers(1, 2), st.integers(1, 7), st.integers(1, 7)))
    layers, _ = draw(any_chain(shape, 2))
    return ModelSpec(input=shape, layers=(*layers, Dense(units=draw(st.integers(1, 3)))))
