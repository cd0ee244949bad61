import dataclasses

import numpy as np
import pytest

from dataflow.message import nbytes
from operators.divergence import ReplicaSample
from operators.messages import (
    Accumulated,
    Batch,
    Fragment,
    Gradient,
    Offer,
    Predictions,
    Progress,
    Validation,
    Weights,
)

HEADER = 128
IMAGES = np.zeros((3, 1, 8, 8), np.float32)
LABELS = np.zeros(3, np.int64)
FIVE = np.zeros(5, np.float32)


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (Batch(0, 0, 1, IMAGES, LABELS, 3, 0.0, 0.5, 6), HEADER + 3 * 64 * 4 + 3 * 8),
        (Gradient(1, FIVE, 1), HEADER + 20),
        (Accumulated(1), HEADER),
        (Offer(1, 0, 4), HEADER),
        (Fragment(0, 0, 4, 0, 1, 2, skips=False, values=FIVE), HEADER + 20),
        (Weights(0, 1, 0, 4, 2, FIVE), HEADER + 20),
        (Progress(1, 16, 0.1, 2.3), HEADER),
        (Validation(1, 16, 0.1, 10, 0.5, 2.0, None, None, 2.3), HEADER),
        (ReplicaSample(0, 1, final=False, values=FIVE), HEADER + 20),
        (Predictions(16, LABELS, LABELS), HEADER + 48),
    ],
    ids=lambda value: type(value).__name__,
)
def test_nbytes_is_a_header_and_the_arrays(message, size):
    assert nbytes(message) == size


def test_message_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Gradient(1, FIVE, 1).number = 2


def test_with_images_keeps_everything_else():
    batch = Batch(4, 1, 2, IMAGES, LABELS, 6, 0.0, 0.5, 12)
    other = batch.with_images(np.ones_like(IMAGES))
    assert (other.step, other.shard, other.shards, other.size, other.epoch, other.of_all) == (4, 1, 2, 6, 0.5, 12)
    assert other.labels is LABELS
    assert other.images.min() == 1
