"""The compiled entries: they interpret a program table over one flat workspace buffer.

One compilation serves every network. Nothing is checked here: `operators.dnn.model` does that.
Read-only types are declared by the caller, so that there is one compilation per dtype.
"""

import numpy as np

from operators.dnn.kernels.activation import activation_backward, activation_forward
from operators.dnn.kernels.conv import conv_backward, conv_forward
from operators.dnn.kernels.dense import dense_backward, dense_forward
from operators.dnn.kernels.jit import entry, kernel
from operators.dnn.kernels.loss import Labels, cross_entropy, cross_entropy_gradient, softmax
from operators.dnn.kernels.pool import pool_backward, pool_forward
from operators.dnn.kernels.table import (
    CONV,
    DENSE,
    INPUT,
    MAX_POOL,
    OPCODE,
    OUT_CHANNELS,
    OUTPUT,
    OUTPUT_GRADIENT,
    WEIGHTS,
    Floats,
    Row,
    matrix,
)


@kernel
def _load(images: Floats, target: Floats) -> None:
    """Transpose images (batch, pixels) to (pixels, batch), in blocks of one cache line."""
    batch, pixels = images.shape
    for begin in range(0, pixels, 16):
        end = min(begin + 16, pixels)
        for n in range(batch):
            for pixel in range(begin, end):
                target[pixel, n] = images[n, pixel]


@kernel
def _forward(program: Row, weights: Floats, images: Floats, buffer: Floats) -> Floats:
    """Run the network; return the logits (classes, batch)."""
    batch, pixels = images.shape
    _load(images, matrix(buffer, program[0, INPUT], pixels, batch))
    no_bias = np.zeros(1, buffer.dtype)
    for index in range(program.shape[0]):
        row = program[index]
        if row[OPCODE] == CONV:
            conv_forward(row, weights, buffer, batch)
        elif row[OPCODE] == MAX_POOL:
            pool_forward(row, buffer, batch)
        elif row[OPCODE] == DENSE:
            dense_forward(row, weights, buffer, batch)
        else:
            activation_forward(row, buffer, no_bias, batch)
    return matrix(buffer, program[-1, OUTPUT], program[-1, OUT_CHANNELS], batch)


@kernel
def _backward(program: Row, weights: Floats, buffer: Floats, out: Floats, batch: int) -> None:
    """Propagate the logits' gradient down to the first layer that has weights."""
    first = 0
    while program[first, WEIGHTS] < 0:
        first += 1
    for index in range(program.shape[0] - 1, first - 1, -1):
        row = program[index]
        if row[OPCODE] == CONV:
            conv_backward(row, weights, buffer, out, batch, index > first)
        elif row[OPCODE] == MAX_POOL:
            pool_backward(row, buffer, batch)
        elif row[OPCODE] == DENSE:
            dense_backward(row, weights, buffer, out, batch, index > first)
        else:
            activation_backward(row, buffer, batch)


@entry
def gradient(
    program: Row, weights: Floats, images: Floats, labels: Labels, out: Floats, buffer: Floats, scale: float
) -> tuple[float, int]:
    """Write scale * d loss_sum / d weights to `out`; return the summed loss and the number of correct predictions.

    images: (batch, pixels). labels: (batch,) int64. A batch of none has gradient and loss 0.
    """
    batch = images.shape[0]
    if batch == 0:
        out[:] = 0
        return 0.0, 0
    logits = _forward(program, weights, images, buffer)
    loss_sum, correct = cross_entropy(logits, labels, np.empty(batch, np.int64))
    delta = matrix(buffer, program[-1, OUTPUT_GRADIENT], logits.shape[0], batch)
    cross_entropy_gradient(logits, labels, scale, delta)
    _backward(program, weights, buffer, out, batch)
    return loss_sum, correct


@entry
def evaluate(
    program: Row, weights: Floats, images: Floats, labels: Labels, predictions: Labels, buffer: Floats
) -> tuple[float, int]:
    """Write the predicted classes to `predictions` (batch,); return the summed loss and the number correct."""
    if images.shape[0] == 0:
        return 0.0, 0
    return cross_entropy(_forward(program, weights, images, buffer), labels, predictions)


@entry
def predict(program: Row, weights: Floats, images: Floats, probabilities: Floats, buffer: Floats) -> None:
    """Write the softmax of the logits to `probabilities` (classes, batch)."""
    if images.shape[0] > 0:
        softmax(_forward(program, weights, images, buffer), probabilities)
