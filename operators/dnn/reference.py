"""The network in plain NumPy: slow, obvious, and what the kernels are tested against.

Arrays are (batch, channel, row, column); every function computes in the dtype of the weights. `gradient` and
`advanced` train: batch normalisation takes the batch's statistics, dropout drops. `forward` evaluates.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from operators.dnn.init import initial_statistics
from operators.dnn.layers import Activation, AvgPool, BatchNorm, Conv, Dense, Dropout, GlobalAvgPool, MaxPool
from operators.dnn.masks import uniform_bits
from operators.dnn.spec import ModelSpec, WeightRange, statistic_ranges, steps, weight_ranges

Floats = npt.NDArray[Any]
"""An array of one floating-point dtype."""


def forward(spec: ModelSpec, weights: Floats, images: Floats, *, statistics: Floats | None = None) -> list[Floats]:
    """Return the input and every layer's output, each (batch, channels, height, width); the last holds the logits.

    Batch normalisation takes the running statistics, (n_statistics,), which are the initial ones if not given;
    nothing is dropped. The layers within a residual are not among the outputs.
    """
    if statistics is None:
        statistics = initial_statistics(spec)
    outputs = _outputs(spec, weights, images, statistics.astype(weights.dtype))
    return [images, *(y for step, y in zip(steps(spec), outputs[1:], strict=True) if len(step.path) == 1)]


def gradient(
    spec: ModelSpec,
    weights: Floats,
    images: Floats,
    labels: npt.NDArray[np.int64],
    scale: float,
    *,
    seed: int = 0,
) -> tuple[Floats, float, int]:
    """Differentiate the summed softmax cross-entropy of a batch in training.

    Args:
        spec: the network.
        weights: (n_weights,), whose dtype the computation has.
        images: (batch, channels, height, width).
        labels: (batch,), the class of each image.
        scale: factor on the gradient (not on the loss).
        seed: of what is dropped; see `operators.dnn.masks`.

    Returns:
        The gradient (n_weights,), the summed loss in nats, and how many images were classified correctly.
    """
    outputs = _outputs(spec, weights, images, seed=seed)
    logits = outputs[-1][:, :, 0, 0]
    delta, loss_sum = _softmax(logits, labels)
    correct = int((logits.argmax(1) == labels).sum())
    delta[np.arange(len(labels)), labels] -= 1
    # one for each of the outputs, to which every layer that read it adds its share
    deltas = [np.zeros_like(output) for output in outputs]
    deltas[-1] += scale * delta[:, :, None, None]

    out = np.zeros_like(weights)
    arrays = _arrays(weight_ranges(spec), weights)
    slots = _arrays(weight_ranges(spec), out)
    for index, step in reversed(list(enumerate(steps(spec)))):
        layer, x, y, delta = step.layer, outputs[step.sources[0]], outputs[index + 1], deltas[index + 1]
        if isinstance(layer, Conv | Dense | BatchNorm):
            arrays.pop()
            weight = arrays.pop()
            slots.pop()[:] = delta.sum((0, 2, 3))
        if isinstance(layer, Conv):
            windows = _windows(_padded(x, layer.padding), layer.kernel, layer.stride)
            slots.pop()[:] = np.tensordot(delta, windows, ((0, 2, 3), (0, 2, 3)))
            delta = _conv_input_gradient(layer, x, weight, delta)
        elif isinstance(layer, Dense):
            rows = delta[:, :, 0, 0]
            slots.pop()[:] = rows.T @ x.reshape(len(x), -1)
            delta = (rows @ weight).reshape(x.shape)
        elif isinstance(layer, BatchNorm):
            normalised = _normalised(layer, x, x.mean((0, 2, 3)), x.var((0, 2, 3)))
            slots.pop()[:] = (delta * normalised).sum((0, 2, 3))
            delta = _norm_input_gradient(layer, x, normalised, delta * _by_channel(weight))
        elif isinstance(layer, MaxPool):
            delta = _max_input_gradient(layer, x, delta)
        elif isinstance(layer, AvgPool):
            delta = _mean_input_gradient(layer, x, delta)
        elif isinstance(layer, GlobalAvgPool):
            delta = np.broadcast_to(delta / (x.shape[2] * x.shape[3]), x.shape)
        elif isinstance(layer, Activation):
            delta = delta * _derivative(layer, y)
        elif isinstance(layer, Dropout):
            delta = delta * _kept(layer, index, x, seed)
        for source in step.sources:
            deltas[source] += delta
    return out, loss_sum, correct


def loss(spec: ModelSpec, weights: Floats, images: Floats, labels: npt.NDArray[np.int64], *, seed: int = 0) -> float:
    """Return the summed loss of a batch in training, as `gradient` does, without differentiating it."""
    return _softmax(_outputs(spec, weights, images, seed=seed)[-1][:, :, 0, 0], labels)[1]


def advanced(spec: ModelSpec, weights: Floats, images: Floats, statistics: Floats, *, seed: int = 0) -> Floats:
    """Return the running statistics (n_statistics,) after a batch in training has moved them; see `BatchNorm`."""
    outputs = _outputs(spec, weights, images, seed=seed)
    result = statistics.astype(weights.dtype)
    slots = iter(_arrays(statistic_ranges(spec), result))
    for step in steps(spec):
        if isinstance(step.layer, BatchNorm):
            x = outputs[step.sources[0]]
            mean, variance = next(slots), next(slots)
            mean += step.layer.momentum * (x.mean((0, 2, 3)) - mean)
            if x.size > mean.size:  # the unbiased variance of one value is not defined
                variance += step.layer.momentum * (x.var((0, 2, 3), ddof=1) - variance)
    return result


def _outputs(
    spec: ModelSpec, weights: Floats, images: Floats, statistics: Floats | None = None, seed: int = 0
) -> list[Floats]:
    """The images and the output of every step: in training where there are no statistics."""
    outputs = [images]
    arrays = iter(_arrays(weight_ranges(spec), weights))
    running = None if statistics is None else iter(_arrays(statistic_ranges(spec), statistics))
    for index, step in enumerate(steps(spec)):
        layer, x = step.layer, outputs[step.sources[0]]
        if isinstance(layer, Conv):
            windows = _windows(_padded(x, layer.padding), layer.kernel, layer.stride)
            y = np.tensordot(windows, next(arrays), ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)
            y = y + _by_channel(next(arrays))
        elif isinstance(layer, Dense):
            y = (x.reshape(len(x), -1) @ next(arrays).T)[:, :, None, None] + _by_channel(next(arrays))
        elif isinstance(layer, BatchNorm):
            mean, variance = (
                (x.mean((0, 2, 3)), x.var((0, 2, 3))) if running is None else (next(running), next(running))
            )
            y = _by_channel(next(arrays)) * _normalised(layer, x, mean, variance) + _by_channel(next(arrays))
        elif isinstance(layer, MaxPool):
            y = _windows(x, layer.size, layer.step).max((4, 5))
        elif isinstance(layer, AvgPool):
            y = _windows(x, layer.size, layer.step).mean((4, 5))
        elif isinstance(layer, GlobalAvgPool):
            y = x.mean((2, 3), keepdims=True)
        elif isinstance(layer, Activation):
            y = _activate(layer, x)
        elif isinstance(layer, Dropout):
            y = x * _kept(layer, index, x, seed) if running is None else x
        else:
            y = x + outputs[step.sources[1]]
        outputs.append(y)
    return outputs


def _softmax(logits: Floats, labels: npt.NDArray[np.int64]) -> tuple[Floats, float]:
    """The probabilities that logits (batch, classes) give, and their summed cross-entropy with the labels."""
    shifted = logits - logits.max(1, keepdims=True)
    total = np.exp(shifted).sum(1, keepdims=True)
    loss_sum = float((np.log(total[:, 0]) - shifted[np.arange(len(labels)), labels]).sum())
    return np.exp(shifted) / total, loss_sum


def _arrays(ranges: list[WeightRange], vector: Floats) -> list[Floats]:
    return [vector[start:stop].reshape(shape) for _, start, stop, shape in ranges]


def _by_channel(values: Floats) -> Floats:
    return values[:, None, None]


def _padded(x: Floats, padding: int) -> Floats:
    if not padding:
        return x
    return np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))


def _windows(x: Floats, size: int, step: int) -> Floats:
    """Views (batch, channel, out row, out column, window row, window column)."""
    return sliding_window_view(x, (size, size), axis=(2, 3))[:, :, ::step, ::step]


def _conv_input_gradient(layer: Conv, x: Floats, weight: Floats, delta: Floats) -> Floats:
    padded = np.zeros_like(_padded(x, layer.padding))
    rows, columns = delta.shape[2] * layer.stride, delta.shape[3] * layer.stride
    for i in range(layer.kernel):
        for j in range(layer.kernel):
            reached = padded[:, :, i : i + rows : layer.stride, j : j + columns : layer.stride]
            reached += np.tensordot(delta, weight[:, :, i, j], (1, 0)).transpose(0, 3, 1, 2)
    height, width = x.shape[2:]
    return padded[:, :, layer.padding : layer.padding + height, layer.padding : layer.padding + width]


def _max_input_gradient(layer: MaxPool, x: Floats, delta: Floats) -> Floats:
    windows = _windows(x, layer.size, layer.step)
    winners = windows.reshape(*windows.shape[:4], -1).argmax(-1)
    image, channel, row, column = np.indices(delta.shape)
    result = np.zeros_like(x)
    reached = (
        image,
        channel,
        row * layer.step + winners // layer.size,
        column * layer.step + winners % layer.size,
    )
    np.add.at(result, reached, delta)
    return result


def _mean_input_gradient(layer: AvgPool, x: Floats, delta: Floats) -> Floats:
    result = np.zeros_like(x)
    rows, columns = delta.shape[2] * layer.step, delta.shape[3] * layer.step
    for i in range(layer.size):
        for j in range(layer.size):
            result[:, :, i : i + rows : layer.step, j : j + columns : layer.step] += delta / layer.size**2
    return result


def _normalised(layer: BatchNorm, x: Floats, mean: Floats, variance: Floats) -> Floats:
    return (x - _by_channel(mean)) / _by_channel(np.sqrt(variance + layer.epsilon))


def _norm_input_gradient(layer: BatchNorm, x: Floats, normalised: Floats, delta: Floats) -> Floats:
    """Ioffe and Szegedy, 2015, section 3, with the derivatives by mean and variance inserted."""
    axes = (0, 2, 3)
    deviation = np.sqrt(x.var(axes, keepdims=True) + layer.epsilon)
    along = (delta * normalised).mean(axes, keepdims=True)
    result: Floats = (delta - delta.mean(axes, keepdims=True) - normalised * along) / deviation
    return result


def _kept(layer: Dropout, index: int, x: Floats, seed: int) -> Floats:
    """The factor of each element: 1 / (1 - rate) where it is kept, else 0."""
    bits = uniform_bits(seed, index, np.arange(len(x)), math.prod(x.shape[1:])).reshape(x.shape)
    factors: Floats = (bits >= layer.rate * 2**32).astype(x.dtype) / x.dtype.type(1 - layer.rate)
    return factors


def _activate(layer: Activation, x: Floats) -> Floats:
    if layer.function == "relu":
        return np.maximum(x, 0)
    if layer.function == "tanh":
        return np.tanh(x)
    # 1 / (1 + exp(-x)), without its overflow for very negative x
    return (1 + np.tanh(x / 2)) / 2


def _derivative(layer: Activation, y: Floats) -> Floats:
    """Derivative of the activation, as a function of its output."""
    slope: Floats
    if layer.function == "relu":
        slope = (y > 0).astype(y.dtype)
    elif layer.function == "tanh":
        slope = 1 - y * y
    else:
        slope = y * (1 - y)
    return slope
