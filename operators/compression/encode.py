"""Writing codes: what kernels make of an update's range.

A code is a run of sections that cover the range in order; see docs/compression.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from operators.compression.forms import (
    BITMAP,
    BYTES,
    EMPTY,
    FIRST,
    HALVES,
    MAX_RICE,
    RICE,
    SIGNS,
    THIRDS,
    VALUED,
    WORDS,
)
from operators.jit import compiled

Code = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.int64]

_ONE = np.uint32(1)


@compiled
def _number_nbytes(number: int) -> int:
    nbytes = 1
    while number >= 128:
        number >>= 7
        nbytes += 1
    return nbytes


@compiled
def _put_number(code: Code, at: int, number: int) -> int:
    """Write 7 bits a byte, low ones first, the top bit set where more follow; returns the place behind."""
    while number >= 128:
        code[at] = np.uint8(number & 127 | 128)
        number >>= 7
        at += 1
    code[at] = np.uint8(number)
    return at + 1


@compiled
def _put_word(code: Code, at: int, word: Any) -> int:
    """Write a uint32, little endian; returns the place behind."""
    code[at] = np.uint8(word & np.uint32(255))
    code[at + 1] = np.uint8((word >> np.uint32(8)) & np.uint32(255))
    code[at + 2] = np.uint8((word >> np.uint32(16)) & np.uint32(255))
    code[at + 3] = np.uint8(word >> np.uint32(24))
    return at + 4


@compiled
def _put_head(code: Code, at: int, form: int, length: int) -> int:
    """Write how a section begins; returns the place behind."""
    code[at] = np.uint8(form if at else form | FIRST)
    return _put_number(code, at + 1, length)


@compiled
def _place_of(words: Words, index: int, low: int, high: int) -> int:
    """The first of words `low` to `high` of weight `index` or later."""
    while low < high:
        middle = (low + high) >> 1
        if np.int64(words[middle] >> _ONE) < index:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _chunk_of(bounds: Numbers, index: int) -> int:
    """The chunk that has weight `index`."""
    low, high = 0, bounds.size - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if bounds[middle] <= index:
            low = middle
        else:
            high = middle
    return low


@compiled
def _rice_for(length: int, count: int) -> int:
    """The low bits of gaps that are nearly best for positions anywhere."""
    bits = 0
    while (count << (bits + 1)) < length and bits < MAX_RICE:
        bits += 1
    return bits


@compiled
def _expected_nbits(length: int, count: int) -> int:
    """About what a section takes."""
    head = 8 * (1 + _number_nbytes(length))
    if count == 0:
        return head
    bits = _rice_for(length, count)
    gaps = count * (bits + 1) + (length >> bits) - count // 2
    return head + 8 * (5 + _number_nbytes(count)) + count + min(gaps, length)


@compiled
def _thirds(words: Words, low: int, high: int, start: int) -> int:
    """The bits that the gaps of words `low` to `high` take if they are divided by three."""
    n_bits, following = 0, start
    for at in range(low, high):
        place: Any = np.int64(words[at] >> _ONE)
        gap = place - following
        following = place + 1
        quotient = gap // 3
        n_bits += quotient + (2 if gap == 3 * quotient else 3)
    return n_bits


@compiled
def _best_rice(words: Words, low: int, high: int, start: int, length: int) -> Any:
    """The low bits, or `THIRDS`, with which the gaps of words `low` to `high` take least, and the bits these take."""
    middle = max(1, min(MAX_RICE - 1, _rice_for(length, high - low)))
    less, same, more = 0, 0, 0
    following = start
    for at in range(low, high):
        place: Any = np.int64(words[at] >> _ONE)
        gap = place - following
        following = place + 1
        less += gap >> (middle - 1)
        same += gap >> middle
        more += gap >> (middle + 1)
    count = high - low
    less, same, more = less + count * middle, same + count * (middle + 1), more + count * (middle + 2)
    if middle <= 2:
        thirds = _thirds(words, low, high, start)
        if thirds + 8 <= min(less, same, more):  # a byte at least, or what is read faster
            return THIRDS, thirds
    if less <= same and less <= more:
        return middle - 1, less
    return (middle, same) if same <= more else (middle + 1, more)


@compiled
def _put_gaps(code: Code, at: int, words: Words, start: int, bits: int, signed: bool) -> int:
    """Write each gap in unary above its low `bits`, a one, the low bits, and the sign; returns the place behind.

    Divided by three, a gap's low bits are a zero, or a one and whether its remainder is 2.
    """
    buffer, have = np.uint64(0), 0
    following = start
    low_mask = np.int64((1 << bits) - 1)
    for word in words:
        place: Any = np.int64(word >> _ONE)
        gap = place - following
        following = place + 1
        if bits == THIRDS:
            zeros = gap // 3
            rest = gap - 3 * zeros
            rest, n_rest = (3 if rest == 2 else rest), (2 if rest else 1)
        else:
            zeros, rest, n_rest = gap >> bits, gap & low_mask, bits
        while zeros > 24:
            have += 24
            zeros -= 24
            while have >= 8:
                code[at] = np.uint8(buffer & np.uint64(255))
                buffer >>= np.uint64(8)
                have -= 8
                at += 1
        # at most 25 bits, 30 and the sign, behind 7
        field = (np.uint64(rest) << np.uint64(1)) | np.uint64(1)
        width = zeros + 1 + n_rest
        field <<= np.uint64(zeros)
        if signed:
            field |= np.uint64(word & _ONE) << np.uint64(width)
            width += 1
        buffer |= field << np.uint64(have)
        have += width
        while have >= 8:
            code[at] = np.uint8(buffer & np.uint64(255))
            buffer >>= np.uint64(8)
            have -= 8
            at += 1
    if have:
        code[at] = np.uint8(buffer & np.uint64(255))
        at += 1
    return at


@compiled
def _put_bitmap(code: Code, at: int, words: Words, start: int, length: int, signed: bool) -> int:
    """Write the signs, if there are any, and one bit for each weight; returns the place behind."""
    n_signs = (words.size + 7) // 8 if signed else 0
    end = at + n_signs + (length + 7) // 8
    code[at:end] = 0
    for number in range(words.size):
        if signed:
            code[at + (number >> 3)] |= np.uint8((words[number] & _ONE) << np.uint32(number & 7))
        place = np.int64(words[number] >> _ONE) - start
        code[at + n_signs + (place >> 3)] |= np.uint8(1 << (place & 7))
    return end


@compiled
def _sections(words: Words, bounds: Numbers, quanta: Words, start: int, stop: int) -> Any:
    """Where sections end, where among `words` they begin and the last ends, and the quantum of each.

    A section spans neighbouring layers of one quantum where that takes less.
    """
    first, last = _chunk_of(bounds, start), _chunk_of(bounds, stop - 1)
    ends = np.empty(last - first + 1, np.int64)
    marks = np.empty(last - first + 2, np.int64)
    grains = np.empty(last - first + 1, np.uint32)
    marks[0] = _place_of(words, start, 0, words.size)
    number, begin = -1, start
    for layer in range(first, last + 1):
        end = min(bounds[layer + 1], stop)
        mark = _place_of(words, end, marks[number + 1], words.size)
        more, had, joins = mark - marks[number + 1], np.int64(0), False
        if number >= 0:
            had = marks[number + 1] - marks[number]
            apart = _expected_nbits(ends[number] - begin, had) + _expected_nbits(end - ends[number], more)
            alike = had == 0 or more == 0 or grains[number] == quanta[layer]
            joins = alike and _expected_nbits(end - begin, had + more) <= apart
        if not joins:
            begin = ends[number] if number >= 0 else start
            number += 1
        if had == 0 or not joins:
            grains[number] = quanta[layer]
        ends[number] = end
        marks[number + 1] = mark
    return ends[: number + 1], marks[: number + 2], grains


@compiled
def _packed(
    words: Words, ends: Numbers, marks: Numbers, start: int, packing: int, valued: bool
) -> tuple[Numbers, Numbers, int]:
    """The form and the Rice parameter of each section, and the bytes that all of them take."""
    forms, lows = np.full(ends.size, EMPTY), np.zeros(ends.size, np.int64)
    nbytes, begin = 0, start
    for number in range(ends.size):
        count, length = marks[number + 1] - marks[number], ends[number] - begin
        nbytes += 1 + _number_nbytes(length)
        if count:
            low, n_bits = _best_rice(words, marks[number], marks[number + 1], begin, length)
            n_signs = 0 if valued else count
            lows[number] = low
            rice = 1 + (n_bits + n_signs + 7) // 8
            bitmap = (n_signs + 7) // 8 + (length + 7) // 8
            smallest = RICE if rice <= min(bitmap, 4 * count) else (BITMAP if bitmap <= 4 * count else WORDS)
            form = packing if packing else smallest
            forms[number] = form
            nbytes += rice if form == RICE else (bitmap if form == BITMAP else 4 * count)
            nbytes += _number_nbytes(count) + (4 * count if valued else 4)
        begin = ends[number]
    return forms, lows, nbytes


@compiled
def _put_positions(code: Code, at: int, words: Words, begin: int, end: int, form: int, low: int, signed: bool) -> int:
    """Write the words of the section of weights `begin` to `end`; returns the place behind."""
    if form == RICE:
        code[at] = np.uint8(low)
        return _put_gaps(code, at + 1, words, begin, low, signed)
    if form == BITMAP:
        return _put_bitmap(code, at, words, begin, end - begin, signed)
    for word in words:
        relative = word - np.uint32(2 * begin)
        at = _put_word(code, at, relative if signed else relative >> _ONE)
    return at


@compiled
def sparse(words: Words, values: Words, bounds: Numbers, quanta: Words, start: int, stop: int, packing: int) -> Code:
    """The code of a sparse update's weights `start` to `stop`.

    Args:
        words: of the whole update, ascending.
        values: (words,) bits of a float32 for each, or none: then each has the quantum of its layer.
        bounds: (layers + 1,) where layers begin, and the end.
        quanta: (layers,) bits of the float32 that a word of the layer stands for.
        start: the first weight.
        stop: the one behind the last.
        packing: 0 for whichever takes least, else one of WORDS, RICE and BITMAP.
    """
    valued = values.size > 0
    ends, marks, grains = _sections(words, bounds, quanta, start, stop)
    forms, lows, nbytes = _packed(words, ends, marks, start, packing, valued)
    code, at, begin = np.empty(nbytes, np.uint8), 0, start
    for number in range(ends.size):
        form, low, high = forms[number], marks[number], marks[number + 1]
        at = _put_head(code, at, form + VALUED if valued and form != EMPTY else form, ends[number] - begin)
        if form != EMPTY:
            at = _put_number(code, at, high - low)
            if valued:
                for value in values[low:high]:
                    at = _put_word(code, at, value)
            else:
                at = _put_word(code, at, grains[number])
            at = _put_positions(code, at, words[low:high], begin, ends[number], form, lows[number], not valued)
        begin = ends[number]
    return code


@compiled
def halves(values: npt.NDArray[np.uint8], rate: np.uint32) -> Code:
    """The code of float16 values.

    Args:
        values: (2 x weights,) their bytes, little endian.
        rate: bits of the float32 that they are multiplied by.
    """
    length = values.size // 2
    head = 1 + _number_nbytes(length) + 4
    code = np.empty(head + values.size, np.uint8)
    _put_word(code, _put_head(code, 0, HALVES, length), rate)
    code[head:] = values
    return code


@compiled
def small(values: npt.NDArray[np.uint8], bounds: Numbers, steps: Words, start: int, stop: int) -> Code:
    """The code of weights `start` to `stop` as bytes, a section for each chunk.

    Args:
        values: (weights,) bytes of int8.
        bounds: (chunks + 1,).
        steps: (chunks,) bits of the float32 that a chunk's integers are multiplied by.
        start: the first weight.
        stop: the one behind the last.
    """
    first, last = _chunk_of(bounds, start), _chunk_of(bounds, stop - 1)
    code = np.empty(stop - start + 10 * (last - first + 1), np.uint8)
    at, begin = 0, start
    for chunk in range(first, last + 1):
        end = min(bounds[chunk + 1], stop)
        at = _put_word(code, _put_head(code, at, BYTES, end - begin), steps[chunk])
        code[at : at + end - begin] = values[begin:end]
        at += end - begin
        begin = end
    return code[:at].copy()


@compiled
def signs(bits: npt.NDArray[np.uint8], bounds: Numbers, means: Words, start: int, stop: int) -> Code:
    """The code of weights `start` to `stop` as one bit each, a section for each chunk.

    Args:
        bits: (weights / 8 rounded up,) from `quantise.to_signs`.
        bounds: (chunks + 1,).
        means: (chunks, 2) bits of the float32 that a zero and a one stand for.
        start: the first weight.
        stop: the one behind the last.
    """
    first, last = _chunk_of(bounds, start), _chunk_of(bounds, stop - 1)
    code = np.empty((stop - start) // 8 + 15 * (last - first + 1), np.uint8)
    at, begin = 0, start
    for chunk in range(first, last + 1):
        end = min(bounds[chunk + 1], stop)
        at = _put_head(code, at, SIGNS, end - begin)
        at = _put_word(code, _put_word(code, at, means[chunk, 0]), means[chunk, 1])
        shift = np.uint32(begin & 7)
        for byte in range(begin >> 3, (begin >> 3) + (end - begin + 7) // 8):
            both = np.uint32(bits[byte])
            if byte + 1 < bits.size:
                both |= np.uint32(bits[byte + 1]) << np.uint32(8)
            code[at] = np.uint8((both >> shift) & np.uint32(255))
            at += 1
        rest = (end - begin) & 7
        if rest:
            code[at - 1] &= np.uint8((1 << rest) - 1)
        begin = end
    return code[:at].copy()
