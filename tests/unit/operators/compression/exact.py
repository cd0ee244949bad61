"""Gradients whose sums are exact, and updates decoded in pieces."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from operators.compression import add


def vector(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def eighths(rng: np.random.Generator, n_weights: int, most: int = 64) -> np.ndarray:
    """Multiples of 1/8 up to `most` of them; any 1,000 of them add up exactly."""
    return (rng.integers(-most, most + 1, n_weights) / 8).astype(np.float32)


def decoded(update, cuts=(), scale: float = 1.0) -> np.ndarray:
    """What an update says, decoded range by range between the cuts."""
    target = np.zeros(update.n_weights, np.float32)
    places = sorted({0, *cuts, update.n_weights})
    for start, stop in pairwise(places):
        add(target[start:stop], update.encode(start, stop), scale)
    return target
