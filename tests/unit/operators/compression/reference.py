"""Codes read as docs/compression.md has them, byte by byte and with nothing of the program: slow, and plain to see."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

import numpy as np

MOST = float(np.finfo(np.float32).max)


class RefusedError(Exception):
    """No encoder has made this."""


def require(holds: bool) -> None:
    if not holds:
        raise RefusedError


class Reader:
    """A code, and how much of it was read."""

    def __init__(self, code: bytes) -> None:
        self.code, self.at = code, 0

    def take(self, nbytes: int) -> bytes:
        require(self.at + nbytes <= len(self.code))
        self.at += nbytes
        return self.code[self.at - nbytes : self.at]

    def number(self) -> int:
        value = 0
        for place in range(5):
            byte = self.take(1)[0]
            value |= (byte & 127) << 7 * place
            if byte < 128:
                require(byte > 0 or place == 0)
                return value
        raise RefusedError

    def floats(self, count: int) -> np.ndarray:
        values = np.frombuffer(self.take(4 * count), "<f4").astype(np.float32)
        require(bool(np.isfinite(values).all()))
        return values

    def factor(self, largest: float) -> np.float32:
        value = self.floats(1)[0]
        require(not np.signbit(value) and float(value) * largest <= MOST)
        return value

    def bits(self, count: int) -> list[int]:
        """So many bits, from the lowest of each byte; the rest of the last byte is zero."""
        every = [byte >> bit & 1 for byte in self.take((count + 7) // 8) for bit in range(8)]
        require(not any(every[count:]))
        return every[:count]


def gaps(reader: Reader, count: int, *, signed: bool) -> Iterator[tuple[int, int]]:
    """Gaps and signs of Rice coded positions."""
    low = reader.take(1)[0]
    require(low <= 31)
    rest, used = reader.code[reader.at :], 0

    def bit() -> int:
        nonlocal used
        require(used < 8 * len(rest))
        used += 1
        return rest[(used - 1) // 8] >> (used - 1) % 8 & 1

    for _ in range(count):
        quotient = 0
        while not bit():
            quotient += 1
        if low == 31:
            gap = 3 * quotient + (1 + bit() if bit() else 0)
        else:
            gap = (quotient << low) + sum(bit() << place for place in range(low))
        yield gap, bit() if signed else 0
    reader.bits(used)


def positions(reader: Reader, kind: int, count: int, length: int, *, signed: bool) -> Iterator[tuple[int, int]]:
    """Places in the section and signs."""
    if kind == 1:
        for (word,) in struct.iter_unpack("<I", reader.take(4 * count)):
            yield (word >> 1, word & 1) if signed else (word, 0)
    elif kind == 2:
        place = -1
        for gap, sign in gaps(reader, count, signed=signed):
            place += 1 + gap
            require(place < length)
            yield place, sign
    else:
        signs = reader.bits(count) if signed else [0] * count
        places = np.flatnonzero(reader.bits(length)).tolist()
        require(len(places) == count)
        yield from zip(places, signs, strict=True)


def sparse(reader: Reader, form: int, part: np.ndarray) -> float:
    count = reader.number()
    require(1 <= count <= part.size)
    valued = form > 4
    values = reader.floats(count) if valued else np.full(count, reader.factor(1), np.float32)
    last = -1
    places = list(positions(reader, form - 4 * valued, count, part.size, signed=not valued))
    for value, (place, sign) in zip(values, places, strict=True):
        require(last < place < part.size)
        last = place
        part[place] += -value if sign else value
    return float((values.astype(np.float64) ** 2).sum())


def section(reader: Reader, form: int, part: np.ndarray) -> float:
    """Add a section to its weights; what the squares of what it adds sum up to, at most."""
    n = part.size
    if form == 0:
        return 0.0
    if form in (1, 2, 3, 5, 6, 7):
        return sparse(reader, form, part)
    if form == 8:
        rate = reader.factor(65504)
        halves = np.frombuffer(reader.take(2 * n), "<f2").astype(np.float32)
        require(bool(np.isfinite(halves).all()))
        part += rate * halves
        return n * (65504 * float(rate)) ** 2
    if form == 9:
        step = reader.factor(127)
        steps = np.frombuffer(reader.take(n), np.int8)
        require(bool((steps > -128).all()))
        part += step * steps.astype(np.float32)
        return n * (127 * float(step)) ** 2
    require(form == 10)
    means = reader.floats(2)
    part += means[reader.bits(n)]
    return n * float(np.abs(means).max()) ** 2


def read(code: bytes, n_weights: int) -> np.ndarray:
    """What a code adds to so many weights.

    Raises:
        RefusedError: it is none of so many weights.
    """
    reader, target = Reader(code), np.zeros(n_weights, np.float32)
    begin, passes, squares, norm = 0, 0, 0.0, 0.0
    require(bool(code))
    with np.errstate(over="ignore"):
        while reader.at < len(code):
            head = reader.take(1)[0]
            require((head >= 128) == (begin == 0))
            length = reader.number()
            require(1 <= length <= n_weights - begin)
            squares += section(reader, head & 127, target[begin : begin + length])
            begin += length
            if begin == n_weights:
                norm, squares, begin, passes = norm + math.sqrt(squares), 0.0, 0, passes + 1
                require(passes <= 1024 and norm * norm <= MOST)
    require(begin == 0)
    return target
