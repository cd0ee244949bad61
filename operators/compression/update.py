"""Updates: quantised vectors over all weights, from which the code of any range is cut."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, final

import numpy as np
import numpy.typing as npt

from operators.compression import encode
from operators.compression.codes import Code, join
from operators.compression.forms import BITMAP, RICE, WORDS
from operators.dnn.arrays import read_only
from operators.messages import Vector

Packing = Literal["auto", "words", "rice", "bitmap"]

_PACKINGS: dict[Packing, int] = {"auto": 0, "words": WORDS, "rice": RICE, "bitmap": BITMAP}

_HEAD_NBYTES = 16
"""Of a section at most: the form, two numbers of 5 bytes, the quantum and the Rice parameter, or two means."""


def _chunks(bounds: npt.NDArray[np.int64], start: int, stop: int) -> int:
    """How many of the chunks that begin at `bounds` weights `start` to `stop` are in."""
    return int(bounds.searchsorted(stop) - bounds.searchsorted(start, side="right")) + 1


class Update(ABC):
    """An immutable quantised vector over all weights, in units of rate x gradient.

    Args:
        n_weights: of the whole vector.
    """

    def __init__(self, n_weights: int) -> None:
        self.n_weights = n_weights

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Memory held, in bytes."""

    @abstractmethod
    def count(self, start: int, stop: int) -> int:
        """How many of weights `start` to `stop` are updated; one in several parts of a sum counts for each of them."""

    @abstractmethod
    def most_nbytes(self, start: int, stop: int) -> int:
        """Bytes that the code of weights `start` to `stop` takes at most, without making it."""

    @final
    def encode(self, start: int, stop: int) -> Code:
        """Weights `start` to `stop` as bytes, which `operators.compression.add` decodes.

        The code of a range adds the same as the codes of its parts do.

        Raises:
            ValueError: not a range of at least one weight.
        """
        if not 0 <= start < stop <= self.n_weights:
            what = f"a code is of one or more of the {self.n_weights} weights, got {start} to {stop}"
            raise ValueError(what)
        return self._encode(start, stop)

    @abstractmethod
    def _encode(self, start: int, stop: int) -> Code: ...


@final
class Sparse(Update):
    """Some weights, each with a sign or a value.

    Args:
        words: (updates,) uint32, index times two, plus one if negative; ascending.
        values: (updates,) float32, or none: then each is plus or minus its layer's quantum.
        bounds: (layers + 1,) int64 where layers begin, and the end; read-only.
        quanta: (layers,) float32.
        packing: of the positions.
    """

    def __init__(
        self,
        words: npt.NDArray[np.uint32],
        values: Vector,
        bounds: npt.NDArray[np.int64],
        quanta: Vector,
        packing: Packing = "auto",
    ) -> None:
        super().__init__(int(bounds[-1]))
        self.words, self.values = read_only(words), read_only(values)
        self._bounds, self._packing = bounds, _PACKINGS[packing]
        self._bits, self._quanta = read_only(values.view(np.uint32)), read_only(quanta.view(np.uint32))

    @property
    def nbytes(self) -> int:
        """Four or, with values, eight for each weight that is updated, and four for each layer."""
        return self.words.nbytes + self.values.nbytes + self._quanta.nbytes

    def count(self, start: int, stop: int) -> int:
        """Those that have a word."""
        first = self.words.searchsorted(np.uint32(2 * start))
        return int(self.words.searchsorted(np.uint32(2 * stop - 1), side="right") - first)

    def most_nbytes(self, start: int, stop: int) -> int:
        """Those of words, unless another packing was asked for; and the heads of as many sections as layers."""
        count, layers = self.count(start, stop), _chunks(self._bounds, start, stop)
        positions = 4 * count
        if self._packing == BITMAP:
            positions = (count + stop - start) // 8 + 2 * layers
        elif self._packing == RICE:  # 30 low bits, two zeros in the mean, a one and a sign
            positions = 5 * count
        return positions + (4 * count if self.values.size else 0) + _HEAD_NBYTES * layers

    def _encode(self, start: int, stop: int) -> Code:
        return encode.sparse(self.words, self._bits, self._bounds, self._quanta, start, stop, self._packing)


@final
class Sum(Update):
    """Several updates of the same weights.

    Args:
        parts: at least one.
    """

    def __init__(self, parts: Sequence[Update]) -> None:
        super().__init__(parts[0].n_weights)
        self.parts = tuple(parts)

    @property
    def nbytes(self) -> int:
        """Those of the parts."""
        return sum(part.nbytes for part in self.parts)

    def count(self, start: int, stop: int) -> int:
        """Those of the parts."""
        return sum(part.count(start, stop) for part in self.parts)

    def most_nbytes(self, start: int, stop: int) -> int:
        """Those of the parts."""
        return sum(part.most_nbytes(start, stop) for part in self.parts)

    def _encode(self, start: int, stop: int) -> Code:
        return join([part.encode(start, stop) for part in self.parts])


@final
class Halves(Update):
    """A float16 for each weight.

    Args:
        values: (weights,) uint16, the bits of float16, in gradient units.
        rate: what they are multiplied by.
    """

    def __init__(self, values: npt.NDArray[np.uint16], rate: np.float32) -> None:
        super().__init__(values.size)
        self._bytes, self._rate = read_only(values.view(np.uint8)), rate.view(np.uint32)

    @property
    def nbytes(self) -> int:
        """Two for each weight."""
        return self._bytes.nbytes

    def count(self, start: int, stop: int) -> int:
        """All."""
        return stop - start

    def most_nbytes(self, start: int, stop: int) -> int:
        """Two for each weight, and a head."""
        return 2 * (stop - start) + _HEAD_NBYTES

    def _encode(self, start: int, stop: int) -> Code:
        return encode.halves(self._bytes[2 * start : 2 * stop], self._rate)


@final
class Bytes(Update):
    """An integer from -127 to 127 for each weight, and a step for each chunk.

    Args:
        values: (weights,) int8.
        bounds: (chunks + 1,) int64, read-only.
        steps: (chunks,) float32.
    """

    def __init__(self, values: npt.NDArray[np.int8], bounds: npt.NDArray[np.int64], steps: Vector) -> None:
        super().__init__(values.size)
        self._bytes, self._bounds = read_only(values.view(np.uint8)), bounds
        self._steps = read_only(steps.view(np.uint32))

    @property
    def nbytes(self) -> int:
        """One for each weight, four for each chunk."""
        return self._bytes.nbytes + self._steps.nbytes

    def count(self, start: int, stop: int) -> int:
        """All."""
        return stop - start

    def most_nbytes(self, start: int, stop: int) -> int:
        """One for each weight, and the heads of chunks."""
        return stop - start + _HEAD_NBYTES * _chunks(self._bounds, start, stop)

    def _encode(self, start: int, stop: int) -> Code:
        return encode.small(self._bytes, self._bounds, self._steps, start, stop)


@final
class Signs(Update):
    """A bit for each weight, and two means for each chunk.

    Args:
        bits: (weights / 8 rounded up,) uint8.
        bounds: (chunks + 1,) int64, read-only.
        means: (chunks, 2) float32, of zeros and of ones.
    """

    def __init__(self, bits: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64], means: Vector) -> None:
        super().__init__(int(bounds[-1]))
        self._bits, self._bounds = read_only(bits), bounds
        self._means = read_only(means.view(np.uint32))

    @property
    def nbytes(self) -> int:
        """An eighth for each weight, eight for each chunk."""
        return self._bits.nbytes + self._means.nbytes

    def count(self, start: int, stop: int) -> int:
        """All."""
        return stop - start

    def most_nbytes(self, start: int, stop: int) -> int:
        """An eighth for each weight, and the heads of chunks."""
        return (stop - start) // 8 + _HEAD_NBYTES * _chunks(self._bounds, start, stop)

    def _encode(self, start: int, stop: int) -> Code:
        return encode.signs(self._bits, self._bounds, self._means, start, stop)
