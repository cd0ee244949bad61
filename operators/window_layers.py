"""Gradients of a window added up: by cell one sum between any two places of its receivers, and so as few as there are.

A receiver's place in a cell is the number up to which it has been sent that cell. Gradients between two neighbouring
places are sent together or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from operators.clocks import FAR
from operators.layout import Layout
from operators.messages import Vector

Cells = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Layer:
    """By cell, the sum of gradients (low, high] of that cell."""

    low: Numbers
    high: Numbers
    values: Vector

    def lacked(self, sent: Numbers | int) -> Cells:
        """By cell, whether whoever has been sent that much lacks any of it."""
        return (self.low < self.high) & (sent < self.high)


class Layers:
    """Sums of gradients, by cell.

    No receiver's place may come to lie between gradients that have been taken in. Where `sent_to` is asked for, it is
    by receiver and cell, the number up to which it has been sent that; FAR where it is sent nothing.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._layers: list[_Layer] = []

    @property
    def nbytes(self) -> int:
        """Memory held by sums, in bytes."""
        return sum(layer.values.nbytes for layer in self._layers)

    def clear(self) -> None:
        """Hold nothing."""
        self._layers.clear()

    def fold(self, number: int, values: Vector, sent_to: Numbers) -> None:
        """Take in gradient `number`, behind all others, where any receiver lacks it."""
        sent = sent_to.min(axis=0, initial=FAR)
        left, cut = sent < number, (sent_to == number - 1).any(axis=0)
        for layer in self._layers:
            onto = left & ~cut & layer.lacked(sent) & (layer.high == number - 1)
            for where in self._runs(onto):
                layer.values[where] += values[where]
            layer.high[onto] = number
            left &= ~onto
        self._make_room(left, sent, sent_to)
        while left.any():
            free = (layer for layer in self._layers if (left & ~layer.lacked(sent)).any())
            layer = next(free, None) or self._new_layer()
            into = left & ~layer.lacked(sent)
            for where in self._runs(into):
                layer.values[where] = values[where]
            layer.low[into], layer.high[into] = number - 1, number
            left &= ~into

    def total(self, start: int, stop: int, low: int) -> Vector | None:
        """Sum of the gradients above `low` that are held, over cells that were sent alike; None if none are."""
        if not any((layer.high[start:stop] > low).any() for layer in self._layers):
            return None
        begin, end = self._layout.bounds[start], self._layout.bounds[stop]
        total = np.zeros(end - begin, np.float32)
        for layer in self._layers:
            for where in self._runs(layer.lacked(low)[start:stop], start):
                total[where.start - begin : where.stop - begin] += layer.values[where]
        return total

    def free(self, sent_to: Numbers) -> None:
        """Let go of layers of which everybody has been sent all."""
        if self._layers:
            sent = sent_to.min(axis=0, initial=FAR)
            self._layers = [layer for layer in self._layers if layer.lacked(sent).any()]

    def _make_room(self, cells: Cells, sent: Numbers, sent_to: Numbers) -> None:
        """In cells where all layers are taken, add up two between which no receiver's place lies any more."""
        full = cells & np.logical_and.reduce([layer.lacked(sent) for layer in self._layers], axis=0)
        for lower in self._layers if full.any() else ():
            stale = full & ~(sent_to == lower.high).any(axis=0)
            for upper in self._layers if stale.any() else ():
                both = stale & (upper.low == lower.high)
                for where in self._runs(both):
                    lower.values[where] += upper.values[where]
                lower.high[both], upper.high[both] = upper.high[both], upper.low[both]
                stale &= ~both
                full &= ~both

    def _new_layer(self) -> _Layer:
        low, high = np.zeros((2, self._layout.cells), np.int64)
        self._layers.append(_Layer(low, high, np.empty(self._layout.n_weights, np.float32)))
        return self._layers[-1]

    def _runs(self, cells: Cells, first: int = 0) -> Iterator[slice]:
        """The weights of each run of cells that are marked; of these marks the first is of cell `first`."""
        if not cells.any():
            return
        if cells.all():
            yield self._layout.weights(first, first + len(cells))
            return
        edges = (first + np.flatnonzero(np.diff(cells, prepend=False, append=False))).tolist()
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            yield self._layout.weights(start, stop)
