"""The network in plain NumPy: slow, obvious, and what the kernels are tested against.

Arrays are (batch, channel, row, column); every function computes in the dtype of the weights.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from operators.dnn.layers import Activation, Conv, Dense, MaxPool
from operators.dnn.spec import ModelSpec, weight_ranges

Floats = npt.NDArray[Any]
"""An array of one floating-point dtype."""


def forward(spec: ModelSpec, weights: Floats, images: Floats) -> list[Floats]:
    """Return the input and every layer's output, each (batch, channels, height, width); the last holds the logits."""
    outputs = [images]
    arrays = iter(_arrays(spec, weights))
    for layer in spec.layers:
        x = outputs[-1]
        if isinstance(layer, Conv):
            weight, bias = next(arrays), next(arrays)
            windows = _windows(_padded(x, layer.padding), layer.kernel, layer.stride)
            outputs.append(np.einsum("ncyxij,fcij->nfyx", windows, weight) + bias[:, None, None])
        elif isinstance(layer, MaxPool):
            outputs.append(_windows(x, layer.size, layer.step).max((4, 5)))
        elif isinstance(layer, Dense):
            weight, bias = next(arrays), next(arrays)
            outputs.append((x.reshape(len(x), -1) @ weight.T + bias)[:, :, None, None])
        else:
            outputs.append(_activate(layer, x))
    return outputs


def gradient(
    spec: ModelSpec, weights: Floats, images: Floats, labels: npt.NDArray[np.int64], scale: float
) -> tuple[Floats, float, int]:
    """Differentiate the summed softmax cross-entropy of a batch.

    Args:
        spec: the network.
        weights: (n_weights,), whose dtype the computation has.
        images: (batch, channels, height, width).
        labels: (batch,), the class of each image.
        scale: factor on the gradient (not on the loss).

    Returns:
        The gradient (n_weights,), the summed loss in nats, and how many images were classified correctly.
    """
    outputs = forward(spec, weights, images)
    logits = outputs[-1][:, :, 0, 0]
    picked = np.arange(len(labels))
    shifted = logits - logits.max(1, keepdims=True)
    total = np.exp(shifted).sum(1, keepdims=True)
    loss_sum = float((np.log(total[:, 0]) - shifted[picked, labels]).sum())
    correct = int((logits.argmax(1) == labels).sum())

    delta = np.exp(shifted) / total
    delta[picked, labels] -= 1
    delta = (scale * delta)[:, :, None, None].astype(weights.dtype)

    out = np.zeros_like(weights)
    arrays = _arrays(spec, weights)
    slots = _arrays(spec, out)
    for layer, (x, y) in zip(reversed(spec.layers), reversed(list(pairwise(outputs))), strict=True):
        if isinstance(layer, Conv):
            slots.pop()[:] = delta.sum((0, 2, 3))
            windows = _windows(_padded(x, layer.padding), layer.kernel, layer.stride)
            slots.pop()[:] = np.einsum("nfyx,ncyxij->fcij", delta, windows)
            arrays.pop()
            delta = _conv_input_gradient(layer, x, arrays.pop(), delta)
        elif isinstance(layer, MaxPool):
            delta = _pool_input_gradient(layer, x, delta)
        elif isinstance(layer, Dense):
            rows = delta[:, :, 0, 0]
            slots.pop()[:] = rows.sum(0)
            slots.pop()[:] = rows.T @ x.reshape(len(x), -1)
            arrays.pop()
            delta = (rows @ arrays.pop()).reshape(x.shape)
        else:
            delta = delta * _derivative(layer, y)
    return out, loss_sum, correct


def _arrays(spec: ModelSpec, vector: Floats) -> list[Floats]:
    return [vector[start:stop].reshape(shape) for _, start, stop, shape in weight_ranges(spec)]


def _padded(x: Floats, padding: int) -> Floats:
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
            reached += np.einsum("nfyx,fc->ncyx", delta, weight[:, :, i, j])
    height, width = x.shape[2:]
    return padded[:, :, layer.padding : layer.padding + height, layer.padding : layer.padding + width]


def _pool_input_gradient(layer: MaxPool, x: Floats, delta: Floats) -> Floats:
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
