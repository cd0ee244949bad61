"""Softmax cross-entropy over logits (batch, classes), and its gradient."""

import math

import numpy as np
import numpy.typing as npt

from operators.dnn.kernels.jit import kernel
from operators.dnn.kernels.table import Floats

Labels = npt.NDArray[np.int64]


@kernel
def are_classes(labels: Labels, classes: int) -> bool:
    """Whether every label is one of so many classes."""
    outside = 0
    for label in labels:
        outside += label < 0 or label >= classes
    return outside == 0


@kernel
def cross_entropy_gradient(logits: Floats, labels: Labels, scale: float, gradient: Floats) -> tuple[float, int]:
    """Write scale * (softmax - one-hot label) to `gradient` (batch, classes).

    Returns the summed loss in nats and float64, and the number of correct predictions.
    """
    batch, classes = logits.shape
    factor = logits.dtype.type(scale)
    loss_sum = 0.0
    correct = 0
    for n in range(batch):
        largest = _largest(logits[n])
        best = logits[n, largest]
        total = 0.0
        for c in range(classes):
            power = math.exp(logits[n, c] - best)
            gradient[n, c] = power
            total += power
        share = factor / logits.dtype.type(total)
        for c in range(classes):
            gradient[n, c] *= share
        gradient[n, labels[n]] -= factor
        loss_sum += math.log(total) - (logits[n, labels[n]] - best)
        correct += largest == labels[n]
    return loss_sum, correct


@kernel
def _largest(logits: Floats) -> int:
    """The class of the largest logit: the first of equals, or the first NaN, as np.argmax has it."""
    winner = 0
    for c in range(1, logits.size):
        value = logits[c]
        best = logits[winner]
        if value > best or (math.isnan(value) and not math.isnan(best)):
            winner = c
    return winner
