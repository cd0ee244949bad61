"""Kernels of the quantising passes against plain NumPy."""

import numpy as np
import pytest

from operators.compression import quantise
from operators.dnn.arrays import read_only


def values_of(n_weights, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(n_weights) * np.exp(rng.standard_normal(n_weights))).astype(np.float32)


def over(values, bounds, taus):
    bits, limits = read_only(values.view(np.uint32)), read_only(np.array(taus, np.float32).view(np.uint32))
    return quantise.over(bits, read_only(np.array(bounds)), limits, np.empty(values.size, np.uint32))


@pytest.mark.parametrize("n_weights", [1, 127, 128, 129, 5000])
@pytest.mark.parametrize("tau", [1e-6, 0.5, 3.0, 1e6])
def test_over_is_where_numpy_finds_more(n_weights, tau):
    values = values_of(n_weights)
    words, counts = over(values, [0, n_weights], [tau])
    places = np.flatnonzero(np.abs(values) > np.float32(tau))
    assert words.tolist() == (2 * places + (values[places] < 0)).tolist()
    assert counts.tolist() == [places.size]


@pytest.mark.parametrize("cut", [1, 64, 128, 1000, 4999])
def test_over_of_parts_is_that_of_the_whole(cut):
    values = values_of(5000)
    whole, count = over(values, [0, 5000], [1.0])
    parts, counts = over(values, [0, cut, 5000], [1.0, 1.0])
    assert parts.tolist() == whole.tolist()
    assert counts.sum() == count[0]
    assert counts[0] == np.count_nonzero(whole < 2 * cut)
    # so ranges can be dealt out to several cores
    first, _ = over(values[:cut], [0, cut], [1.0])
    second, _ = over(values[cut:].copy(), [0, 5000 - cut], [1.0])
    assert [*first.tolist(), *(second + 2 * cut).tolist()] == whole.tolist()


def test_over_without_a_limit_finds_what_is_not_finite():
    values = np.array([1e38, np.inf, -np.inf, np.nan, -1e38, 0], np.float32)
    assert (over(values, [0, 6], [0])[0] >> 1).tolist() == [1, 2, 3]


@pytest.mark.parametrize("place", [None, 0, 255, 256, 999])
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_not_finite_is_the_first_place_or_none(place, bad):
    values = values_of(1000)
    if place is not None:
        values[place:] = bad
    assert quantise.not_finite(read_only(values.view(np.uint32))) == (-1 if place is None else place)


@pytest.mark.parametrize("count", [1, 2, 500, 4999, 5000])
def test_largest_of_many_equal_ones_are_the_first(count):
    values = np.random.default_rng(0).integers(-3, 4, 5000).astype(np.float32)
    words = quantise.largest(read_only(values.view(np.uint32)), count, np.empty(5000, np.uint32))
    expected = np.argsort(-np.abs(values), kind="stable")[:count]
    assert (words >> 1).tolist() == sorted(place for place in expected.tolist() if values[place])
    assert not (words & 1).any()


def test_to_bytes_is_numpys_rounding():
    values = values_of(5000)
    bounds, kept = np.array([0, 10, 3000, 5000]), values.copy()
    codes, steps = np.empty(5000, np.int8), np.empty(3, np.float32)
    quantise.to_bytes(values, read_only(bounds), codes, steps)
    for chunk, (start, stop) in enumerate([(0, 10), (10, 3000), (3000, 5000)]):
        part = kept[start:stop]
        step = np.abs(part).max() / np.float32(127)
        assert steps[chunk] == step
        assert codes[start:stop].tolist() == np.rint(part / step).tolist()
        assert values[start:stop].tolist() == (part - np.rint(part / step) * step).tolist()


def test_to_bytes_of_the_smallest_float32_keeps_what_it_cannot_send():
    values = np.array([1e-45, -4e-45, 0], np.float32)
    codes, steps = np.empty(3, np.int8), np.empty(1, np.float32)
    kept = values.copy()
    quantise.to_bytes(values, read_only(np.array([0, 3])), codes, steps)
    assert (codes * steps[0] + values == kept).all()


def test_to_signs_is_numpys_means():
    values = values_of(5003)
    bounds, kept = np.array([0, 13, 3000, 5003]), values.copy()
    bits, means = np.zeros(626, np.uint8), np.empty((3, 2), np.float32)
    quantise.to_signs(values, read_only(bounds), bits, means)
    positive = np.unpackbits(bits, bitorder="little")
    assert positive[:5003].tolist() == (kept >= 0).tolist()
    assert not positive[5003:].any()
    for chunk, (start, stop) in enumerate([(0, 13), (13, 3000), (3000, 5003)]):
        part = kept[start:stop]
        low, high = part[part < 0].mean(dtype=np.float64), part[part >= 0].mean(dtype=np.float64)
        np.testing.assert_allclose(means[chunk], [low, high], rtol=1e-7)
        assert values[start:stop].tolist() == (part - np.where(part < 0, *means[chunk])).tolist()
