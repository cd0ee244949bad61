"""Softmax and softmax cross-entropy over logits (batch, classes)."""

import math

import numpy as np
import numpy.typing as npt

from operators.dnn.kernels.jit import entry, kernel
from operators.dnn.kernels.table import Floats

Labels = npt.NDArray[np.int64]


@entry
def softmax(logits: Floats) -> None:
    """Replace logits by exp(logit - max) / sum, stable for any finite logits."""
    batch, classes = logits.shape
    for n in range(batch):
        best = logits[n, _largest(logits[n])]
        total = logits.dtype.type(0)
        for c in range(classes):
            power = math.exp(logits[n, c] - best)
            logits[n, c] = power
            total += power
        for c in range(classes):
            logits[n, c] /= total


@entry
def cross_entropy(logits: Floats, labels: Labels, predictions: Labels) -> tuple[float, int]:
    """Sum -log softmax(logits)[label] over the batch, in nats and float64, and count the correct predictions."""
    batch, classes = logits.shape
    loss_sum = 0.0
    correct = 0
    for n in range(batch):
        predictions[n] = _largest(logits[n])
        best = logits[n, predictions[n]]
        total = 0.0
        for c in range(classes):
            total += math.exp(logits[n, c] - best)
        loss_sum += math.log(total) - (logits[n, labels[n]] - best)
        correct += predictions[n] == labels[n]
    return loss_sum, correct


@kernel
def cross_entropy_gradient(logits: Floats, labels: Labels, scale: float, gradient: Floats) -> tuple[float, int]:
    """Write scale * (softmax - one-hot label) to `gradient` (batch, classes); return as `cross_entropy` does."""
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
