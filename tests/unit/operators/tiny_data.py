"""Data sets of a few pixels and a network with two weights per class, small enough to work results out by hand."""

from dataclasses import dataclass

import numpy as np

from operators.data import DataRef
from operators.dnn import Dense, ModelSpec

# Two pixels in, two classes out; logits = W x + b with W = vector[:4].reshape(2, 2) and b = vector[4:].
TWO = ModelSpec(input=(1, 1, 2), layers=(Dense(units=2),))
IDENTITY = np.array([1, 0, 0, 1, 0, 0], np.float32)


@dataclass(frozen=True, eq=False)
class TinyData:
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    n_classes: int = 2
    scale: float = 10.0


def numbered(count):
    """`count` training images that show their own number in the first pixel; five test images."""
    images = np.zeros((count, 1, 1, 2), np.uint8)
    images[:, 0, 0, 0] = np.arange(count)
    test = np.array([[9, 1], [8, 3], [2, 7], [0, 5], [6, 4]], np.uint8).reshape(5, 1, 1, 2)
    return images, np.arange(count) % 2, test, np.array([0, 0, 1, 1, 1])


def load(name, data_dir):
    return TinyData(*numbered(int(name)))


def data(count):
    return DataRef(loader="tiny_data:load", name=str(count))


def numbers(batch):
    """Which training images a batch holds."""
    return np.rint(batch.images[:, 0, 0, 0] * 10).astype(int).tolist()
