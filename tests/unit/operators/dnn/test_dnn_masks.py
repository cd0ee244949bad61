import math

import numpy as np
import pytest

from operators.dnn.masks import uniform_bits

WRAP = 2**64


def draw(key, number):
    z = (key + (number + 1) * 0x9E3779B97F4A7C15) % WRAP
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WRAP
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WRAP
    return z ^ (z >> 31)


def test_draws_of_the_scalar_formula_are_the_published_ones_of_splitmix64():
    # the first outputs for seed 1234567, as in several published implementations
    assert [draw(1234567, number) for number in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@pytest.mark.parametrize("seed", [0, 1, 2**63 + 5, 2**64 - 1])
def test_bits_equal_those_of_the_scalar_formula(seed):
    expected = [
        [draw(draw(draw(draw(seed, 0), 7), image), element) >> 32 for element in range(5)] for image in (0, 3, 2**40)
    ]
    bits = uniform_bits(seed, 7, [0, 3, 2**40], 5)
    assert bits.dtype == np.uint32
    assert bits.tolist() == expected


def test_bits_of_some_images_are_those_rows_of_all():
    whole = uniform_bits(11, 2, np.arange(9), 30)
    assert uniform_bits(11, 2, [4, 8], 30).tolist() == whole[[4, 8]].tolist()
    assert uniform_bits(11, 2, np.arange(9), 12).tolist() == whole[:, :12].tolist()


def test_bits_of_no_images_are_empty():
    assert uniform_bits(0, 0, [], 4).shape == (0, 4)


def test_seed_is_taken_modulo_two_to_the_64():
    assert uniform_bits(2**64 + 3, 0, [0], 4).tolist() == uniform_bits(3, 0, [0], 4).tolist()


@pytest.mark.parametrize("shift", [0, 8, 16, 24])
@pytest.mark.parametrize("shape", [(1, 65536), (65536, 1), (256, 256)])
def test_bytes_of_bits_are_uniform(shape, shift):
    images, elements = shape
    bits = uniform_bits(42, 1, np.arange(images), elements)
    counts = np.bincount((bits.ravel() >> shift) & 255, minlength=256)
    # 65,536 draws in 256 bins: 256 expected in each; chi-square has mean 255 and deviation sqrt(2 * 255) = 22.6
    chi_square = ((counts - 256) ** 2 / 256).sum()
    assert abs(chi_square - 255) < 4 * math.sqrt(2 * 255)


@pytest.mark.parametrize(
    "other",
    [(43, 1, 0), (42 + 2**32, 1, 0), (42 + 0x9E3779B97F4A7C15, 1, 0), (42, 2, 0), (42, 1, 1), (41, 2, 0), (42, 0, 1)],
)
def test_bits_of_neighbours_are_independent(other):
    ones = uniform_bits(42, 1, [0], 40_000)
    others = uniform_bits(other[0], other[1], [other[2]], 40_000)
    differing = np.unpackbits((ones ^ others).view(np.uint8).reshape(-1, 4), axis=1)
    # a bit differs in half of 40,000 draws, deviation sqrt(40,000) / 2 = 100; all 1,280,000 bits: 566
    assert np.abs(differing.sum(0, dtype=int) - 20_000).max() < 450
    assert abs(int(differing.sum()) - 640_000) < 4 * 566
    # both at least a quarter: (3/4)^2 of 40,000 is 22,500, deviation sqrt(40,000 * 9/16 * 7/16) = 99
    quarter = 2**30
    assert abs(int(((ones >= quarter) & (others >= quarter)).sum()) - 22_500) < 4 * 99


def test_bits_shifted_by_one_element_are_independent():
    bits = uniform_bits(7, 0, [0], 40_001)[0]
    differing = np.unpackbits((bits[1:] ^ bits[:-1]).view(np.uint8))
    assert abs(int(differing.sum()) - 640_000) < 4 * 566


@pytest.mark.parametrize(("rate", "kept", "deviation"), [(0.5, 50_000, 158), (0.2, 80_000, 126), (0.9, 10_000, 95)])
def test_share_of_bits_at_or_above_the_rate_is_one_minus_rate(rate, kept, deviation):
    # of 100,000 draws, with deviation sqrt(100,000 * rate * (1 - rate))
    bits = uniform_bits(3, 5, np.arange(100), 1000)
    assert abs(int((bits >= rate * 2**32).sum()) - kept) < 4 * deviation
