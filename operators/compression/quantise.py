"""Passes over a residual: what an update takes of it, and what stays.

Weights are told apart by the bits of their float32: without the sign they are ordered as the magnitudes are, with
infinity and NaN above all others. A word is a weight's index times two, plus one if its value is negative.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from operators.compression.jit import compiled
from operators.messages import Vector

Words = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.int64]

LARGEST = np.uint32(0x7F7FFFFF)
"""The bits of the largest finite magnitude."""

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_SIGN = np.uint32(31)
_ONE = np.uint32(1)
_BLOCK = 64
_BIN = np.uint32(19)
_BINS = 4096
_FINITE_BINS = 4080
_ROUNDING = np.float32(1.5 * 2**23)
_MAX_BYTE = np.float32(127)


@compiled
def _any_over(bits: Words, limit: np.uint32) -> Any:
    found = np.uint32(0)
    for each in bits:  # this way the compiler uses vectors
        found |= np.uint32((each & _MAGNITUDE) > limit)
    return found


@compiled
def _room(words: Words, filled: int) -> Words:
    """The words with room for a block behind the first `filled`."""
    if filled + _BLOCK <= words.size:
        return words
    larger = np.empty(2 * words.size + _BLOCK, np.uint32)
    larger[:filled] = words[:filled]
    return larger


@compiled
def over(bits: Words, bounds: Numbers, limits: Words) -> tuple[Words, Numbers]:
    """The weights whose magnitude exceeds the limit of their group.

    Args:
        bits: (weights,) of the values' float32.
        bounds: (groups + 1,) ascending; group i has the weights from ``bounds[i]`` to ``bounds[i + 1]``.
        limits: (groups,) bits of float32.

    Returns:
        Their words, ascending, and how many there are in each group.
    """
    words, filled = np.empty(_BLOCK, np.uint32), 0
    counts = np.zeros(limits.size, np.int64)
    for group in range(limits.size):
        limit, before = limits[group], filled
        for begin in range(bounds[group], bounds[group + 1], _BLOCK):
            end = min(begin + _BLOCK, bounds[group + 1])
            if _any_over(bits[begin:end], limit):
                words = _room(words, filled)
                for place in range(begin, end):
                    if (bits[place] & _MAGNITUDE) > limit:
                        words[filled] = np.uint32(2 * place) | (bits[place] >> _SIGN)
                        filled += 1
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
    multiples = np.empty(words.size, np.uint8)
    for word in words:
        if not math.isfinite(values[word >> _ONE]):
            return np.int64(word >> _ONE), multiples
    at = 0
    for group in range(counts.size):
        tau = taus[group]
        bound = clip * tau
        for _ in range(counts[group]):
            place = words[at] >> _ONE
            magnitude = abs(values[place])
            times = max(np.float32(1), min(np.float32(most), np.float32(np.ceil(magnitude / tau)) - np.float32(1)))
            left = min(magnitude - times * tau, bound)
            values[place] = -left if words[at] & _ONE else left
            multiples[at] = np.uint8(times)
            at += 1
    return np.int64(-1), multiples


@compiled
def not_finite(bits: Words) -> int:
    """The first weight that is infinite or not a number, or -1."""
    for begin in range(0, bits.size, 4 * _BLOCK):
        if _any_over(bits[begin : begin + 4 * _BLOCK], LARGEST):
            for place in range(begin, bits.size):
                if (bits[place] & _MAGNITUDE) > LARGEST:
                    return place
    return -1


@compiled
def _limit(bits: Words, count: int) -> Any:
    """The magnitude of rank `count` as bits, and how many of rank up to it have just this one.

    A histogram of the upper bits tells the few in which to look for it.
    """
    histogram = np.zeros(_BINS, np.int64)
    for each in bits:
        histogram[(each & _MAGNITUDE) >> _BIN] += 1
    if histogram[_FINITE_BINS:].any():
        return LARGEST, np.int64(-1)
    missing, number = count, _FINITE_BINS - 1
    while missing > histogram[number]:
        missing -= histogram[number]
        number -= 1
    members, filled = np.empty(histogram[number], np.uint32), 0
    for each in bits:
        if (each & _MAGNITUDE) >> _BIN == number:
            members[filled] = each & _MAGNITUDE
            filled += 1
    members.sort()
    limit = members[filled - missing]
    return limit, missing - np.sum(members > limit)


@compiled
def largest(bits: Words, count: int) -> Any:
    """The weights of the `count` largest magnitudes, of equal ones the first, and none that is zero.

    Args:
        bits: (weights,) of the values' float32.
        count: from 1 to the number of weights.

    Returns:
        Whether all weights are finite, and twice the indices, ascending.
    """
    limit, ties = _limit(bits, count)
    if ties < 0:
        return False, np.empty(0, np.uint32)
    if limit == 0:
        ties = 0
    words, filled = np.empty(count, np.uint32), 0
    below = limit - _ONE if limit else limit
    for begin in range(0, bits.size, _BLOCK):
        end = min(begin + _BLOCK, bits.size)
        if _any_over(bits[begin:end], below):
            for place in range(begin, end):
                magnitude = bits[place] & _MAGNITUDE
                tie = magnitude == limit and ties > 0
                if magnitude > limit or tie:
                    words[filled] = np.uint32(2 * place)
                    filled += 1
                    ties -= np.int64(tie)
    return True, words[:filled].copy()


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
def to_signs(values: Vector, bounds: Numbers, bits: npt.NDArray[np.uint8], means: npt.NDArray[np.float32]) -> None:
    """Replace values by the mean of those of their sign in the chunk; what is more or less stays in `values`.

    Args:
        values: (weights,) finite.
        bounds: (chunks + 1,).
        bits: (weights / 8 rounded up,), all zero; bit ``i & 7`` of byte ``i >> 3`` is set where weight i is not negative.
        means: (chunks, 2) receives the means of the negative and of the other values.
    """
    for chunk in range(bounds.size - 1):
        begin, end = bounds[chunk], bounds[chunk + 1]
        low, high, n_low = 0.0, 0.0, 0
        for each in values[begin:end]:
            negative = each < 0
            low += each if negative else np.float32(0)
            high += np.float32(0) if negative else each
            n_low += negative
        means[chunk, 0] = np.float32(low / max(n_low, 1))
        means[chunk, 1] = np.float32(high / max(end - begin - n_low, 1))
        for place in range(begin, end):
            positive = not (values[place] < 0)
            bits[place >> 3] |= np.uint8(np.uint8(positive) << np.uint8(place & 7))
            values[place] -= means[chunk, 1] if positive else means[chunk, 0]
