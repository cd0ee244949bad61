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
from operators.jit import compiled
from operators.layout import Sharding

FAR = np.iinfo(np.int64).max // 2
"""Gradient number of cells that a node does not answer for: later than any."""

_REFUSED = -2
"""What `_advance` says of an interval that does not fit, in the place of a gradient's number."""


class ClocksState(State):
    """Live clocks of one node: `made` counts its own gradients, `images` what its whole role saw in as many steps.

    `poisoned` counts those of its own gradients that were replaced by zeros, `of_all` those of all nodes that had come
    when it was sent weights last, and `come` the images of these, where somebody counts; once these are `enough`, it
    makes no more. It is `over` once nothing more comes to make any of. `pace` is how many gradients each of all nodes
    had made on average when it looked last.
    """

    def __init__(
        self,
        cells: int,
        owned: Mapping[int, npt.NDArray[np.bool_]],
        *,
        span: int = 0,
        own: int | None = None,
        answer: bool = False,
    ) -> None:
        """All clocks at 0.

        Args:
            cells: number of cells.
            owned: by origin, the cells it answers for.
            span: gradients between two sendings of a cell, until an origin has said otherwise.
            own: the origin whose span is 0: the node itself.
            answer: whether origins answer to this node's gradients, which are counted then, and not theirs.
        """
        self.made = 0
        self.images = 0
        self.rejected = self.poisoned = self.of_all = self.come = self.pace = 0
        self.enough = self.over = False
        self.cells = cells
        self._applied = {
            origin: np.where(mask, np.int64(0), np.int64(FAR)).astype(np.int64) for origin, mask in owned.items()
        }
        self._owned = {origin: bounds(applied) for origin, applied in self._applied.items()}
        self._lowest = dict.fromkeys(self._applied, 0)
        self._span = {origin: 0 if origin == own else span for origin in self._applied}
        self._first_span, self._own, self._answer = span, own, answer
        self._fresh: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._since: dict[int, int] = {}
        self._gone: dict[int, int] = {}
        self._slowest: float | None = None
        self._slow = 0  # origins that are the slowest

    @classmethod
    def compile(cls) -> None:
        """Compile what `advance` and `reach` need, or load it from disk, so that no message waits for it."""
        applied = np.zeros(1, np.int64)
        _advance(applied, 0, 1, 0, 1, 0, 1, False)
        _reach(applied, 0, 1, 0, 1, 1)

    @property
    def origins(self) -> tuple[int, ...]:
        """Nodes that are followed."""
        return tuple(self._applied)

    @property
    def fresh(self) -> frozenset[int]:
        """Those of them that have joined and not said where they begin."""
        return frozenset(self._fresh)

    @property
    def last(self) -> dict[int, int]:
        """Those of them that make no more gradients, with the number of the last."""
        return dict(self._last)

    @property
    def since(self) -> Mapping[int, int]:
        """Nodes that have joined, with the number of the gradient behind which each begins.

        While a node has not said where it begins: where it may at the earliest. On a node that has joined itself, also
        those that were there before, with the number behind which it gets their gradients.
        """
        return self._since

    def slowest(self) -> float:
        """The least gradient number applied of any origin, each with its span added; infinite for nobody."""
        if self._slowest is None:
            waited: list[float] = [low + self._span[origin] for origin, low in self._waited_for().items()]
            self._slowest = min(waited, default=math.inf)
            self._slow = waited.count(self._slowest)
        return self._slowest

    def lag(self) -> int:
        """Gradients made here beyond those applied of the slowest origin; 0 with nobody else."""
        return max(0, self.made - min(self._waited_for().values(), default=self.made))

    def seen(self) -> dict[int, int]:
        """By other node that has begun, up to which gradient all cells are applied."""
        return {
            origin: low for origin, low in self._lowest.items() if origin != self._own and origin not in self._fresh
        }

    def average(self) -> int:
        """How many gradients each node has made on average, as far as this one knows, and those that are gone."""
        others = self._gone | {origin: low for origin, low in self.seen().items() if low < FAR}
        return (self.made + sum(others.values())) // (1 + len(others))

    def told(self) -> int:
        """Gradients that all workers have made: those that servers have told of, and this one's since."""
        answered = [low for low in self.seen().values() if low < FAR]
        return self.of_all + self.made - min(answered, default=self.made)

    def newer(self, seen: Mapping[int, int]) -> int:
        """How many gradients of others have been applied since `seen` was what was."""
        now = self.seen()
        return sum(max(0, now.get(origin, low) - low) for origin, low in seen.items())

    def furthest(self) -> int:
        """The largest gradient number applied of any cell that an origin answers for."""
        return max((int(applied[applied < FAR].max(initial=0)) for applied in self._applied.values()), default=0)

    def lacks(self, origin: int, number: int) -> bool:
        """Whether some gradient of `origin` up to `number` may not be applied to some cell."""
        return origin in self._lowest and self._lowest[origin] < min(number, self._last.get(origin, number))

    def applied(self, origin: int) -> npt.NDArray[np.int64]:
        """Up to which gradient each cell of `origin` is applied."""
        return self._applied[origin]

    def advance(self, origin: int, cells: slice, low: int, high: int, *, span: int = 0, skips: bool = False) -> bool:
        """Note that gradients (low, high] of `origin` are applied to `cells`; False if they must not be.

        They must not when some were applied before, or when some before them were not and `skips` is not set.
        """
        applied = self._applied.get(origin)
        if applied is None or high <= low:
            self.rejected += 1
            return False
        skips = skips or origin in self._fresh  # which begins anywhere
        lowest = _advance(applied, *self._owned[origin], *self._range(cells), low, high, skips)
        if lowest == _REFUSED:
            self.rejected += 1
            return False
        if origin in self._fresh:
            self._fresh[origin] = max(self._fresh[origin], span)
        self._note(origin, lowest, span)
        return True

    def reach(self, origin: int, cells: slice, number: int) -> None:
        """Note that `cells` of `origin` answer for gradients up to `number`, whatever lies between.

        Nothing is noted of an origin that has left: what it sent before may be applied after.
        """
        if origin not in self._applied:
            return
        lowest = _reach(self._applied[origin], *self._owned[origin], *self._range(cells), number)
        self._note(origin, lowest, self._span[origin])

    def leave(self, origin: int) -> int:
        """Wait for `origin` no more.

        Returns:
            How many of its gradients some cells have got and others never will.
        """
        applied = self._applied.get(origin)
        known = applied[applied < FAR] if applied is not None else np.zeros(0, np.int64)
        if known.size and origin not in self._fresh:
            self._gone[origin] = int(known.min())
        for table in (self._applied, self._owned, self._lowest, self._span, self._fresh, self._last, self._since):
            table.pop(origin, None)
        self._slowest = None
        return int(known.max() - known.min()) if known.size else 0

    def join(self, origin: int) -> None:
        """Follow an origin that is new, which nobody waits for before it has said where it begins: see `begin`.

        What was applied of another that had its number before is forgotten.
        """
        self.leave(origin)
        self._applied[origin], self._owned[origin] = np.zeros(self.cells, np.int64), (0, self.cells)
        self._lowest[origin] = self._span[origin] = self._fresh[origin] = 0

    def start(self, node: int, number: int) -> None:
        """Go on behind gradient `number`, as a node that has joined and caught up: `node`."""
        self.made = number
        self.take_over(node, np.full(self.cells, number, np.int64))

    def expect(self, origin: int) -> None:
        """Note that the gradients of a new origin may begin behind this node's newest, and not before."""
        if origin in self._fresh:
            self._since[origin] = self.made

    def begin(self, origin: int, number: int) -> None:
        """Note that the first gradient of a new origin has number `number` + 1; from now on it is waited for."""
        said = self._fresh.pop(origin, None)
        if said is not None:
            self._since[origin] = number
            self.reach(origin, slice(None), number)
            self._note(origin, self._lowest[origin], max(self._first_span, said))
            self._slowest = None

    def wait(self, origin: int, span: int) -> None:
        """Note that `origin` computes so many gradients at most until it sends a cell again, as it has told."""
        if origin in self._applied:
            self._note(origin, self._lowest[origin], max(span, self._span[origin]))

    def end(self, origin: int, number: int) -> None:
        """Note that `origin` makes no gradients after `number`: once these are applied it is not waited for."""
        if origin in self._applied:
            self._last[origin] = number
            self._slowest = None

    def take_over(self, origin: int, applied: npt.NDArray[np.int64]) -> None:
        """Note what of `origin` is applied to a replica that was taken over, unless the origin has left.

        What comes of it is behind that: one that has joined may begin behind gradients of others that are yet to come.
        """
        if origin in self._applied:
            self._applied[origin][:] = applied
            self._owned[origin] = bounds(applied)
            self._note(origin, int(applied.min()), self._span[origin])
            self._since[origin] = self._lowest[origin]
            self._slowest = None

    def snapshot(self) -> ClocksState:
        """A copy."""
        copy = ClocksState(self.cells, {}, span=self._first_span)
        copy.made, copy.images, copy.rejected = self.made, self.images, self.rejected
        copy.poisoned, copy._own, copy._answer = self.poisoned, self._own, self._answer
        copy.of_all, copy.come, copy.enough, copy.over = self.of_all, self.come, self.enough, self.over
        copy._applied = {origin: applied.copy() for origin, applied in self._applied.items()}
        copy._owned = dict(self._owned)
        copy._lowest, copy._span = dict(self._lowest), dict(self._span)
        copy._fresh, copy._last, copy._since = dict(self._fresh), dict(self._last), dict(self._since)
        return copy

    def tensors(self) -> dict[str, np.ndarray]:
        """``made`` (gradients, images), ``origins``, ``span``, ``applied`` (origins, cells).

        And ``poisoned``, ``of_all`` and ``come``, unless they are 0.
        """
        origins = sorted(self._applied)
        applied = [self._applied[origin] for origin in origins]
        counts = {"poisoned": self.poisoned, "of_all": self.of_all, "come": self.come}
        return {name: np.array([count], np.int64) for name, count in counts.items() if count} | {
            "made": np.array([self.made, self.images], np.int64),
            "origins": np.array(origins, np.int64),
            "span": np.array([self._span[origin] for origin in origins], np.int64),
            "applied": np.stack(applied) if applied else np.zeros((0, self.cells), np.int64),
        }

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over clocks from `tensors`."""
        if tensors["applied"].shape[1:] != (self.cells,):
            what = f"clocks have {tensors['applied'].shape[1:]} cells, not {self.cells}"
            raise ValueError(what)
        origins = [int(origin) for origin in tensors["origins"]]
        self._count(tensors)
        self._applied = {origin: np.array(row) for origin, row in zip(origins, tensors["applied"], strict=True)}
        self._owned = {origin: bounds(row) for origin, row in self._applied.items()}
        self._lowest = {origin: int(row.min()) for origin, row in self._applied.items()}
        self._span = {origin: int(span) for origin, span in zip(origins, tensors["span"], strict=True)}
        self._fresh, self._last, self._since, self._slowest = {}, {}, {}, None

    def resume(self, tensors: Mapping[str, np.ndarray], node: int, steps: Mapping[int, int]) -> None:
        """Go on from clocks that were kept, with this node's own origins.

        What an origin had made counts as applied, and what this node had made as answered by an origin that makes no
        steps: what was under way is dropped at both ends, and nobody waits for it. Where nobody had been told how many
        gradients there are of all, `of_all` is what those that are there have made by their numbers.
        """
        if tensors:
            self._count(tensors)
        self.made, self.of_all = steps.get(node, self.made), self.of_all or sum(steps.values())
        self.pace = sum(steps.values()) // max(1, len(steps))
        for origin, applied in self._applied.items():
            number = self.made if self._answer else steps.get(origin, self.made)
            self._applied[origin] = np.where(applied < FAR, number, FAR)
            self._lowest[origin] = int(self._applied[origin].min())
        self._slowest = None

    def _count(self, tensors: Mapping[str, np.ndarray]) -> None:
        self.made, self.images = (int(value) for value in tensors["made"])
        self.poisoned, self.of_all, self.come = (
            int(tensors[name][0]) if name in tensors else 0 for name in ("poisoned", "of_all", "come")
        )

    def _range(self, cells: slice) -> tuple[int, int]:
        """First cell and first behind of a slice that has both, or neither, and no step.

        Raises:
            ValueError: it reaches beyond the cells that there are.
        """
        start, stop = cells.start or 0, self.cells if cells.stop is None else cells.stop
        if not 0 <= start <= stop <= self.cells:
            what = f"cells {start} to {stop} of {self.cells}: send fragments of cells that the layout has"
            raise ValueError(what)
        return start, stop

    def _note(self, origin: int, low: int, span: int) -> None:
        """Note up to which gradient all cells of an origin are applied now, and its span."""
        before = self._lowest[origin] + self._span[origin]
        self._lowest[origin], self._span[origin] = low, span
        slowest = self._slowest
        if slowest is None or min(before, low + span) > slowest:
            return
        # Many may be the slowest; it is looked for anew only when the last of them has gone on.
        self._slow -= before == slowest < low + span
        if not self._slow or low + span < slowest or self._fresh or self._last:
            self._slowest = None

    def _waited_for(self) -> Mapping[int, int]:
        """The least gradient number applied of each origin that has begun and of which more is to come."""
        if not self._fresh and not self._last:
            return self._lowest
        return {
            origin: low
            for origin, low in self._lowest.items()
            if origin not in self._fresh and low < self._last.get(origin, FAR)
        }


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
    anybodys: ClassVar[bool] = True
    cells: int
    origins: str
    sharding: Sharding | None = None
    span: int = 0
    own: bool = False

    def create(self, node: NodeContext) -> ClocksState:
        """The clocks at 0; of origins that answer, at -1 on a node that joins late: it has no answer yet."""
        ClocksState.compile()
        members = node.members[self.origins]
        if self.sharding:
            owned = self.sharding.owned(members)
        else:
            owned = everything(members, self.cells, without=None if self.own else node.index)
        owned = {origin: mask for origin, mask in owned.items() if mask.any()}
        own, answer = node.index if self.own else None, self.sharding is not None
        clocks = ClocksState(self.cells, owned, span=self.span, own=own, answer=answer)
        if self.sharding and node.incarnation:
            for origin, mask in owned.items():
                clocks.take_over(origin, np.where(mask, np.int64(-1), np.int64(FAR)))
        return clocks


def everything(members: Sequence[int], cells: int, *, without: int | None) -> dict[int, npt.NDArray[np.bool_]]:
    """By member but `without`, a mask of all cells, the same for all."""
    mask = np.ones(cells, np.bool_)
    mask.flags.writeable = False
    return {member: mask for member in members if member != without}


_Numbers = npt.NDArray[np.int64]


def bounds(applied: _Numbers) -> tuple[int, int]:
    """The first cell that is not `FAR`, and the first behind the last one; all cells if all are."""
    owned = np.flatnonzero(applied < FAR)
    return (int(owned[0]), int(owned[-1]) + 1) if owned.size else (0, applied.size)


@compiled
def _least(numbers: _Numbers, first: int, behind: int) -> int:
    """The least of numbers `first` to `behind`: a node may answer for few of thousands."""
    least = numbers[first]
    for cell in range(first + 1, behind):  # NumPy's own is as fast, and takes five times as long to compile
        least = min(least, numbers[cell])
    return int(least)


@compiled
def _advance(
    applied: _Numbers, first: int, behind: int, start: int, stop: int, low: int, high: int, skips: bool
) -> int:
    for cell in range(start, stop):
        if applied[cell] != low and not (skips and applied[cell] < low):
            return _REFUSED
    applied[start:stop] = high
    return _least(applied, first, behind)


@compiled
def _reach(applied: _Numbers, first: int, behind: int, start: int, stop: int, number: int) -> int:
    for cell in range(start, stop):
        applied[cell] = max(applied[cell], number)
    return _least(applied, first, behind)
