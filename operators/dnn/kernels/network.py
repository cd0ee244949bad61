"""The compiled entries: they interpret a program table over one flat workspace buffer.

One compilation serves every network. Nothing is checked here: `operators.dnn.model` does that.
Weights, images and labels come as read-only arrays, so that there is one compilation per dtype.
"""

import numpy as np

from operators.dnn.kernels.activation import activation_backward, activation_forward
from operators.dnn.kernels.conv import conv_backward, conv_forward
from operators.dnn.kernels.dense import dense_backward, dense_forward
from operators.dnn.kernels.jit import entry, kernel
from operators.dnn.kernels.loss import Labels, cross_entropy, cross_entropy_gradient
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


@entry
def forward(program: Row, weights: Floats, images: Floats, buffer: Floats) -> Floats:
    """Run images (batch, pixels), at least one, through the network; return the logits (classes, batch) in `buffer`."""
    batch, pixels = images.shape
    _load(images, matrix(buffer, program[0, INPUT], pixels, batch))
    for index in range(program.shape[0]):
        row = program[index]
        if row[OPCODE] == CONV:
            conv_forward(row, weights, buffer, batch)
        elif row[OPCODE] == MAX_POOL:
            pool_forward(row, buffer, batch)
        elif row[OPCODE] == DENSE:
            dense_forward(row, weights, buffer, batch)
        else:
            activation_forward(row, buffer, batch)
    return matrix(buffer, program[-1, OUTPUT], program[-1, OUT_CHANNELS], batch)


@entry
def gradient(
    program: Row, weights: Floats, images: Floats, labels: Labels, out: Floats, buffer: Floats, scale: float
) -> tuple[float, int]:
    """Write scale * d loss_sum / d weights to `out`; return the summed loss and the number of correct predictions.

    images: (batch, pixels), at least one. labels: (batch,) int64.
    """
    batch = images.shape[0]
    logits = forward(program, weights, images, buffer)
    loss_sum, correct = cross_entropy(logits, labels, np.empty(batch, np.int64))
    delta = matrix(buffer, program[-1, OUTPUT_GRADIENT], logits.shape[0], batch)
    cross_entropy_gradient(logits, labels, scale, delta)
    # nothing below the first layer that has weights needs a gradient
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
    return loss_sum, correct
