"""The window: recent gradients by number, and what of them each receiver has been sent.

A fragment is the sum of an interval of gradients over a run of cells, made when it is sent. Nothing is ever
subtracted, so there is no drift, and a slow receiver costs longer intervals, not a queue. With nobody late this is the
accumulation over the last p gradients of ako.txt 3.1.

Some gradients are held whole, and older ones as sums: by cell one between any two of its receivers' places. So the sums
take a model's memory for each receiver at most, however many gradients lie between two turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from dataflow.node_context import NodeContext
from dataflow.operators_api import Sample
from dataflow.state import State, StateElement, StateKind
from operators.clocks import FAR, bounds, everything
from operators.jit import compiled
from operators.layout import Layout, Sharding
from operators.messages import Code, Vector
from operators.window_layers import Layers

_WHOLE = 4  # what gradients take at most that are kept apart anyway, as a part of what they may for a receiver to come
_ALL = slice(None)


class Interval(NamedTuple):
    """Gradients (low, high], of so many images, summed over cells `start` to `stop`: as float32, or as a code."""

    start: int
    stop: int
    low: int
    high: int
    images: int
    values: Vector | Code


class _Whole(NamedTuple):
    """A gradient, over all cells."""

    number: int
    values: Vector


class WindowState(State):
    """Live window of one node.

    `newest` is the newest gradient's number, and `closed` that of the newest one that may be taken: the same, here.
    `dropped` counts gradients of which some receiver will never get some cell; once there may be any, `skips` is set.
    `poisoned` counts gradients that were taken in as zeros because they were not finite.
    `rate` is the learning rate of the newest gradient.
    `span` are the gradients at most until every cell is sent again: with whatever is sent goes the one that holds then.
    """

    def __init__(
        self, layout: Layout, wanted: Mapping[int, npt.NDArray[np.bool_]], *, cap_nbytes: int, newest_only: bool
    ) -> None:
        """An empty window.

        Args:
            layout: the model's cells.
            wanted: by receiver, the cells it is sent.
            cap_nbytes: memory for gradients at most that are kept for a receiver which has joined and not begun, each
                apart; beyond it the oldest are dropped for that one, if it would have missed its turn. A quarter of it
                is for those that are not added up yet.
            newest_only: keep no gradient but the newest: no accumulation.
        """
        self.newest = self.closed = 0
        self.rate = 1.0
        self.dropped = self.poisoned = 0
        self.skips = newest_only
        self.span = 0
        self._layout, self._newest_only = layout, newest_only
        self._cap = max(2, cap_nbytes // (4 * layout.n_weights))
        self._wholes: list[_Whole] = []
        self._images = {0: 0}  # by number, of all gradients up to it; from the oldest on behind which a receiver may be
        self._layers = Layers(layout)
        self._wanted = dict(wanted)
        self._held: dict[int, int] = {}
        self._row = {receiver: row for row, receiver in enumerate(wanted)}
        self._sent_to = np.zeros((len(wanted), layout.cells), np.int64)
        for row, mask in enumerate(wanted.values()):
            self._sent_to[row, ~mask] = FAR
        self._bounds = [bounds(sent) for sent in self._sent_to]
        self._least = self._least_of_each()
        self._sums: dict[tuple[int, int, int], Vector] = {}

    @classmethod
    def compile(cls) -> None:
        """Compile what `take` needs, or load it from disk, so that no message waits for it."""
        _advance(np.zeros(1, np.int64), 0, 1, 0, 1, 0)

    @property
    def receivers(self) -> tuple[int, ...]:
        """Nodes that are sent what comes, or will be once they begin."""
        return tuple(self._row)

    @property
    def owed(self) -> Vector | None:
        """What was appended and is not in what may be taken, (weights,) float32, as it stands; None: nothing ever."""
        return None

    @property
    def nbytes(self) -> int:
        """Memory held by gradients, in bytes."""
        return sum(whole.values.nbytes for whole in self._wholes) + self._layers.nbytes

    def append(self, number: int, values: Vector, rate: float = 1.0, images: int = 0) -> None:
        """Take in gradient `number`, the next one, with its learning rate and images; `values` is never written."""
        if number != self.newest + 1:
            what = f"gradient {self.newest + 1} is next, got {number}"
            raise ValueError(what)
        self._images[number] = self._images[number - 1] + images
        for old in range(next(iter(self._images)), min([*self._least, self.closed])):
            del self._images[old]
        self.newest, self.rate = number, rate
        self._keep(number, values)

    def close(self) -> None:
        """Let everything be taken that was appended: it is, here."""

    def _keep(self, number: int, values: Vector) -> None:
        self.closed = number
        self._sums.clear()
        if self._newest_only:
            self._skip_to(number - 1)
        self._wholes.append(_Whole(number, values))
        self._free()
        while len(self._wholes) > max(1, self._cap // _WHOLE) and self._wholes[0].number <= self._begun():
            self._fold()
        while len(self._wholes) > self._cap and self._is_late(self._wholes[0].number):
            self.skips = True
            self._skip_to(self._wholes[0].number, [self._row[receiver] for receiver in self._held])
            self._fold()

    def take(self, receiver: int, start: int, stop: int) -> list[Interval]:
        """Everything that `receiver` has not been sent of cells `start` to `stop`; it counts as sent from now on.

        Cells that differ in what was sent give separate intervals.

        Raises:
            ValueError: there are no such cells.
        """
        if not 0 <= start < stop <= self._layout.cells:
            what = f"cells {start} to {stop} of {self._layout.cells}: offer a run of cells that the layout has"
            raise ValueError(what)
        row = self._row.get(receiver)
        if row is None or receiver in self._held:
            return []
        sent, closed = self._sent_to[row], self.closed
        low, least = _advance(sent, *self._bounds[row], start, stop, closed)
        if low >= closed:
            return []
        if low >= 0:
            intervals = [self._interval(start, stop, low)]
        else:
            intervals = self._take_unlike(sent, start, stop)
            least = int(sent.min())
        self._least[row] = least
        self._free()
        return intervals

    def _take_unlike(self, sent: npt.NDArray[np.int64], start: int, stop: int) -> list[Interval]:
        """An interval for each run of cells that were sent alike."""
        intervals = []
        cuts = np.flatnonzero(np.diff(sent[start:stop])) + start + 1
        for first, last in pairwise([start, *cuts.tolist(), stop]):
            low = int(sent[first])
            if low < self.closed:
                intervals.append(self._interval(first, last, low))
                sent[first:last] = self.closed
        return intervals

    def frames(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Cut cells `start` to `stop` into runs of which each fits one frame, however much of it is taken."""
        return self._layout.frames(start, stop)

    def samples(self) -> Iterator[Sample]:
        """What is told once something was taken: nothing, here."""
        yield from ()

    def leave(self, receiver: int) -> None:
        """Send nothing to `receiver` any more."""
        row = self._row.pop(receiver, None)
        self._held.pop(receiver, None)
        if row is not None:
            self._sent_to[row] = self._least[row] = FAR
            self._free()

    def claim(self, _receiver: int, _turn: int) -> bool:
        """Whether a new receiver may begin: always, since it is told of gaps like any other."""
        return True

    def join(self, receiver: int, turn: int) -> int:
        """Keep for a receiver that is new what comes from now on, and every number of it apart, until it begins.

        Args:
            receiver: number of the node.
            turn: what it will name when it begins, unlike whoever had its number before.

        Returns:
            The number of the last gradient that is not kept for it.
        """
        row = self._row[receiver] = list(self._wanted).index(receiver)
        self._held[receiver] = turn
        self._sent_to[row] = np.where(self._wanted[receiver], self.closed, FAR)
        self._least[row] = self.closed
        return self.closed

    def begin(self, receiver: int, turn: int, applied: npt.NDArray[np.int64]) -> None:
        """Send to a new receiver from now on: what comes behind the number that each cell of its replica holds."""
        if self._held.get(receiver) == turn:
            del self._held[receiver]
            sent = self._sent_to[self._row[receiver]]
            np.maximum(sent, applied, out=sent)
            self._least[self._row[receiver]] = int(sent.min())
            self._free()

    def start(self, number: int) -> None:
        """Begin behind gradient `number`, with a window that is empty."""
        self.newest = self.closed = number
        self._images = {number: 0}
        self._sent_to[self._sent_to < FAR] = number
        self._least = self._least_of_each()

    def tensors(self) -> dict[str, np.ndarray]:
        """``newest``, ``sent_to`` (receivers, cells), and ``poisoned`` if any gradient was.

        Gradients under way are not part of a checkpoint (ako.txt 4.3).
        """
        poisoned = {"poisoned": np.array([self.poisoned], np.int64)} if self.poisoned else {}
        return poisoned | {"newest": np.array([self.newest], np.int64), "sent_to": self._sent_to}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over the numbers; the gradients themselves are gone, so everything counts as sent.

        What had not been sent is missing for good, and receivers must be told so.
        """
        if tensors["sent_to"].shape != self._sent_to.shape:
            what = f"window has shape {tensors['sent_to'].shape}, not {self._sent_to.shape}"
            raise ValueError(what)
        self.newest = self.closed = int(tensors["newest"][0])
        self.poisoned = int(tensors["poisoned"][0]) if "poisoned" in tensors else 0
        self.skips = True
        self._images = {self.newest: 0}
        self._wholes.clear()
        self._layers.clear()
        self._sums.clear()
        self._sent_to[self._sent_to < FAR] = self.newest
        self._least = self._least_of_each()

    def resume(self, tensors: Mapping[str, np.ndarray], node: int, steps: Mapping[int, int]) -> None:
        """Go on after the last gradient that the node had made; receivers count all before it as applied."""
        skips = self.skips
        super().resume(tensors, node, steps)
        self.skips = skips
        self.newest = self.closed = steps.get(node, self.newest)
        self._images = {self.newest: 0}
        self._sent_to[self._sent_to < FAR] = self.newest
        self._least = self._least_of_each()

    def _interval(self, start: int, stop: int, low: int) -> Interval:
        """Gradients (low, closed] over cells."""
        images = self._images[self.closed] - self._images[low]
        return Interval(start, stop, low, self.closed, images, self._sum(start, stop, low))

    def _sum(self, start: int, stop: int, low: int) -> Vector | Code:
        """Sum of gradients (low, newest] over cells; receivers with the same interval share one."""
        key = (start, stop, low)
        known = self._sums.get(key)
        if known is None:
            where = self._layout.weights(start, stop)
            parts = [whole.values[where] for whole in self._wholes if whole.number > low]
            folded = self._layers.total(start, stop, low)
            if folded is not None:
                known = folded
            else:
                known = parts.pop(0) if len(parts) == 1 else np.add(parts.pop(0), parts.pop(0))
            for part in parts:
                known += part
            self._sums[key] = known
        return known

    def _free(self) -> None:
        """Let go of gradients that everybody has been sent."""
        everywhere = min(self._least, default=FAR)
        self._wholes = [whole for whole in self._wholes if whole.number > everywhere]
        self._layers.free(self._sent_to)

    def _begun(self) -> int:
        """The newest number that no receiver may begin behind, so that gradients up to it may be added up."""
        return min((self._least[self._row[receiver]] for receiver in self._held), default=FAR)

    def _fold(self) -> None:
        """Add the oldest whole gradient to the layers."""
        whole = self._wholes.pop(0)
        self._layers.fold(whole.number, whole.values, self._sent_to)

    def _is_late(self, number: int) -> bool:
        """Whether who has not been sent gradient `number` has missed a turn: others keep as many however large."""
        return number <= self.newest - 2 * self.span

    def _skip_to(self, number: int, rows: Sequence[int] | slice = _ALL) -> None:
        """Let receivers miss what they have not been sent up to `number`."""
        sent = self._sent_to[rows]
        behind = sent < number
        if behind.any():
            self.dropped += int((number - sent[behind]).max())
            self._sent_to[rows] = np.maximum(sent, number)
            self._least = self._least_of_each()

    def _least_of_each(self) -> list[int]:
        """By row of `_sent_to`, up to which gradient all of its cells were sent."""
        least: list[int] = self._sent_to.min(axis=1, initial=FAR).tolist()
        return least


class Window(StateElement):
    """The window towards the members of role `receivers`.

    Args:
        layout: the model's cells.
        receivers: role whose nodes are sent to.
        sharding: the cells that each receiver is sent; if None, every other node is sent all cells.
        cap_nbytes: memory for gradients at most that are kept for a receiver which has joined and not begun; a quarter
            of it is for those that are not added up yet.
        newest_only: no accumulation (the ablation of ako.txt 5.7).
    """

    kind: ClassVar[StateKind] = StateKind.LOCAL
    layout: Layout
    receivers: str
    sharding: Sharding | None = None
    cap_nbytes: int = 48 << 20
    newest_only: bool = False

    def create(self, node: NodeContext) -> WindowState:
        """An empty window."""
        receivers = wanted(node, self.receivers, self.layout, self.sharding)
        WindowState.compile()
        return WindowState(self.layout, receivers, cap_nbytes=self.cap_nbytes, newest_only=self.newest_only)


def wanted(
    node: NodeContext, receivers: str, layout: Layout, sharding: Sharding | None
) -> dict[int, npt.NDArray[np.bool_]]:
    """By receiver, the cells that a node sends it: those it owns, or all to every other node if nothing is sharded."""
    members = node.members[receivers]
    if sharding:
        return sharding.owned(members)
    return everything(members, layout.cells, without=node.index)


@compiled
def _advance(
    sent: npt.NDArray[np.int64], first: int, behind: int, start: int, stop: int, closed: int
) -> tuple[int, int]:
    """Note that cells `start` to `stop` are sent up to `closed`, unless they were further.

    Returns up to which gradient they were before, and all cells are now, of which `first` to `behind` are wanted; or
    -1, and notes nothing, if they were not sent alike.
    """
    low = sent[start]
    for cell in range(start, stop):
        if sent[cell] != low:
            return -1, -1
    if low < closed:
        sent[start:stop] = closed
    least = sent[first]
    for cell in range(first + 1, behind):
        least = min(least, sent[cell])
    return low, least
