"""Passes over a residual: what an update takes of it, and what stays.

Weights are told apart by the bits of their float32: without the sign they are ordered as the magnitudes are, with
infinity and NaN above all others. A word is a weight's index times two, plus one if its value is negative.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from operators.compression.trailing_zeros import trailing_zeros
from operators.dnn.arrays import read_only
from operators.jit import compiled
from operators.messages import Vector

Words = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.int64]

LARGEST = np.uint32(0x7F7FFFFF)
"""The bits of the largest finite magnitude."""

BIN = np.uint32(19)
"""Lower bits of a magnitude that its place in the histogram leaves out."""

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_SIGN = np.uint32(31)
_ONE = np.uint32(1)
_BLOCK = 128
_LANES = 64
_BINS = 4096
_ROUNDING = np.float32(1.5 * 2**23)
_MAX_BYTE = np.float32(127)
_SHIFT = np.uint32(13)
_BIAS = np.uint32(112 << 23)
_HALF = np.uint32(126 << 23)
_LARGEST_HALF = np.uint32(0x477FE000)
_SMALLEST_NORMAL = np.uint32(113 << 23)


@compiled
def _any_over(bits: Words, limit: np.uint32) -> Any:
    borrow = np.uint32(0)
    for each in bits:  # with differences, whose sign is what counts, the compiler uses vectors
        borrow |= np.uint32(limit - np.uint32(each & _MAGNITUDE))
    return borrow >> _SIGN


@compiled
def _which_over(bits: Words, begin: int, limit: np.uint32) -> Any:
    """A bit for each of the 64 from `begin` on, which is set if it is over the limit; the compiler uses vectors."""
    which = np.uint64(0)
    for lane in range(_LANES):
        which |= np.uint64((bits[begin + lane] & _MAGNITUDE) > limit) << np.uint64(lane)
    return which


@compiled
def _put(words: Words, filled: int, place: int, bits: np.uint32) -> int:
    words[filled] = np.uint32(2 * place) | np.uint32(bits >> _SIGN)
    return filled + 1


@compiled
def _over(bits: Words, first: int, limit: np.uint32, words: Words, filled: int) -> int:
    """Write the words of those over the limit behind the first `filled`; returns how many are filled then."""
    for begin in range(0, bits.size, _BLOCK):
        end = min(begin + _BLOCK, bits.size)
        if not _any_over(bits[begin:end], limit):
            continue
        for lanes in range(begin, end - _LANES + 1, _LANES):
            which = _which_over(bits, lanes, limit)
            while which:
                place = lanes + trailing_zeros(which)
                which &= which - np.uint64(1)
                filled = _put(words, filled, first + place, bits[place])
        for rest in range(end - (end - begin) % _LANES, end):
            if (bits[rest] & _MAGNITUDE) > limit:
                filled = _put(words, filled, first + rest, bits[rest])
    return filled


@compiled
def over(bits: Words, bounds: Numbers, limits: Words, words: Words) -> Any:
    """The weights whose magnitude exceeds the limit of their group.

    Args:
        bits: (weights,) of the values' float32.
        bounds: (groups + 1,) ascending; group i has the weights from ``bounds[i]`` to ``bounds[i + 1]``.
        limits: (groups,) bits of float32; where they are zero only what is not finite exceeds them.
        words: (weights,) to work in. To let it grow as it fills took twice as long.

    Returns:
        Their words, ascending, and how many there are in each group.
    """
    counts, filled = np.zeros(limits.size, np.int64), 0
    for group in range(limits.size):
        start, stop = bounds[group], bounds[group + 1]
        before = filled
        limit = limits[group] if limits[group] else LARGEST
        filled = _over(bits[start:stop], start, limit, words, filled)
        counts[group] = filled - before
    return words[:filled].copy(), counts


@compiled
def take(values: Vector, words: Words, counts: Numbers, taus: Vector, most: int, clip: np.float32) -> Any:
    """Subtract from weights as many times tau as an update carries (strom_sparse_sgd.txt 2.6).

    Args:
        values: (weights,); those of `words` exceed the tau of their group.
        words: from `over`.
        counts: from `over`.
        taus: (groups,).
        most: times tau that one weight is sent at most.
        clip: times tau that may stay.

    Returns:
        The first weight that is not finite, or -1; (words,) uint8 how many times tau each is sent. Where a weight is
        not finite nothing has been changed.
    """
    for word in words:
        if not math.isfinite(values[word >> _ONE]):
            return np.int64(word >> _ONE), np.empty(0, np.uint8)
    multiples = np.ones(words.size, np.uint8)
    at = 0
    for group in range(counts.size):
        tau = taus[group]
        bound = clip * tau
        for _ in range(counts[group]):
            place = words[at] >> _ONE
            magnitude, times = abs(values[place]), np.float32(1)
            if most > 1:
                times = max(times, min(np.float32(most), np.float32(np.ceil(magnitude / tau)) - np.float32(1)))
                multiples[at] = np.uint8(times)
            left = min(magnitude - times * tau, bound)
            values[place] = -left if words[at] & _ONE else left
            at += 1
    return np.int64(-1), multiples


@compiled
def not_finite(bits: Words) -> int:
    """The first weight that is infinite or not a number, or -1."""
    for begin in range(0, bits.size, 2 * _BLOCK):
        if _any_over(bits[begin : begin + 2 * _BLOCK], LARGEST):
            for place in range(begin, bits.size):
                if (bits[place] & _MAGNITUDE) > LARGEST:
                    return place
    return -1


@compiled
def histogram(bits: Words) -> Numbers:
    """How many weights there are by the upper bits of their magnitude; see `BIN`."""
    counts = np.zeros(_BINS, np.int64)
    for each in bits:
        counts[(each & _MAGNITUDE) >> BIN] += 1
    return counts


def largest(bits: Words, count: int, words: Words) -> Words:
    """The weights of the `count` largest magnitudes, of equal ones the first, and none that is zero.

    Args:
        bits: (weights,) of the values' float32.
        count: from 1 to the number of weights.
        words: (weights,) to work in.

    Returns:
        Twice their indices, ascending.
    """
    at_least = np.cumsum(histogram(bits)[::-1])
    edge = int(_BINS - 1 - np.searchsorted(at_least, count)) << int(BIN)
    limits = np.array([max(edge - 1, 1)], np.uint32)
    found, _ = over(bits, read_only(np.array([0, bits.size])), read_only(limits), words)
    magnitudes = bits[found >> _ONE] & _MAGNITUDE
    if found.size > count:
        limit = np.partition(magnitudes, found.size - count)[found.size - count]
        above, ties = magnitudes > limit, np.flatnonzero(magnitudes == limit)
        above[ties[: count - np.count_nonzero(above)]] = True
        found = found[above]
    even: Words = found & ~_ONE
    return even


@compiled
def to_halves(values: Vector, halves: npt.NDArray[np.uint16]) -> None:
    """Round to float16, the largest finite one at most; the rest stays in `values`, exactly.

    Args:
        values: (weights,) finite.
        halves: (weights,) receives the bits of float16.
    """
    for place in range(values.size):
        bits = np.uint32(np.float32(values[place]).view(np.uint32))
        magnitude = min(np.uint32(bits & _MAGNITUDE), _LARGEST_HALF)
        # both round halves to even: adding a half aligns subnormal ones, the others are rounded as integers
        aligned = np.uint32(magnitude).view(np.float32) + np.float32(0.5)
        small = np.uint32(np.float32(aligned).view(np.uint32) - _HALF)
        odd = np.uint32(magnitude >> _SHIFT) & _ONE
        normal = np.uint32(np.uint32(magnitude + np.uint32(0xFFF) + odd - _BIAS) >> _SHIFT)
        half = np.uint32(small if magnitude < _SMALLEST_NORMAL else normal)
        halves[place] = np.uint16(half | np.uint32((bits & ~_MAGNITUDE) >> np.uint32(16)))
        back = np.uint32(half << _SHIFT).view(np.float32) * np.float32(2.0**112)
        values[place] -= -back if bits >> _SIGN else back


@compiled
def to_bytes(values: Vector, bounds: Numbers, codes: npt.NDArray[np.int8], steps: Vector) -> None:
    """Round to multiples of a 127th of each chunk's largest magnitude; the rest stays in `values`, exactly.

    Args:
        values: (weights,) finite.
        bounds: (chunks + 1,).
        codes: (weights,) receives the multiples.
        steps: (chunks,) receives what they are multiples of.
    """
    for chunk in range(steps.size):
        part, target = values[bounds[chunk] : bounds[chunk + 1]], codes[bounds[chunk] : bounds[chunk + 1]]
        top = np.float32(0)
        for each in part:
            top = max(top, abs(each))
        step = top / _MAX_BYTE
        steps[chunk] = step
        if step == 0:
            target[:] = 0
            continue
        for place in range(part.size):
            # adding and subtracting it rounds to an integer, halves to even ones
            rounded = (part[place] / step + _ROUNDING) - _ROUNDING
            rounded = min(max(rounded, -_MAX_BYTE), _MAX_BYTE)
            target[place] = np.int8(rounded)
            part[place] -= rounded * step


@compiled
def _sums(part: Vector) -> Any:
    """The sums of values and of magnitudes, four each, since an addition waits for the one before."""
    sum_0, sum_1, sum_2, sum_3 = 0.0, 0.0, 0.0, 0.0
    all_0, all_1, all_2, all_3 = 0.0, 0.0, 0.0, 0.0
    for four in range(part.size >> 2):
        a, b = np.float64(part[4 * four]), np.float64(part[4 * four + 1])
        c, d = np.float64(part[4 * four + 2]), np.float64(part[4 * four + 3])
        sum_0, sum_1, sum_2, sum_3 = sum_0 + a, sum_1 + b, sum_2 + c, sum_3 + d
        all_0, all_1, all_2, all_3 = all_0 + abs(a), all_1 + abs(b), all_2 + abs(c), all_3 + abs(d)
    for place in range(part.size & ~3, part.size):
        sum_0, all_0 = sum_0 + part[place], all_0 + abs(part[place])
    return (sum_0 + sum_1) + (sum_2 + sum_3), (all_0 + all_1) + (all_2 + all_3)


@compiled
def _n_negative(part: Vector) -> int:
    found = 0
    for each in part:
        found += each < 0
    return found


@compiled
def _subtract(part: Vector, below: Any, above: Any) -> None:
    """Subtract one of two means of each value."""
    for place in range(part.size):
        part[place] -= below if part[place] < 0 else above


@compiled
def _set_bytes(part: Vector, bits: npt.NDArray[np.uint8]) -> None:
    """A byte for each eight values, with a bit for each that is not negative."""
    for byte in range(part.size >> 3):
        packed = np.uint32(0)
        for lane in range(8):  # of a slice the compiler would not make vectors
            packed |= np.uint32(not (part[8 * byte + lane] < 0)) << np.uint32(lane)
        bits[byte] = np.uint8(packed)


@compiled
def _set_bits(values: Vector, begin: int, end: int, bits: npt.NDArray[np.uint8]) -> None:
    """Set a bit for each value that is not negative, where a byte has others' bits, too."""
    for place in range(begin, end):
        bits[place >> 3] |= np.uint8(not (values[place] < 0)) << np.uint8(place & 7)


@compiled
def to_signs(values: Vector, bounds: Numbers, bits: npt.NDArray[np.uint8], means: npt.NDArray[np.float32]) -> None:
    """Replace values by the mean of those of their sign in the chunk; what is more or less stays in `values`.

    Args:
        values: (weights,) finite.
        bounds: (chunks + 1,).
        bits: (weights / 8 rounded up,) zeros; bit ``i & 7`` of byte ``i >> 3`` is set where weight i is not negative.
        means: (chunks, 2) receives the means of the negative and of the other values.
    """
    for chunk in range(bounds.size - 1):
        begin, end = bounds[chunk], bounds[chunk + 1]
        part = values[begin:end]
        total, magnitudes = _sums(part)
        n_low = _n_negative(part)
        below = np.float32((total - magnitudes) / (2 * max(n_low, 1)))
        above = np.float32((total + magnitudes) / (2 * max(end - begin - n_low, 1)))
        means[chunk, 0], means[chunk, 1] = below, above
        whole = min(end, (begin + 7) & ~7)
        behind = max(whole, end & ~7)
        _set_bits(values, begin, whole, bits)
        _set_bytes(values[whole:behind], bits[whole >> 3 :])
        _set_bits(values, behind, end, bits)
        _subtract(part, below, above)
