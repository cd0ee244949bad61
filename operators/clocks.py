"""Staleness clocks: how many gradients this node has made, and up to which it has applied every other node's.

Kept per origin and cell, so that intervals of gradients over any run of cells can be checked: what is applied of an
origin is a prefix of its gradients, without gap or duplicate (ako.txt 3.3; the paper counts messages instead).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dataflow.node_context import NodeContext
from dataflow.state import State, StateElement, StateKind
from operators.layout import Sharding

FAR = np.iinfo(np.int64).max // 2
"""Gradient number of cells that a node does not answer for: later than any."""


class ClocksState(State):
    """Live clocks of one node: `made` counts its own gradients, `images` what its whole role saw in as many steps.

    `poisoned` counts those of its own gradients that were replaced by zeros since it was started.
    """

    def __init__(
        self, cells: int, owned: Mapping[int, npt.NDArray[np.bool_]], *, span: int = 0, own: int | None = None
    ) -> None:
        """All clocks at 0.

        Args:
            cells: number of cells.
            owned: by origin, the cells it answers for.
            span: gradients between two sendings of a cell, until an origin has said otherwise.
            own: the origin whose span is 0: the node itself.
        """
        self.made = 0
        self.images = 0
        self.rejected = self.poisoned = 0
        self._cells = cells
        self._applied = {
            origin: np.where(mask, np.int64(0), np.int64(FAR)).astype(np.int64) for origin, mask in owned.items()
        }
        self._lowest = dict.fromkeys(self._applied, 0)
        self._span = {origin: 0 if origin == own else span for origin in self._applied}
        self._slowest: float | None = None

    def slowest(self) -> float:
        """The least gradient number applied of any origin, each with its span added; infinite for nobody."""
        if self._slowest is None:
            self._slowest = min((low + self._span[origin] for origin, low in self._lowest.items()), default=math.inf)
        return self._slowest

    def lag(self) -> int:
        """Gradients made here beyond those applied of the slowest origin; 0 with nobody else."""
        return max(0, self.made - min(self._lowest.values(), default=self.made))

    def applied(self, origin: int) -> npt.NDArray[np.int64]:
        """Up to which gradient each cell of `origin` is applied."""
        return self._applied[origin]

    def advance(self, origin: int, cells: slice, low: int, high: int, *, span: int = 0, skips: bool = False) -> bool:
        """Note that gradients (low, high] of `origin` are applied to `cells`; False if they must not be.

        They must not when some were applied before, or when some before them were not and `skips` is not set.
        """
        if not self._follows(origin, cells, low, skips=skips) or high <= low:
            self.rejected += 1
            return False
        applied = self._applied[origin][cells]
        applied[:] = high
        self._note(origin, span)
        return True

    def reach(self, origin: int, cells: slice, number: int) -> None:
        """Note that `cells` of `origin` answer for gradients up to `number`, whatever lies between.

        Nothing is noted of an origin that has left: what it sent before may be applied after.
        """
        if origin not in self._applied:
            return
        applied = self._applied[origin][cells]
        np.maximum(applied, number, out=applied)
        self._note(origin, self._span[origin])

    def leave(self, origin: int) -> None:
        """Wait for `origin` no more."""
        for table in (self._applied, self._lowest, self._span):
            table.pop(origin, None)
        self._slowest = None

    def snapshot(self) -> ClocksState:
        """A copy."""
        copy = ClocksState(self._cells, {})
        copy.made, copy.images, copy.rejected = self.made, self.images, self.rejected
        copy.poisoned = self.poisoned
        copy._applied = {origin: applied.copy() for origin, applied in self._applied.items()}
        copy._lowest, copy._span = dict(self._lowest), dict(self._span)
        return copy

    def tensors(self) -> dict[str, np.ndarray]:
        """``made`` (gradients, images), ``origins``, ``span`` and ``applied`` (origins, cells)."""
        origins = sorted(self._applied)
        applied = [self._applied[origin] for origin in origins]
        return {
            "made": np.array([self.made, self.images], np.int64),
            "origins": np.array(origins, np.int64),
            "span": np.array([self._span[origin] for origin in origins], np.int64),
            "applied": np.stack(applied) if applied else np.zeros((0, self._cells), np.int64),
        }

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over clocks from `tensors`."""
        if tensors["applied"].shape[1:] != (self._cells,):
            what = f"clocks have {tensors['applied'].shape[1:]} cells, not {self._cells}"
            raise ValueError(what)
        origins = [int(origin) for origin in tensors["origins"]]
        self.made, self.images = (int(value) for value in tensors["made"])
        self._applied = {origin: np.array(row) for origin, row in zip(origins, tensors["applied"], strict=True)}
        self._lowest = {origin: int(row.min()) for origin, row in self._applied.items()}
        self._span = {origin: int(span) for origin, span in zip(origins, tensors["span"], strict=True)}
        self._slowest = None

    def _note(self, origin: int, span: int) -> None:
        """Note that what was applied of an origin, or its span, may have changed."""
        before = self._lowest[origin] + self._span[origin]
        self._lowest[origin], self._span[origin] = int(np.minimum.reduce(self._applied[origin])), span
        if self._slowest is not None and min(before, self._lowest[origin] + span) <= self._slowest:
            self._slowest = None

    def _follows(self, origin: int, cells: slice, low: int, *, skips: bool) -> bool:
        if origin not in self._applied:
            return False
        applied = self._applied[origin][cells]
        return bool(np.logical_and.reduce(applied <= low if skips else applied == low))


class Clocks(StateElement):
    """Clocks over the members of role `origins`.

    Args:
        cells: number of cells of the model's layout.
        origins: role whose nodes are followed.
        sharding: the cells that each origin answers for; if None, every origin answers for every cell.
        span: gradients between two sendings of a cell, until an origin has said otherwise; 0 of this node itself.
        own: without sharding, whether this node is one of its origins.
    """

    kind: ClassVar[StateKind] = StateKind.LOCAL
    cells: int
    origins: str
    sharding: Sharding | None = None
    span: int = 0
    own: bool = False

    def create(self, node: NodeContext) -> ClocksState:
        """The clocks at 0."""
        members = node.members[self.origins]
        if self.sharding:
            owned = self.sharding.owned(members)
        else:
            owned = everything(members, self.cells, without=None if self.own else node.index)
        owned = {origin: mask for origin, mask in owned.items() if mask.any()}
        return ClocksState(self.cells, owned, span=self.span, own=node.index if self.own else None)


def everything(members: Sequence[int], cells: int, *, without: int | None) -> dict[int, npt.NDArray[np.bool_]]:
    """By member but `without`, a mask of all cells, the same for all."""
    mask = np.ones(cells, np.bool_)
    mask.flags.writeable = False
    return {member: mask for member in members if member != without}
