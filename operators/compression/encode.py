"""Writing codes: what kernels make of an update's range.

A code is a run of sections that cover the range in order; see docs/compression.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from operators.compression.forms import BITMAP, BYTES, EMPTY, FIRST, HALVES, MAX_RICE, RICE, SIGNS, VALUED, WORDS
from operators.compression.jit import compiled

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
def _best_rice(words: Words, low: int, high: int, start: int, length: int) -> Any:
    """The low bits with which the gaps of words `low` to `high` take least, and the bits that these take."""
    middle = max(1, min(MAX_RICE - 1, _rice_for(length, high - low)))
    less, same, more = np.int64(0), np.int64(0), np.int64(0)
    following = start
    for at in range(low, high):
        place = np.int64(words[at] >> _ONE)
        gap = place - following
        following = place + 1
        less += gap >> (middle - 1)
        same += gap >> middle
        more += gap >> (middle + 1)
    count = high - low
    less, same, more = less + count * middle, same + count * (middle + 1), more + count * (middle + 2)
    if less <= same and less <= more:
        return middle - 1, less
    return (middle, same) if same <= more else (middle + 1, more)


@compiled
def _put_gaps(code: Code, at: int, words: Words, start: int, bits: int, signed: bool) -> int:
    """Write each gap in unary above its low `bits`, a one, the low bits, and the sign; returns the place behind."""
    buffer, have = np.uint64(0), np.int64(0)
    following = start
    low_mask = np.int64((1 << bits) - 1)
    for word in words:
        place = np.int64(word >> _ONE)
        gap = place - following
        following = place + 1
        zeros = gap >> bits
        while zeros > 24:
            have += 24
            zeros -= 24
            while have >= 8:
                code[at] = np.uint8(buffer & np.uint64(255))
                buffer >>= np.uint64(8)
                have -= 8
                at += 1
        # at most 25 bits, 30 and the sign, behind 7
        field = (np.uint64(gap & low_mask) << np.uint64(1)) | np.uint64(1)
        width = zeros + 1 + bits
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
def sparse(words: Words, values: Words, bounds: Numbers, quanta: Words, start: int, stop: int, packing: int) -> Code:
    """The code of a sparse update's weights `start` to `stop`.

    A section has one quantum and one Rice parameter. It spans neighbouring layers where that takes less.

    Args:
        words: of the whole update, ascending.
        values: (words,) bits of a float32 for each, or none: then each has the quantum of its layer.
        bounds: (layers + 1,) where layers begin, and the end.
        quanta: (layers,) bits of the float32 that a word of the layer stands for.
        start, stop: at least one weight.
        packing: 0 for whichever takes least, else one of WORDS, RICE and BITMAP.
    """
    valued = values.size > 0
    layer = _chunk_of(bounds, start)
    last = _chunk_of(bounds, stop - 1)
    ends = np.empty(last - layer + 1, np.int64)
    marks = np.empty(last - layer + 2, np.int64)
    grain = np.empty(last - layer + 1, np.uint32)
    marks[0] = _place_of(words, start, 0, words.size)
    count, begin = -1, start
    for each in range(layer, last + 1):
        end = min(bounds[each + 1], stop)
        mark = _place_of(words, end, marks[count + 1], words.size)
        more = mark - marks[count + 1]
        joins = False
        if count >= 0:
            had = marks[count + 1] - marks[count]
            length = ends[count] - begin
            alike = valued or had == 0 or more == 0 or grain[count] == quanta[each]
            apart = _expected_nbits(length, had) + _expected_nbits(end - ends[count], more)
            joins = alike and _expected_nbits(end - begin, had + more) <= apart
            if joins:
                grain[count] = grain[count] if had else quanta[each]
            else:
                begin = ends[count]
        if not joins:
            count += 1
            grain[count] = quanta[each]
        ends[count] = end
        marks[count + 1] = mark
    count += 1

    forms, lows, nbytes = np.empty(count, np.int64), np.empty(count, np.int64), 0
    begin = start
    for each in range(count):
        n_words, length = marks[each + 1] - marks[each], ends[each] - begin
        nbytes += 1 + _number_nbytes(length)
        forms[each] = EMPTY
        if n_words:
            low, n_bits = _best_rice(words, marks[each], marks[each + 1], begin, length)
            n_signs = 0 if valued else n_words
            lows[each] = low
            rice = 1 + (n_bits + n_signs + 7) // 8
            bitmap = (n_signs + 7) // 8 + (length + 7) // 8
            plain = 4 * n_words
            form = packing
            if packing == 0:
                form = RICE if rice <= min(bitmap, plain) else (BITMAP if bitmap <= plain else WORDS)
            forms[each] = form
            nbytes += rice if form == RICE else (bitmap if form == BITMAP else plain)
            nbytes += _number_nbytes(n_words) + (4 * n_words if valued else 4)
        begin = ends[each]

    code, at, begin = np.empty(nbytes, np.uint8), 0, start
    for each in range(count):
        form, length = forms[each], ends[each] - begin
        at = _put_head(code, at, form + VALUED if valued and form != EMPTY else form, length)
        if form != EMPTY:
            part = words[marks[each] : marks[each + 1]]
            at = _put_number(code, at, part.size)
            if valued:
                for value in values[marks[each] : marks[each + 1]]:
                    at = _put_word(code, at, value)
            else:
                at = _put_word(code, at, grain[each])
            if form == RICE:
                code[at] = np.uint8(lows[each])
                at = _put_gaps(code, at + 1, part, begin, lows[each], not valued)
            elif form == BITMAP:
                at = _put_bitmap(code, at, part, begin, length, not valued)
            else:
                for word in part:
                    relative = word - np.uint32(2 * begin)
                    at = _put_word(code, at, relative >> _ONE if valued else relative)
        begin = ends[each]
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
        start, stop: at least one weight.
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
        start, stop: at least one weight.
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
