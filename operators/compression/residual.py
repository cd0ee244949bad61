"""What a node still owes: gradients that were added, less what updates have carried."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dataflow.errors import OperatorError
from dataflow.operators_api import Sample
from dataflow.state import State
from operators.compression import quantise
from operators.compression.account import Account
from operators.compression.codec import Codec, Half, Int8, OneBit, Threshold, TopK
from operators.compression.codes import add, compile_add
from operators.compression.cores import cuts, over_ranges
from operators.compression.forms import MAX_WEIGHTS
from operators.compression.quantise import Numbers, Words
from operators.compression.update import Bytes, Halves, Signs, Sparse, Sum, Update
from operators.dnn.arrays import read_only
from operators.jit import in_any_order
from operators.messages import Vector

CHUNK = 2048
"""Weights at most that share a step (`Int8`) or two means (`OneBit`)."""

_NORM_EVERY = 64
"""The norm, which takes a pass, is one of the samples once in so many times."""

_SAMPLE = 1 << 16
_GAIN = 0.1
_FAR_OFF = 8
_LEAST_TAU = float(np.finfo(np.float32).tiny)
_GLANCE = 256
_MAX_HALF = 65504.0
_MOST = 255
_MAX_FLOAT = float(np.finfo(np.float32).max)
_MAX_NORM = math.sqrt(_MAX_FLOAT)
_NO_VALUES = np.empty(0, np.float32)
_FIX = "lower the learning rate, clip gradients, or look for the input that made it"


class Residual(State):
    """The residual of one codec, and the taus that it adapts.

    Args:
        codec: what updates are made.
        n_weights: of the vector.
        layers: where each layer begins, ascending from 0.
        cores: threads at most that passes over a long vector are divided among; what comes of them is the same.
        counted: whether `sent` is kept.
    """

    values: Vector
    """(weights,) float32, in the units of what is added: gradients, or updates."""

    sent: Vector | None
    """(weights,) float32, the sum of all updates taken out; None if it is not kept."""

    account: Account
    """What codes of its updates have cost; whoever sends them notes it."""

    def __init__(
        self, codec: Codec, n_weights: int, layers: Sequence[int] = (0,), cores: int = 1, *, counted: bool = False
    ) -> None:
        bounds = [*layers, n_weights]
        if bounds[0] != 0 or any(before >= after for before, after in pairwise(bounds)) or n_weights > MAX_WEIGHTS:
            what = f"layers must ascend from 0 to below {n_weights} weights, which are 2**31 at most; got {layers}"
            raise ValueError(what)
        self.codec = codec
        self.values = np.zeros(n_weights, np.float32)
        self.sent = np.zeros(n_weights, np.float32) if counted else None
        self.account = Account()
        self._told = 0
        self._given: bool | None = None
        self._unit = np.ones(1, np.float32)
        self._layers = read_only(np.array(bounds, np.int64))
        self._cuts = cuts(n_weights, cores)
        if isinstance(codec, Threshold):
            self._groups = self._layers if codec.per_layer else read_only(self._layers[[0, -1]])
            self._taus = np.full(self._groups.size - 1, codec.tau or 0, np.float32)
            self._wanted = codec.density * np.diff(self._groups)
        elif isinstance(codec, Int8 | OneBit):
            parts = [range(start, stop, CHUNK) for start, stop in pairwise(bounds)]
            self._chunks = read_only(np.array([*(cut for each in parts for cut in each), n_weights], np.int64))
            whole = np.flatnonzero(self._chunks % 8 == 0).tolist()  # a byte of bits has one writer
            self._chunk_cuts = cuts(n_weights, cores, [*self._chunks[whole].tolist(), n_weights])

    @classmethod
    def compile(cls, codec: Codec) -> None:
        """Compile what a codec needs, or load it from disk, so that no step waits for it."""

        def encode() -> None:
            residual = cls(codec, 2)
            residual.add(np.ones(2, np.float32))
            residual.quantise().encode(0, 2)

        in_any_order(encode, compile_add)

    @property
    def taus(self) -> Vector:
        """The thresholds in use, (layers or 1,) float32; 0 where there was no gradient to choose it by; read-only."""
        return read_only(self._taus if isinstance(self.codec, Threshold) else _NO_VALUES)

    @property
    def tau(self) -> float:
        """The mean of the thresholds, in units of gradients: an adapted one by the `unit` of the last code."""
        unit = float(self._unit[0]) if isinstance(self.codec, Threshold) and self.codec.tau is None else 1.0
        return float(self.taus.mean()) / unit

    def add(self, gradient: Vector) -> None:
        """Owe a gradient more.

        Args:
            gradient: (weights,) float32, only read.
        """
        if gradient.shape != self.values.shape:
            what = f"the residual has shape {self.values.shape}, the gradient {gradient.shape}"
            raise ValueError(what)

        def owe(start: int, stop: int) -> None:
            self.values[start:stop] += gradient[start:stop]

        over_ranges(owe, self._cuts)
        if isinstance(self.codec, Threshold) and not self._given:
            self._given = bool(gradient[:_GLANCE].any() or gradient.any())

    def quantise(self, rate: float = 1.0, *, unit: float = 1.0) -> Update:
        """Take an update out of the residual.

        Args:
            rate: the update is in units of `rate` times what the residual is in; rounded to float32.
            unit: how many of the residual's units a gradient's is, in which a tau is given; if 0, as many as before.

        Raises:
            OperatorError: a weight is owed what is infinite or not a number; the residual is as it was.
            ValueError: `rate` is negative, infinite or not a number.
        """
        if not 0 <= rate <= _MAX_FLOAT:
            what = f"the rate must be finite as float32 and not negative, got {rate}"
            raise ValueError(what)
        update = self._taken(np.float32(abs(rate)), np.float32(unit))  # a minus before 0 is not sent
        if self.sent is not None:
            add(self.sent, update.encode(0, update.n_weights))
        return update

    def forget(self) -> None:
        """Begin to count what is sent from zero."""
        if self.sent is not None:
            self.sent.fill(0)

    def _taken(self, factor: np.float32, unit: np.float32) -> Update:
        self._unit[0] = unit or self._unit[0]
        match self.codec:
            case Threshold():
                return self._threshold(self.codec, factor, self._unit[0])
            case TopK():
                return self._largest(self.codec, factor)
            case Half():
                return self._halves(factor)
            case Int8():
                return self._bytes(factor)
            case OneBit():
                return self._signs(factor)

    def samples(self) -> Iterator[Sample]:
        """What the sender of a message tells: the account's figures, the mean tau, and at times the residual's norm."""
        yield from all_samples([self])

    def told(self) -> bool:
        """Count a message that is told of; whether the norm of what is owed is told with it."""
        self._told += 1
        return self._told % _NORM_EVERY == 1

    def go_on(self, taus: Vector) -> None:
        """Go on with thresholds that were adapted before, if they are adapted, and those are of as many layers.

        Others are those of a codec that has been changed since: they are adapted anew. See `taus`.
        """
        if isinstance(self.codec, Threshold) and self.codec.tau is None and taus.shape == self._taus.shape:
            self._taus[:] = taus

    def tensors(self) -> dict[str, np.ndarray]:
        """``values`` (weights,), ``unit`` (1,) and, if counted, ``sent`` (weights,), all float32.

        Where tau is adapted also ``taus`` (layers or 1,).
        """
        tensors: dict[str, np.ndarray] = {"values": self.values, "unit": self._unit}
        if isinstance(self.codec, Threshold) and self.codec.tau is None:
            tensors["taus"] = self._taus
        if self.sent is not None:
            tensors["sent"] = self.sent
        return tensors

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over what is owed, the unit, the taus, and what was sent."""
        own = self.tensors()
        for name, tensor in own.items():
            given = tensors.get(name)
            if given is None or given.shape != tensor.shape or given.dtype != tensor.dtype:
                found = "none" if given is None else f"{given.dtype} {given.shape}"
                what = f"{name} of the residual is {tensor.dtype} {tensor.shape}, got {found}"
                raise ValueError(what)
        for name, tensor in own.items():
            tensor[:] = tensors[name]

    def _bits(self) -> npt.NDArray[np.uint32]:
        return read_only(self.values.view(np.uint32))

    def _threshold(self, codec: Threshold, rate: np.float32, unit: np.float32) -> Update:
        if codec.tau is None and not self._taus.all():
            self._begin(codec)
        largest = 1 if codec.most == "one" else _MOST
        taus = read_only(self._taus if codec.tau is None else unit * self._taus)
        self._require(float(taus.max()) * float(rate) * largest)
        quanta = rate * (taus if codec.per_layer else np.full(self._layers.size - 1, taus[0]))
        scratch = np.empty(self.values.size, np.uint32)
        words, counts = self._over(taus.view(np.uint32), scratch)
        clip = np.float32(np.inf if codec.clip is None else codec.clip)
        bad, multiples = quantise.take(self.values, words, counts, taus, largest, clip)
        self._refuse(int(bad))
        if codec.tau is None:
            self._adapt(codec, counts)
        if largest == 1:
            return Sparse(words, _NO_VALUES, self._layers, quanta, codec.packing)
        n_planes = max(1, int(multiples.max(initial=0)).bit_length())
        return Sum(
            [
                Sparse(
                    words[(multiples >> plane) & 1 == 1],
                    _NO_VALUES,
                    self._layers,
                    np.float32(1 << plane) * quanta,
                    codec.packing,
                )
                for plane in range(n_planes)
            ]
        )

    def _over(self, limits: Words, scratch: Words) -> tuple[Words, Numbers]:
        """As `quantise.over`."""

        def over(start: int, stop: int) -> tuple[Words, Numbers]:
            groups = read_only(self._groups.clip(start, stop))
            words, counts = quantise.over(self._bits(), groups, limits, scratch[start:stop])
            return words, counts

        found = over_ranges(over, self._cuts)
        if len(found) == 1:
            return found[0]
        return np.concatenate([words for words, _ in found]), np.sum([counts for _, counts in found], axis=0)

    def _not_finite(self) -> int:
        """The first weight that is infinite or not a number, or -1."""

        def look(start: int, stop: int) -> int:
            place = int(quantise.not_finite(self._bits()[start:stop]))
            return place + start if place >= 0 else -1

        return next((place for place in over_ranges(look, self._cuts) if place >= 0), -1)

    def _by_chunks(self, work: Callable[[slice, slice], None]) -> None:
        """Give `work` ranges of weights, and of the chunks that are in them."""

        def part(start: int, stop: int) -> None:
            first, last = np.searchsorted(self._chunks, (start, stop)).tolist()
            work(slice(start, stop), slice(first, last))

        over_ranges(part, self._chunk_cuts)

    def _begin(self, codec: Threshold) -> None:
        """Choose the taus that are missing by the residual as it is."""
        for group in np.flatnonzero(self._taus == 0).tolist():
            self._taus[group] = self._fitting(codec, group)

    def _fitting(self, codec: Threshold, group: int) -> float:
        """What a share `density` of a sample of a group's residual exceeds; 0 if that is no number."""
        start, stop = self._groups[group : group + 2].tolist()
        sample = np.abs(self.values[start : stop : -(-(stop - start) // _SAMPLE)])
        rank = min(sample.size - 1, int(sample.size * (1 - codec.density)))
        tau = float(np.partition(sample, rank)[rank]) or float(sample.mean())
        return tau if tau < math.inf else 0

    def _adapt(self, codec: Threshold, counts: npt.NDArray[np.int64]) -> None:
        """Move each tau by a tenth of what the density is off by, relatively, at most to twice itself.

        Not after gradients that were all zero, which say nothing of those to come. One that is far too small, since
        what is owed has dwindled meanwhile, is chosen anew: doubling it would take many long messages.
        """
        given, self._given = self._given, None
        if given is False:
            return
        off = np.minimum(_GAIN * (counts - self._wanted) / np.maximum(self._wanted, 1), math.log(2))
        moved = np.maximum(self._taus * np.exp(off), _LEAST_TAU * (self._taus > 0))
        for group in np.flatnonzero(counts > _FAR_OFF * np.maximum(self._wanted, 1)).tolist():
            moved[group] = max(moved[group], self._fitting(codec, group))
        self._taus[:] = moved

    def _largest(self, codec: TopK, rate: np.float32) -> Update:
        words = quantise.largest(self._bits(), codec.count(self.values.size), np.empty(self.values.size, np.uint32))
        places = words >> 1
        values = self.values[places]
        finite = np.isfinite(values)
        self._refuse(-1 if finite.all() else int(places[finite.argmin()]))  # what is not finite is above all others
        self._require(float(np.abs(values).max(initial=0)) * float(rate))
        self.values[places] = 0
        return Sparse(words, rate * values, self._layers, np.zeros(self._layers.size - 1, np.float32))

    def _halves(self, rate: np.float32) -> Update:
        self._refuse(self._not_finite())
        halves = np.empty(self.values.size, np.uint16)
        self._require(_MAX_HALF * float(rate))

        def halve(start: int, stop: int) -> None:
            quantise.to_halves(self.values[start:stop], halves[start:stop])

        over_ranges(halve, self._cuts)
        return Halves(halves, rate)

    def _bytes(self, rate: np.float32) -> Update:
        self._refuse(self._not_finite())
        codes, steps = np.empty(self.values.size, np.int8), np.empty(self._chunks.size - 1, np.float32)
        self._require(self._magnitude() * float(rate))
        self._by_chunks(
            lambda where, chunks: quantise.to_bytes(*self._part(where, chunks), codes[where], steps[chunks])
        )
        return Bytes(codes, self._chunks, rate * steps)

    def _signs(self, rate: np.float32) -> Update:
        self._refuse(self._not_finite())
        bits = np.zeros((self.values.size + 7) // 8, np.uint8)
        means = np.empty((self._chunks.size - 1, 2), np.float32)
        self._require(self._magnitude() * float(rate))

        def sign(where: slice, chunks: slice) -> None:
            quantise.to_signs(*self._part(where, chunks), bits[where.start // 8 :], means[chunks])

        self._by_chunks(sign)
        return Signs(bits, self._chunks, rate * means)

    def _part(self, where: slice, chunks: slice) -> tuple[Vector, Numbers]:
        """The values of a range, and where its chunks begin in it, and its end."""
        return self.values[where], read_only(self._chunks[chunks.start : chunks.stop + 1] - where.start)

    def _magnitude(self) -> float:
        return max(-float(self.values.min()), float(self.values.max()))

    def _refuse(self, place: int) -> None:
        if place >= 0:
            what = f"what is owed to weight {place} is not finite, and would spread to every node"
            raise OperatorError(what, got=float(self.values[place]), fix=_FIX)

    def _require(self, largest: float) -> None:
        """Refuse what receivers would: see `operators.compression.decode`."""
        if not largest * math.sqrt(self.values.size) <= _MAX_NORM:
            what = "the rate times the gradient is larger than any sum bears"
            raise OperatorError(what, got=largest, fix=_FIX)


def all_samples(residuals: Sequence[Residual]) -> Iterator[Sample]:
    """What the sender of a message tells of all its residuals of one codec, each for a receiver of its own.

    The figures of all messages to all of them, the mean tau, and at times the norm of all that is owed.
    """
    if not residuals:
        return
    account = Account()
    for residual in residuals:
        account.include(residual.account)
    for name, value in account.figures():
        yield Sample(name, value)
    if isinstance(residuals[0].codec, Threshold):
        yield Sample("tau", float(np.mean([residual.tau for residual in residuals])))
    if residuals[0].told():
        yield Sample("residual_norm", math.hypot(*(float(np.linalg.norm(residual.values)) for residual in residuals)))
