"""Ledgers: where a job with a codec goes on from a checkpoint, nothing that was under way is lost, and nothing twice.

Every residual that is `counted` knows the sum of all updates that it gave. Gradients made are that sum and what is
owed, whatever others have heard of it by the moments at which they were kept, which differ. So the sums of all nodes
say what the model is, or what servers lack of it. See docs/decisions/0038-what-was-under-way-is-settled.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dataflow.node_context import NodeContext
from dataflow.state import Kept, State, StateElement, StateKind
from operators.coded_window import OWED, CodedWindowState
from operators.compression import Residual
from operators.dnn import NetworkSpec
from operators.dnn.arrays import read_only
from operators.kept import KeptState
from operators.layout import Layout
from operators.messages import Vector
from operators.vector_state import VectorState
from operators.warm_start import WarmStart, initial_weights

Sums = npt.NDArray[np.float64]


class LedgerState(State):
    """Live ledger of one worker.

    It is `whole` unless the worker has been started again: what it had given before is in no residual any more.
    """

    def __init__(self, owed: str, node: NodeContext) -> None:
        """Nothing was given yet.

        Args:
            owed: the element that holds the residual.
            node: the worker.
        """
        self.whole = node.incarnation == 0
        self._owed, self._node = owed, node.index
        self._there = tuple(member for member in node.members[node.role] if member not in node.vacant)

    def tensors(self) -> dict[str, np.ndarray]:
        """``whole``, 1 or 0."""
        return {"whole": np.array([self.whole], np.int64)}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over whether it is whole."""
        self.whole = bool(tensors["whole"][0])

    def balance(self, states: Mapping[str, State], kept: Sequence[Kept], *, divided: bool, whole: bool) -> None:
        """Divide what all owed among the workers that there are, where nobody goes on with its own."""
        owed = self.owed(kept)
        if divided and owed is not None:
            self.residual(states).values[:] = self.share(owed)

    def residual(self, states: Mapping[str, State]) -> Residual:
        """What this worker owes."""
        state = states[self._owed]
        if isinstance(state, CodedWindowState):
            return state.residual
        assert isinstance(state, Residual)
        return state

    def given(self, kept: Iterable[Kept]) -> Sums | None:
        """The sum of all updates that all workers gave, (weights,); None if it is not known."""
        return _total(self._of_residuals(kept, "sent"))

    def owed(self, kept: Iterable[Kept]) -> Sums | None:
        """What all workers owed, (weights,)."""
        return _total(self._of_residuals(kept, "values"))

    def share(self, total: Sums) -> Vector:
        """This worker's part of what is divided among those that there are: a range of the weights; zeros elsewhere."""
        part = np.zeros(total.size, np.float32)
        if self._node in self._there:
            rank, size = self._there.index(self._node), len(self._there)
            start, stop = total.size * rank // size, total.size * (rank + 1) // size
            part[start:stop] = total[start:stop]
        return part

    def _of_residuals(self, kept: Iterable[Kept], name: str) -> Iterator[np.ndarray | None]:
        for each in sorted(kept, key=lambda each: each.node):  # so that all workers round alike
            if self._owed in each.tensors:
                tensors = each.tensors[self._owed]
                yield tensors.get(name, tensors.get(OWED + name))


class PeersLedgerState(LedgerState):
    """Live ledger of workers that send each other what codecs make of their gradients.

    `start` is the model that all of them began with, (weights,) float32, never written.
    """

    def __init__(self, start: Vector, owed: str, node: NodeContext, *, local: bool) -> None:
        """Nothing was given yet.

        Args:
            start: see above.
            owed: see `LedgerState`.
            node: the worker.
            local: whether workers apply their own gradients whole, and so to their replicas what they owe, too.
        """
        super().__init__(owed, node)
        self.start, self._local = read_only(start), local

    def tensors(self) -> dict[str, np.ndarray]:
        """``whole``, and ``start``."""
        return super().tensors() | {"start": self.start}

    def kept(self) -> dict[str, np.ndarray]:
        """As `tensors`: nothing of it is written."""
        return self.tensors()

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over `start` and whether the ledger is whole."""
        super().restore(tensors)
        if tensors["start"].shape != self.start.shape:
            what = f"the model had {tensors['start'].shape} weights at the start, not {self.start.shape}"
            raise ValueError(what)
        self.start = read_only(np.array(tensors["start"], np.float32))

    def balance(self, states: Mapping[str, State], kept: Sequence[Kept], *, divided: bool, whole: bool) -> None:
        """Make the replica the sum of all that was given, if it lacks something or has what is to come again.

        Where some node's account is not known it is what the first worker that was kept had of it. All that was given
        is counted from there.
        """
        super().balance(states, kept, divided=divided, whole=whole)
        there = sorted((each for each in kept if "ledger" in each.tensors), key=lambda each: each.node)
        given, residual, replica = self.given(kept), self.residual(states), states["replica"]
        assert isinstance(replica, VectorState)
        whole = whole and all(each.tensors["ledger"]["whole"][0] for each in there)
        known = whole and given is not None
        if whole and given is not None:
            model = (there[0].tensors["ledger"]["start"] - given).astype(np.float32)
        else:
            model = self._held(there[0])
        if not known or divided or not _nothing_under_way(kept):
            replica.values = model - residual.values if self._local else model.copy()
        self.start, self.whole = read_only(model), True
        residual.forget()
        window = states.get("window")
        if isinstance(window, KeptState):
            window.owed = residual.values

    def _held(self, worker: Kept) -> Vector:
        """What a worker's replica was of what had been given."""
        replica, owed = np.array(worker.tensors["replica"]["values"], np.float32), self.owed([worker])
        return replica if owed is None or not self._local else (replica + owed).astype(np.float32)


class BarrierLedger(StateElement):
    """The ledger of role ``worker`` where nothing is under way when a job is kept; named ``ledger``.

    Args:
        owed: element that holds the residual.
    """

    kind: ClassVar[StateKind] = StateKind.LEDGER
    owed: str

    def create(self, node: NodeContext) -> LedgerState:
        """Nothing was given yet."""
        return LedgerState(self.owed, node)


class Ledger(StateElement):
    """The ledger of role ``worker``, whose state are ``replica``, ``clocks`` and a counted residual; named ``ledger``.

    Args:
        model: the network.
        warm_start: training before the start; none if None.
        owed: element that holds the residual.
        local: see `PeersLedgerState`.
    """

    kind: ClassVar[StateKind] = StateKind.LEDGER
    model: NetworkSpec
    warm_start: WarmStart | None = None
    owed: str
    local: bool

    def create(self, node: NodeContext) -> PeersLedgerState:
        """Nothing was given yet."""
        start = initial_weights(self.model, self.warm_start, node.seed)
        return PeersLedgerState(start, self.owed, node, local=self.local)


class PushesLedgerState(LedgerState):
    """Live ledger of workers that push what codecs make of their gradients to servers, which count what they take."""

    def __init__(self, layout: Layout, owed: str, node: NodeContext) -> None:
        """Nothing was given yet.

        Args:
            layout: the model's cells.
            owed: see `LedgerState`.
            node: the worker.
        """
        super().__init__(owed, node)
        self._layout = layout

    def balance(self, states: Mapping[str, State], kept: Sequence[Kept], *, divided: bool, whole: bool) -> None:
        """Have the first worker owe what servers lack of all that was given, less what they have that is made again.

        Where some node's account is not known it is lost. Both sides count from zero then.
        """
        super().balance(states, kept, divided=divided, whole=whole)
        ledgers = [each.tensors["ledger"] for each in kept if "ledger" in each.tensors]
        whole = whole and all(ledger["whole"][0] for ledger in ledgers)
        given, taken, residual = self.given(kept), self._taken(kept), self.residual(states)
        if whole and given is not None and taken is not None and self._there[:1] == (self._node,):
            residual.values += (given - taken).astype(np.float32)
        self.whole = True
        residual.forget()

    def _taken(self, kept: Iterable[Kept]) -> Sums | None:
        """The sum of all that servers had applied; None if some server does not know."""
        total = np.zeros(self._layout.n_weights)
        for pulls in (each.tensors["pulls"] for each in kept if "pulls" in each.tensors):
            if not pulls["counted"][0]:
                return None
            for name, values in pulls.items():
                if name.startswith("taken/"):
                    start, stop = (int(cell) for cell in name.removeprefix("taken/").split(":"))
                    total[self._layout.weights(start, stop)] += values
        return total


class PushesLedger(StateElement):
    """The ledger of role ``worker`` towards servers that count in their element ``pulls``; named ``ledger``.

    Args:
        layout: the model's cells.
        owed: element that holds the residual.
    """

    kind: ClassVar[StateKind] = StateKind.LEDGER
    layout: Layout
    owed: str = "window"

    def create(self, node: NodeContext) -> PushesLedgerState:
        """Nothing was given yet."""
        return PushesLedgerState(self.layout, self.owed, node)


def _total(parts: Iterable[np.ndarray | None]) -> Sums | None:
    """The sum; None if one is not there."""
    total: Sums | None = None
    for part in parts:
        if part is None:
            return None
        total = part.astype(np.float64) if total is None else total + part
    return total


def _nothing_under_way(kept: Sequence[Kept]) -> bool:
    """Whether the first node had applied all that every one had made, and no more, when they were kept.

    Clocks know no more of a node that had ended, nor of the node itself where it applies its own as it makes it.
    """
    first, clocks = kept[0], kept[0].tensors["clocks"]
    applied = dict(zip(clocks["origins"].tolist(), clocks["applied"], strict=True))
    senders = [each for each in kept if each is not first or each.node in applied]
    return all(each.node in applied and bool((applied[each.node] == each.steps).all()) for each in senders)
