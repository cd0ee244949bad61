"""The embedded UCI optical digits: 1,797 images of 8x8 pixels, 0..16. Origin: ako_jobs/data/README.md."""

import gzip
from importlib import resources

import numpy as np
from numpy.typing import NDArray

SIDE = 8
MAX_PIXEL = 16
TEST_STRIDE = 5


def read_digits() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read the whole set in file order: images uint8 (1797, 1, 8, 8) in 0..16, labels uint8 (1797,)."""
    with resources.files("ako_jobs.data").joinpath("digits.csv.gz").open("rb") as packed, gzip.open(packed) as text:
        table = np.loadtxt(text, dtype=np.uint8, delimiter=",")
    return np.ascontiguousarray(table[:, :-1]).reshape(-1, 1, SIDE, SIDE), table[:, -1]


def is_test(labels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Say which samples are held out for testing: the 5th, 10th, 15th ... of each class, in file order.

    Args:
        labels: uint8 (n,), the classes in file order.

    Returns:
        bool (n,); a fifth of every class, rounded down, is True.
    """
    held_out = np.zeros(labels.shape, np.bool_)
    for label in np.unique(labels):
        held_out[np.flatnonzero(labels == label)[TEST_STRIDE - 1 :: TEST_STRIDE]] = True
    return held_out
