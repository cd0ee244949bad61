"""How what a node of a tree tells its neighbours becomes messages, and messages sums again: in frames, or in codes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, cast

import numpy as np

from dataflow.operators_api import Sample
from operators.compression import Codec, add
from operators.contribution import Contribution, Told, Total
from operators.edge_codes import EdgeCodes, samples
from operators.layout import Layout
from operators.messages import Code, Vector
from operators.schedule import Schedule

_NO_COUNTS: Final = np.zeros(0, np.int64)
_NO_VALUES: Final = np.zeros(0, np.float32)


class SumMessages:
    """The messages of one node.

    Args:
        node: its number.
        layout: the model's cells.
        codec: what makes fewer bytes of sums; none if None.
        layers: offset at which each layer begins.
        rate: learning rate of gradients, for codes.
    """

    def __init__(
        self, node: int, layout: Layout, *, codec: Codec | None, layers: tuple[int, ...], rate: Schedule | None
    ) -> None:
        self._node, self._layout, self._codec, self._layers, self._rate = node, layout, codec, layers, rate
        self.codes: dict[int, EdgeCodes] = {}
        """By neighbour, what it is sent in fewer bytes."""
        self._arriving: dict[int, Vector] = {}

    def meet(self, neighbour: int) -> None:
        """Begin with a neighbour that has been told nothing yet."""
        self.forget(neighbour)
        if self._codec:
            self.codes[neighbour] = EdgeCodes(self._codec, self._layout, self._layers)

    def forget(self, neighbour: int) -> None:
        """Drop what has come of a sum the rest of which does not come any more."""
        self._arriving.pop(neighbour, None)

    def word(self, told: Told, word: str = "", about: int = 0) -> Contribution:
        """A message with all that is told but the sum itself; see `Contribution` for `word` and `about`."""
        return Contribution(
            self._node,
            told.epoch,
            told.number,
            told.heard,
            told.final,
            word,
            about,
            told.stamp,
            basis=np.array([list(told.basis), list(told.basis.values())], np.int64).reshape(2, -1),
            held=np.array(sorted(told.held), np.int64),
            start=0,
            stop=0,
            last=True,
            counts=_NO_COUNTS,
            known=told.known,
            values=_NO_VALUES,
        )

    def cut(self, neighbour: int, told: Told, made: int, workers: int) -> Iterator[Contribution]:
        """The messages that a neighbour is to be told something with.

        Args:
            neighbour: its number.
            told: what it is told.
            made: gradients of this node so far.
            workers: how many nodes the learning rate is for.
        """
        total = told.total
        if total is None:
            yield self.word(told)
            return
        whole = self._layout.frames(0, self._layout.cells)
        frames: Iterable[tuple[int, int, Vector | Code]]
        frames = ((start, stop, total.values[self._layout.weights(start, stop)]) for start, stop in whole)
        codes = self.codes.get(neighbour)
        if codes and told.number == 1:  # whole: a code lacks most of it, and the neighbour may have a mirror already
            codes.shadow[:] = total.values
        elif codes and not told.final:  # the last one is whole, too, so that all end with the same
            frames = codes.codes(total.values, self._rate.at(max(1, made), workers) if self._rate else 1.0)
        for start, stop, values in frames:
            last = stop == self._layout.cells
            counts = total.counts if last else _NO_COUNTS
            yield dataclasses.replace(self.word(told), start=start, stop=stop, last=last, counts=counts, values=values)

    def gather(self, said: Contribution, mirror: Vector) -> Total | None:
        """The sum, once all of it has come; None before.

        Args:
            said: the message that has come, in the order of the sum's cells.
            mirror: (weights,) float32, the sum before, which codes are changes of.
        """
        coded = said.values.dtype == np.uint8
        if not said.start:
            self._arriving[said.origin] = mirror.copy() if coded else np.empty_like(mirror)
        values, where = self._arriving[said.origin], self._layout.weights(said.start, said.stop)
        if coded:
            add(values[where], cast("Code", said.values))
        else:
            values[where] = said.values
        return Total(self._arriving.pop(said.origin), said.counts) if said.last else None

    def samples(self) -> Iterator[Sample]:
        """What is told of the codes of all edges, if there are any."""
        yield from samples(self.codes.values())

    def taus(self) -> dict[str, Vector]:
        """``taus/n``, thresholds that are adapted for what neighbour n is sent, once there are any."""
        return {f"taus/{neighbour}": codes.taus for neighbour, codes in self.codes.items() if codes.adapted}

    def go_on(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Go on with what `taus` gave, of those neighbours that there are."""
        for neighbour, codes in self.codes.items():
            if (name := f"taus/{neighbour}") in tensors:
                codes.go_on(tensors[name])
