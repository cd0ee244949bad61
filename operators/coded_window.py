"""The window of a node that sends its gradients in fewer bytes: what is owed, and recent rounds as a codec made them.

Each round is coded once, for all receivers alike. What a codec leaves out stays in the residual and is part of what the
next round is made of, so nothing is lost: what was sent and the residual are the sum of all gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from dataflow.node_context import NodeContext
from dataflow.operators_api import Sample
from dataflow.state import StateElement, StateKind
from operators.clocks import FAR
from operators.compression import Codec, Residual, Update, join, total
from operators.compression.forms import MAX_PASSES
from operators.layout import Layout, Sharding
from operators.messages import Code, Vector
from operators.window import WindowState, wanted

OWED = "residual."
"""What the residual's tensors are named behind, among those of a window."""

_MOST_ROUNDS = MAX_PASSES // 8
"""An update with `most=fit` has up to 8 passes."""

_DENSE_NBYTES = 8
"""What a sum of rounds holds for a weight at most."""


class _Coded(NamedTuple):
    """A code, and how many updates it has."""

    code: Code
    updates: int


def _coded(updates: Sequence[Update], where: slice) -> _Coded:
    code = join([update.encode(where.start, where.stop) for update in updates])
    return _Coded(code, sum(update.count(where.start, where.stop) for update in updates))


@dataclass(slots=True)
class _Round:
    """What a codec made of gradients (low, high]."""

    low: int
    high: int
    update: Update


class CodedWindowState(WindowState):
    """Live window of one node with a codec: gradients may be taken once a round is closed, and are coded then."""

    def __init__(
        self,
        layout: Layout,
        wanted: Mapping[int, npt.NDArray[np.bool_]],
        *,
        residual: Residual,
        updates: bool,
        cap_nbytes: int,
        runs: bool = False,
    ) -> None:
        """An empty window that owes nothing.

        Args:
            layout: see `WindowState`.
            wanted: see `WindowState`.
            residual: what is owed.
            updates: whether what comes has its learning rate in it.
            cap_nbytes: memory for rounds at most; beyond it the oldest are dropped, if a receiver has missed its turn.
            runs: whether receivers are sent the same runs of cells each time, by which they keep what they know.
        """
        super().__init__(layout, wanted, cap_nbytes=cap_nbytes, newest_only=False)
        self.residual = residual
        self._updates, self._cap_nbytes, self._runs = updates, cap_nbytes, runs
        self._rounds: list[_Round] = []
        self._merged_nbytes = 0
        self._codes: dict[tuple[int, int, int], _Coded] = {}

    @property
    def owed(self) -> Vector:
        """The residual."""
        return self.residual.values

    @property
    def nbytes(self) -> int:
        """Memory held by rounds, in bytes."""
        return sum(each.update.nbytes for each in self._rounds)

    def close(self) -> None:
        """Code what was appended since the last time, and what is owed of before."""
        if self.closed == self.newest:
            return
        unit = self.rate if self._updates else 1.0
        self._rounds.append(_Round(self.closed, self.newest, self.residual.quantise(unit=unit)))
        self.closed = self.newest
        self._codes.clear()
        self._free()
        self._merge()
        while len(self._rounds) > 2 and self.nbytes > self._cap_nbytes and self._is_late(self._rounds[0].high):
            self.skips = True
            self._skip_to(self._rounds[0].high)
            self._free()

    def frames(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Cut cells `start` to `stop` into as few runs as codes of all rounds fit one frame each."""
        return super().frames(start, stop) if self._runs else self._layout.fitting(start, stop, self._most_nbytes)

    def samples(self) -> Iterator[Sample]:
        """What codes have cost, and what is owed."""
        yield from self.residual.samples()

    def tensors(self) -> dict[str, np.ndarray]:
        """As without a codec, and the residual's."""
        return super().tensors() | {OWED + name: tensor for name, tensor in self.residual.tensors().items()}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over the numbers and what is owed; see `operators.ledger` for rounds that had not been sent."""
        super().restore(tensors)
        self.residual.restore({name: tensors[OWED + name] for name in self.residual.tensors()})
        self._rounds.clear()
        self._codes.clear()

    def _keep(self, number: int, values: Vector) -> None:
        self.residual.add(values)

    def _sum(self, start: int, stop: int, low: int) -> Code:
        """Gradients (low, closed] over cells, round by round; receivers with the same interval share one.

        Several rounds that take more bytes than float32, or more passes than a code may have, are added up.
        """
        key = (start, stop, low)
        where = self._layout.weights(start, stop)
        known = self._codes.get(key)
        if known is None:
            updates = [each.update for each in self._rounds if each.high > low]
            if len(updates) > _MOST_ROUNDS:
                updates = [total(updates)]
            known = _coded(updates, where)
            if len(updates) > 1 and known.code.nbytes > 4 * (where.stop - where.start):
                known = _coded([total(updates)], where)
            self._codes[key] = known
        self.residual.account.note(where.stop - where.start, known.updates, known.code.nbytes)
        return known.code

    def _most_nbytes(self, start: int, stop: int) -> int:
        """What the code of weights takes at most; see `_sum` of several rounds."""
        dense = (_DENSE_NBYTES * (stop - start)) // 2
        return min(dense, sum(each.update.most_nbytes(start, stop) for each in self._rounds))

    def _free(self) -> None:
        everywhere = min(self._least, default=FAR)
        self._rounds = [each for each in self._rounds if each.high > everywhere]
        if not self._rounds:
            self._merged_nbytes = 0

    def _merge(self) -> None:
        """Add up neighbouring rounds that no receiver's place lies between, nor may come to.

        Once all hold more than one sum would, and again when they hold twice what was left then.
        """
        if self._held or self.nbytes <= max(_DENSE_NBYTES * self._layout.n_weights, 2 * self._merged_nbytes):
            return
        places = set(np.unique(self._sent_to).tolist())
        merged: list[_Round] = []
        for each in self._rounds:
            before = merged[-1] if merged else None
            if before and before.high not in places:
                merged[-1] = _Round(before.low, each.high, total((before.update, each.update)))
            else:
                merged.append(each)
        self._rounds = merged
        self._merged_nbytes = self.nbytes


class CodedWindow(StateElement):
    """The window towards the members of role `receivers`, with a codec.

    Args:
        layout: the model's cells.
        codec: what makes fewer bytes of gradients.
        layers: offset at which each layer begins.
        receivers: role whose nodes are sent to.
        sharding: the cells that each receiver is sent; if None, every other node is sent all cells.
        updates: whether updates come, which have their learning rate in them, and not gradients.
        cap_nbytes: memory for rounds at most: with what is under way, a receiver that stops costs less than 64 MB.
        counted: whether the sum of all rounds is kept, for checkpoints; see `operators.ledger`.
    """

    kind: ClassVar[StateKind] = StateKind.LOCAL
    layout: Layout
    codec: Codec
    layers: tuple[int, ...] = (0,)
    receivers: str
    sharding: Sharding | None = None
    updates: bool = False
    cap_nbytes: int = 48 << 20
    counted: bool = False

    def create(self, node: NodeContext) -> CodedWindowState:
        """An empty window."""
        Residual.compile(self.codec)
        return CodedWindowState(
            self.layout,
            wanted(node, self.receivers, self.layout, self.sharding),
            residual=Residual(self.codec, self.layout.n_weights, self.layers, node.tasks, counted=self.counted),
            updates=self.updates,
            cap_nbytes=self.cap_nbytes,
            runs=self.sharding is not None,
        )
