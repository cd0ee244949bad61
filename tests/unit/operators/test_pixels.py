"""The compiled passes over pixels, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from operators.pixels import gathered, standardised


def test_gathered_is_the_rows_asked_for_times_the_factor_in_their_order() -> None:
    images = np.arange(24, dtype=np.uint8).reshape(4, 1, 2, 3)
    got = gathered(images, np.array([3, 0, 3]), np.float32(0.5))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, images[[3, 0, 3]] / 2)


@pytest.mark.parametrize("batch", [0, 1, 5])
def test_compiled_passes_give_the_bits_that_numpy_gives(batch: int) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 3, 4, 5), np.uint8)
    rows = rng.integers(0, 6, batch)
    mean, std = np.float32([0.1, 0.5, 0.7]), np.float32([0.3, 0.2, 0.9])
    scaled = images[rows].astype(np.float32) * np.float32(1 / 255)
    np.testing.assert_array_equal(gathered(images, rows, np.float32(1 / 255)), scaled)
    shape = (1, 3, 1, 1)
    np.testing.assert_array_equal(standardised(scaled, mean, std), (scaled - mean.reshape(shape)) / std.reshape(shape))


def test_standardised_takes_images_that_are_no_contiguous_array() -> None:
    images = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)[:, :, ::2, ::-1]
    got = standardised(images, np.float32([1]), np.float32([2]))
    assert got.tolist() == [[[[1, 0.5, 0, -0.5], [5, 4.5, 4, 3.5]]]]
