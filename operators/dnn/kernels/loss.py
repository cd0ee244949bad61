"""Softmax and softmax cross-entropy over logits (classes, batch), image innermost."""

import math

import numpy as np
import numpy.typing as npt

from operators.dnn.kernels.jit import entry, kernel
from operators.dnn.kernels.table import Floats

Labels = npt.NDArray[np.int64]


@entry
def softmax(logits: Floats, probabilities: Floats) -> None:
    """Write exp(logit - max) / sum to `probabilities` (classes, batch), stable for any finite logits."""
    classes, batch = logits.shape
    for n in range(batch):
        best = logits[_largest(logits, n), n]
        total = logits.dtype.type(0)
        for c in range(classes):
            power = math.exp(logits[c, n] - best)
            probabilities[c, n] = power
            total += power
        for c in range(classes):
            probabilities[c, n] /= total


@entry
def cross_entropy(logits: Floats, labels: Labels, predictions: Labels) -> tuple[float, int]:
    """Sum -log softmax(logits)[label] over the batch, in nats and float64, and count the correct predictions."""
    classes, batch = logits.shape
    loss_sum = 0.0
    correct = 0
    for n in range(batch):
        predictions[n] = _largest(logits, n)
        best = logits[predictions[n], n]
        total = 0.0
        for c in range(classes):
            total += math.exp(logits[c, n] - best)
        loss_sum += math.log(total) - (logits[labels[n], n] - best)
        correct += predictions[n] == labels[n]
    return loss_sum, correct


@kernel
def cross_entropy_gradient(logits: Floats, labels: Labels, scale: float, gradient: Floats) -> None:
    """Write scale * (softmax - one-hot label) to `gradient` (classes, batch): the loss differentiated by the logits."""
    softmax(logits, gradient)
    classes, batch = logits.shape
    factor = logits.dtype.type(scale)
    for n in range(batch):
        gradient[labels[n], n] -= logits.dtype.type(1)
    for c in range(classes):
        for n in range(batch):
            gradient[c, n] *= factor


@kernel
def _largest(logits: Floats, image: int) -> int:
    """Class of the largest logit of one image: the first of equals, or the first NaN, as np.argmax has it."""
    winner = 0
    for c in range(1, logits.shape[0]):
        value = logits[c, image]
        best = logits[winner, image]
        if value > best or (math.isnan(value) and not math.isnan(best)):
            winner = c
    return winner
