"""Reading codes: checked whole, and only then added to a vector.

Both are the same walk, once without and once with writing, so what is written is what was checked. What is allocated is
a block of places, whatever a code declares.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from operators.compression.forms import (
    BITMAP,
    BYTES,
    EMPTY,
    FIRST,
    HALVES,
    MAX_PASSES,
    RICE,
    SIGNS,
    THIRDS,
    VALUED,
    WORDS,
)
from operators.compression.trailing_zeros import trailing_zeros
from operators.jit import compiled
from operators.messages import Vector

Code = npt.NDArray[np.uint8]

_TRUNCATED: Final = 1
_ORDER: Final = 2
_LENGTH: Final = 3
_FORM: Final = 4
_COUNT: Final = 5
_NUMBER: Final = 6
_POSITION: Final = 7
_PADDING: Final = 8
_SHORT: Final = 9
_LARGE: Final = 10
_PASSES: Final = 11

PROBLEMS: Final = {
    _TRUNCATED: "a code ends in the middle of a section",
    _ORDER: "a section of a code is not where one of its range begins",
    _LENGTH: "a section of a code is empty, or longer than what is left of its range",
    _FORM: "a section of a code has no known form",
    _COUNT: "a section of a code declares no updates, more than it has weights, or another number than it has",
    _NUMBER: "a section of a code has a quantum or value that is infinite, not a number, or out of range",
    _POSITION: "positions in a section of a code do not ascend, or leave its range",
    _PADDING: "a section of a code has bits where none belong",
    _SHORT: "a code ends before its range does",
    _LARGE: "a code adds more than any sum bears",
    _PASSES: f"a code has more than {MAX_PASSES} passes over its range",
}

_ONE = np.uint64(1)
_BLOCK: Final = 256
_MOST_SQUARES: Final = float(np.finfo(np.float32).max)
"""Squares of what a code adds sum up to this at most, as those of a fragment of float32: see `quarantine.sound`."""


@compiled
def _signed(number: Any) -> Any:
    """An unsigned number as one that can be added to others; a sum of both kinds would be a float."""
    return np.int64(number)


@compiled
def _number(code: Code, at: int) -> Any:
    """A number and the place behind it; -1 where there is none, or one that is longer than it need be."""
    number, shift = 0, 0
    while at < code.size and shift < 35:
        byte = _signed(code[at])
        number |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return (-1 if byte == 0 and shift else number), at
        shift += 7
    return -1, at


@compiled
def _word(code: Code, at: int) -> Any:
    first = np.uint64(at)  # of an unsigned index the compiler knows that it is not from the end: four loads become one
    low = np.uint32(code[first]) | np.uint32(code[first + _ONE]) << np.uint32(8)
    high = np.uint32(code[first + np.uint64(2)]) | np.uint32(code[first + np.uint64(3)]) << np.uint32(8)
    return np.uint32(low | high << np.uint32(16))


@compiled
def _float(code: Code, at: int) -> Any:
    return np.uint32(_word(code, at)).view(np.float32)


@compiled
def _factor(code: Code, at: int) -> Any:
    """A float that must have no sign, not even of zero; -1 if it has one."""
    return np.float32(-1) if code[at + 3] >> np.uint8(7) else _float(code, at)


@compiled
def _padded(code: Code, last: int, used: int) -> bool:
    """Whether byte `last` has zeros above its `used` low bits; all bits are used if 0."""
    return used == 0 or code[last] >> np.uint8(used) == 0


@compiled
def _words(code: Code, at: int, count: int, part: Vector, delta: Any, scale: Any, values_at: int, write: bool) -> int:
    if 4 * count > code.size - at:
        return -_TRUNCATED
    signed = values_at < 0
    last = -1
    for number in range(count):
        word = _signed(_word(code, at + 4 * number))
        place = word >> 1 if signed else word
        if place <= last or place >= part.size:
            return -_POSITION
        last = place
        if write:
            if signed:
                part[place] += -delta if word & 1 else delta
            else:
                part[place] += scale * _float(code, values_at + 4 * number)
    return at + 4 * count


@compiled
def _bits_from(code: Code, at: int, end: int) -> Any:
    """Eight bytes of a code as one number, or as many as there are before `end`."""
    if end - at >= 8:
        return np.uint64(_word(code, at)) | np.uint64(_word(code, at + 4)) << np.uint64(32)
    bits = np.uint64(0)
    for byte in range(end - at):
        bits |= np.uint64(code[at + byte]) << np.uint64(8 * byte)
    return bits


@compiled
def _n_ones(bits: Any) -> Any:
    """How many bits are set, added up in pairs, fours and eights (Warren, Hacker's Delight, 5-1)."""
    bits -= (bits >> _ONE) & np.uint64(0x5555555555555555)
    bits = (bits & np.uint64(0x3333333333333333)) + ((bits >> np.uint64(2)) & np.uint64(0x3333333333333333))
    bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return _signed((bits * np.uint64(0x0101010101010101)) >> np.uint64(56))


@compiled
def _bitmap(code: Code, at: int, count: int, part: Vector, delta: Any, scale: Any, values_at: int, write: bool) -> int:
    signed = values_at < 0
    n_signs = (count + 7) // 8 if signed else 0
    n_bytes = (part.size + 7) // 8
    if n_signs + n_bytes > code.size - at:
        return -_TRUNCATED
    signs_at, at, end = at, at + n_signs, at + n_signs + n_bytes
    if not write:
        if (signed and not _padded(code, at - 1, count & 7)) or not _padded(code, end - 1, part.size & 7):
            return -_PADDING
        number = 0
        for begin in range(at, end, 8):
            number += _n_ones(_bits_from(code, begin, end))
        return end if number == count else -_COUNT
    number = 0
    for begin in range(at, end, 8):
        bits, first = _bits_from(code, begin, end), 8 * (begin - at)
        while bits:
            place = first + trailing_zeros(bits)
            bits &= bits - _ONE
            if signed:
                negative = (code[signs_at + (number >> 3)] >> np.uint8(number & 7)) & np.uint8(1)
                part[place] += -delta if negative else delta
            else:
                part[place] += scale * _float(code, values_at + 4 * number)
            number += 1
    return end


@compiled
def _filled(code: Code, at: int, buffer: Any, have: int) -> Any:
    """The buffer with at least 56 valid bits where the code has them, and the place and number of bits then.

    Bits of the buffer that are not valid yet are those that the code has next, or zero.
    """
    if code.size - at >= 8:
        word = _bits_from(code, at, code.size)
        return at + ((63 - have) >> 3), buffer | word << np.uint64(have), have | 56
    while at < code.size and have <= 56:
        buffer |= np.uint64(code[at]) << np.uint64(have)
        at += 1
        have += 8
    return at, buffer, have


@compiled
def _rest(buffer: Any, low: int, low_mask: Any) -> Any:
    """How many of the next bits say what a gap is above its quotient's share, and what that is."""
    if low == THIRDS:  # a zero takes one bit
        second = _signed(buffer & _ONE)
        return 1 + second, second + (_signed(buffer >> _ONE) & second)
    return low, _signed(buffer & low_mask)


@compiled
def _add_block(
    words: Any, filled: int, first: int, code: Code, part: Vector, delta: Any, scale: Any, values_at: int
) -> None:
    """Add updates from number `first` on, given the places of `filled` of them, times two, plus one if negative."""
    for number in range(filled):
        place = words[number] >> 1
        if values_at < 0:
            part[place] += -delta if words[number] & 1 else delta
        else:
            part[place] += scale * _float(code, values_at + 4 * (first + number))


@compiled
def _rice(code: Code, at: int, count: int, part: Vector, delta: Any, scale: Any, values_at: int, write: bool) -> int:
    signed = values_at < 0
    if at == code.size:
        return -_TRUNCATED
    low = _signed(code[at])
    if low > THIRDS:
        return -_NUMBER
    at += 1
    low_mask = (_ONE << np.uint64(low)) - _ONE
    divisor, reserve = (3, 2) if low == THIRDS else (1 << low, low)
    most = part.size // divisor
    words, filled = np.empty(_BLOCK if write else 0, np.int64), 0
    buffer, have, place = np.uint64(0), 0, -1
    for number in range(count):
        at, buffer, have = _filled(code, at, buffer, have)
        zeros, quotient = trailing_zeros(buffer), 0
        while zeros >= have:
            if have == 0:
                return -_TRUNCATED
            quotient += have
            at, buffer, have = _filled(code, at, buffer >> np.uint64(have), 0)
            zeros = trailing_zeros(buffer)
        quotient += zeros
        buffer = (buffer >> np.uint64(zeros)) >> _ONE
        have -= zeros + 1
        if have < reserve + signed:
            at, buffer, have = _filled(code, at, buffer, have)
        width, rest = _rest(buffer, low, low_mask)
        if have < width + signed:
            return -_TRUNCATED
        if quotient > most:
            return -_POSITION
        place += 1 + quotient * divisor + rest
        if place >= part.size:
            return -_POSITION
        buffer >>= np.uint64(width)
        have -= width
        negative = _signed(buffer & _ONE) if signed else 0
        if signed:
            buffer >>= _ONE
            have -= 1
        if write:  # a block at a time: what is guessed wrong in decoding would wait for the memory that is added to
            words[filled] = 2 * place + negative
            filled += 1
            if filled == _BLOCK or number + 1 == count:
                _add_block(words, filled, number + 1 - filled, code, part, delta, scale, values_at)
                filled = 0
    at -= have >> 3
    return at if _padded(code, at - 1, -have & 7) else -_PADDING


@compiled
def _sparse(code: Code, at: int, form: int, part: Vector, scale: Any, write: bool) -> int:
    """Updates of some weights, each plus or minus a quantum, or with a value of its own."""
    count, at = _number(code, at)
    if count < 1 or count > part.size:
        return -_COUNT
    valued = form > VALUED
    if (4 * count if valued else 4) > code.size - at:
        return -_TRUNCATED
    delta, values_at = np.float32(0), -1
    if valued:
        values_at = at
        for number in range(count):
            if not np.isfinite(scale * _float(code, at + 4 * number)):
                return -_NUMBER
        at += 4 * count
    else:
        quantum = _factor(code, at)
        delta = scale * quantum
        if not (np.isfinite(delta) and np.isfinite(quantum) and quantum >= 0):
            return -_NUMBER
        at += 4
    kind = form - VALUED if valued else form
    if kind == WORDS:
        return _words(code, at, count, part, delta, scale, values_at, write)
    if kind == RICE:
        return _rice(code, at, count, part, delta, scale, values_at, write)
    return _bitmap(code, at, count, part, delta, scale, values_at, write)


@compiled
def _halves(code: Code, at: int, part: Vector, scale: Any, write: bool) -> int:
    """A float16 for each weight, times one rate."""
    if 4 + 2 * part.size > code.size - at:
        return -_TRUNCATED
    rate = _factor(code, at)
    factor = scale * rate
    if not (np.isfinite(factor * np.float32(65504)) and np.isfinite(rate) and rate >= 0):
        return -_NUMBER
    at += 4
    halves = code[at : at + 2 * part.size]
    if not write:
        bad = np.uint8(0)
        for place in range(part.size):
            bad |= np.uint8((halves[2 * place + 1] & np.uint8(0x7C)) == 0x7C)
        if bad:
            return -_NUMBER
    else:
        for place in range(part.size):
            half = np.uint32(halves[2 * place]) | np.uint32(halves[2 * place + 1]) << np.uint32(8)
            magnitude = np.uint32((half & np.uint32(0x7FFF)) << np.uint32(13)).view(np.float32)
            # the exponents' biases are 112 apart; so multiplied, subnormal ones come right too
            value = factor * (magnitude * np.float32(2.0**112))
            part[place] += -value if half >> np.uint32(15) else value
    return at + 2 * part.size


@compiled
def _bytes(code: Code, at: int, part: Vector, scale: Any, write: bool) -> int:
    """An integer from -127 to 127 for each weight, times one step."""
    if 4 + part.size > code.size - at:
        return -_TRUNCATED
    step = _factor(code, at)
    delta = scale * step
    if not (np.isfinite(delta * np.float32(127)) and np.isfinite(step) and step >= 0):
        return -_NUMBER
    at += 4
    values = code[at : at + part.size]
    if not write:
        bad = np.uint8(0)
        for value in values:
            bad |= np.uint8(value == 128)
        if bad:
            return -_NUMBER
    else:
        for place in range(part.size):
            part[place] += delta * np.float32(np.int8(values[place]))
    return at + part.size


@compiled
def _signs(code: Code, at: int, part: Vector, scale: Any, write: bool) -> int:
    """One of two values for each weight."""
    n_bytes = (part.size + 7) // 8
    if 8 + n_bytes > code.size - at:
        return -_TRUNCATED
    low, high = scale * _float(code, at), scale * _float(code, at + 4)
    if not (np.isfinite(low) and np.isfinite(high)):
        return -_NUMBER
    at += 8
    if not _padded(code, at + n_bytes - 1, part.size & 7):
        return -_PADDING
    if write:
        for byte in range(part.size >> 3):
            bits = np.uint32(code[at + byte])
            for lane in range(8):
                part[8 * byte + lane] += high if (bits >> np.uint32(lane)) & np.uint32(1) else low
        for place in range(part.size & ~7, part.size):
            part[place] += high if (code[at + (place >> 3)] >> np.uint8(place & 7)) & np.uint8(1) else low
    return at + n_bytes


@compiled
def _squares(code: Code, at: int, form: int, length: int) -> Any:
    """What the squares of a section's updates sum up to, at most; the section has been checked."""
    if form == EMPTY:
        return 0.0
    if form >= HALVES:
        largest = np.float64(_float(code, at))
        if form == SIGNS:
            largest = max(abs(largest), abs(np.float64(_float(code, at + 4))))
        else:
            largest *= 65504.0 if form == HALVES else 127.0
        return length * largest * largest
    count, at = _number(code, at)
    if form < VALUED:
        quantum = np.float64(_float(code, at))
        return count * quantum * quantum
    total = 0.0
    for number in range(count):
        value = np.float64(_float(code, at + 4 * number))
        total += value * value
    return total


@compiled
def _section(code: Code, at: int, form: int, part: Vector, scale: Any, write: bool) -> int:
    """The place behind a section, or minus what is wrong with it."""
    if WORDS <= form <= BITMAP or WORDS <= form - VALUED <= BITMAP:
        return _sparse(code, at, form, part, scale, write)
    if form == HALVES:
        return _halves(code, at, part, scale, write)
    if form == BYTES:
        return _bytes(code, at, part, scale, write)
    if form == SIGNS:
        return _signs(code, at, part, scale, write)
    return at if form == EMPTY else -_FORM


@compiled
def walk(code: Code, target: Vector, scale: np.float32, write: bool) -> Any:
    """Go through a code, and add what it says to `target` if told to write.

    Returns:
        0 or which of `PROBLEMS` it has, and the byte where the section in question begins.
    """
    if code.size == 0:
        return _TRUNCATED, 0
    at, begin = 0, 0
    passes, squares, norm = 0, 0.0, 0.0
    while at < code.size:
        first, form = code[at] >= FIRST, _signed(code[at]) & 127
        if first != (begin == 0):
            return _ORDER, at
        length, ended = _number(code, at + 1)
        if length < 1 or length > target.size - begin:
            return _LENGTH, at
        part, content = target[begin : begin + length], ended
        ended = _section(code, content, form, part, scale, write)
        if ended < 0:
            return -ended, at
        if not write:
            squares += _squares(code, content, form, length)
        begin += length
        if begin == target.size:
            norm += math.sqrt(squares)
            begin, passes, squares = 0, passes + 1, 0.0
            if passes > MAX_PASSES:
                return _PASSES, at
            if norm * norm > _MOST_SQUARES:
                return _LARGE, at
        at = ended
    return (_SHORT if begin else 0), at
