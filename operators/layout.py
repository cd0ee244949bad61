"""Layout: the model vector cut into cells, the smallest ranges that exchange keeps account of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, model_validator

MAX_CELL = 240_000
"""Weights in a cell at most, so that a cell of float32 fits a frame of 1 MiB with its header."""

FRAME_NBYTES = 4 * MAX_CELL
"""Bytes of values in a frame at most, where they are more than one cell."""


class Layout(BaseModel):
    """Cell i of the vector is ``bounds[i]:bounds[i + 1]``."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    bounds: tuple[int, ...]

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if len(self.bounds) < 2 or self.bounds[0] != 0 or any(a >= b for a, b in pairwise(self.bounds)):
            what = "bounds must ascend from 0"
            raise ValueError(what)
        return self

    @classmethod
    def of(cls, n_weights: int, *, cells: int = 256, align: Sequence[int] = ()) -> Layout:
        """About `cells` cells of nearly equal size, none across a number of `align`.

        Args:
            n_weights: size of the vector.
            cells: how many cells are wanted; more where a cell would not fit a frame.
            align: offsets at which a cell must begin, such as those of layers.
        """
        cells = min(n_weights, max(cells, -(-n_weights // MAX_CELL)))
        even = {n_weights * cell // cells for cell in range(cells + 1)}
        return cls(bounds=tuple(sorted(even | {offset for offset in align if 0 < offset < n_weights})))

    @property
    def cells(self) -> int:
        """Number of cells."""
        return len(self.bounds) - 1

    @property
    def n_weights(self) -> int:
        """Number of weights."""
        return self.bounds[-1]

    def weights(self, start: int, stop: int) -> slice:
        """The weights of cells `start` to `stop`."""
        return slice(self.bounds[start], self.bounds[stop])

    def frames(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Cut cells `start` to `stop` into runs that each fit one frame."""
        while start < stop:
            end = min(stop, max(start + 1, bisect_right(self.bounds, self.bounds[start] + MAX_CELL) - 1))
            yield start, end
            start = end

    def fitting(self, start: int, stop: int, nbytes: Callable[[int, int], int]) -> Iterator[tuple[int, int]]:
        """Cut cells `start` to `stop` into as few runs as fit one frame each, in fewer bytes than float32 takes.

        Args:
            start: the first cell.
            stop: the one behind the last.
            nbytes: what weights from one number to another take at most; no less for more of them.
        """
        while start < stop:
            begin, end = self.bounds[start], stop
            if nbytes(begin, self.bounds[stop]) > FRAME_NBYTES:
                ends = range(start + 1, stop)
                fit = bisect_right(ends, FRAME_NBYTES, key=lambda cell: nbytes(begin, self.bounds[cell]))
                end = start + max(1, fit)
            yield start, end
            start = end


class Sharding(BaseModel):
    """Which rank of a role owns each cell: the division of a model over parameter servers.

    Args:
        layout: the model's cells.
        by: ``range`` for nearly equal ranges, ``layer`` to deal out whole layers in turn.
        layers: offset at which each layer begins.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    layout: Layout
    by: Literal["range", "layer"] = "range"
    layers: tuple[int, ...] = (0,)

    def owners(self, size: int) -> tuple[int, ...]:
        """The owning rank of each cell among `size` ranks."""
        starts = self.layout.bounds[:-1]
        if self.by == "range":
            return tuple(start * size // self.layout.n_weights for start in starts)
        return tuple((bisect_right(self.layers, start) - 1) % size for start in starts)

    def owned(self, members: Sequence[int]) -> dict[int, npt.NDArray[np.bool_]]:
        """By member of the role that shards the model, a mask of the cells that it owns."""
        owners = np.array(self.owners(len(members)))
        return {member: owners == rank for rank, member in enumerate(members)}

    def pieces(self, members: Sequence[int], member: int) -> Iterator[tuple[int, int]]:
        """Runs of the cells that a member of the role owns, each of which is pushed and answered in one frame."""
        for start, stop, rank in runs(self.owners(len(members))):
            if members[rank] == member:
                yield from self.layout.frames(start, stop)


def runs(owners: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(start, stop, owner) of every run of cells with one owner."""
    start = 0
    for cell in range(1, len(owners) + 1):
        if cell == len(owners) or owners[cell] != owners[start]:
            yield start, cell, owners[start]
            start = cell
