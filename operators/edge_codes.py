"""What one neighbour of a tree is sent in fewer bytes: how a sum has changed since it was told last, as a codec has it.

The sender adds each code to its *shadow* of the neighbour's mirror, as the neighbour does to the mirror, so both are
equal bit for bit. Sum less shadow is what is owed on the edge: what a code leaves out is part of the next one. The
first sum of an edge is sent as it is: the neighbour's mirror may be that of another whose place this node has taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from dataflow.operators_api import Sample
from operators.compression import Codec, Residual, add
from operators.compression.residual import all_samples
from operators.layout import Layout
from operators.messages import Code, Vector


class EdgeCodes:
    """The shadow of one neighbour's mirror.

    Args:
        codec: what makes fewer bytes of changes.
        layout: the model's cells.
        layers: offset at which each layer begins.
    """

    def __init__(self, codec: Codec, layout: Layout, layers: Sequence[int]) -> None:
        self.shadow = np.zeros(layout.n_weights, np.float32)
        self._residual, self._layout = Residual(codec, layout.n_weights, layers), layout

    @property
    def adapted(self) -> bool:
        """Whether there are thresholds that were adapted."""
        return "taus" in self._residual.tensors() and bool(self._residual.taus.any())

    @property
    def taus(self) -> Vector:
        """The thresholds that are adapted; see `Residual.taus`."""
        return self._residual.taus

    def go_on(self, taus: Vector) -> None:
        """Go on with thresholds that were adapted before; see `Residual.go_on`."""
        self._residual.go_on(taus)

    def codes(self, values: Vector, unit: float) -> list[tuple[int, int, Code]]:
        """The change since the last time: first cell, cell behind the last, and code, in as few frames as it fits.

        Args:
            values: (weights,) float32, the sum.
            unit: how many of its units a gradient's is; see `Residual.quantise`.

        Raises:
            OperatorError: a weight is infinite or not a number.
        """
        np.subtract(values, self.shadow, out=self._residual.values)
        update, codes = self._residual.quantise(unit=unit), list[tuple[int, int, Code]]()
        for start, stop in self._layout.fitting(0, self._layout.cells, update.most_nbytes):
            where = self._layout.weights(start, stop)
            code = update.encode(where.start, where.stop)
            add(self.shadow[where], code)
            codes.append((start, stop, code))
        nbytes = sum(code.nbytes for *_, code in codes)
        self._residual.account.note(update.n_weights, update.count(0, update.n_weights), nbytes)
        return codes

    @property
    def residual(self) -> Residual:
        """What is owed on the edge since the last code."""
        return self._residual


def samples(edges: Collection[EdgeCodes]) -> Iterator[Sample]:
    """What codes of all edges of a node have cost, their mean tau, and at times the norm of all that is owed."""
    yield from all_samples([edge.residual for edge in edges])
