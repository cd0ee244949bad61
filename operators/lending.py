"""Lending: a node's model for one that joins, with what is applied to it, in pieces that each fit a frame.

Invariant: a loan is of one moment. What it holds of every node is what its clocks say; of the lender's own gradients,
what others are sent of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, Operator
from dataflow.ports import In, Out
from dataflow.state import Reads, State, StateElement, StateKind, Writes
from operators.clocks import ClocksState
from operators.joining import Outgoing
from operators.layout import MAX_CELL
from operators.messages import Piece, Vector, Word
from operators.roll import RollState
from operators.vector_state import VectorState


class Lend(Operator):
    """Lends the replica to a node that joins, once everything is applied that the others do not keep for it."""

    pool = "network"
    sends = True
    loans = In(Word, capacity=1024)
    pieces = Out(Piece)
    replica = Reads()
    statistics = Reads()
    clocks = Writes()
    window = Writes()
    roll = Writes()

    def ready(self, roll: RollState, clocks: ClocksState, window: Outgoing) -> bool:
        """Whether what somebody has asked for is there, or nobody waits any more."""
        return not roll.asked or _next(roll, clocks, window) is not None

    def process(
        self,
        _word: Word,
        replica: Vector,
        statistics: Vector,
        clocks: ClocksState,
        window: Outgoing,
        roll: RollState,
        node: NodeContext,
    ) -> Emissions:
        """The pieces of a loan."""
        word = _next(roll, clocks, window)
        if word is None:
            return
        del roll.asked[word.origin]
        own = node.index in clocks.origins
        weights = replica if own or window.owed is None else replica + window.owed
        for element, values in (("replica", weights), ("statistics", statistics)):
            for start in range(0, values.size, MAX_CELL):
                part = values[start : start + MAX_CELL]
                yield self.pieces(Piece(node.index, word.origin, word.turn, element, start, part), to=word.origin)
        rows = {origin: clocks.applied(origin) for origin in clocks.origins if origin not in clocks.fresh}
        if not own:
            rows[node.index] = np.full(clocks.cells, window.closed, np.int64)
        yield self.pieces(
            Piece(
                node.index,
                word.origin,
                word.turn,
                "clocks",
                0,
                np.zeros(0, np.float32),
                clocks.made,
                clocks.images,
                np.array(list(rows), np.int64),
                np.array([clocks.last.get(origin, -1) for origin in rows], np.int64),
                np.stack(list(rows.values())),
            ),
            to=word.origin,
        )


@dataclass
class LoanState(State):
    """The pieces of a loan that have come.

    Args:
        turn: number of the loan.
        pieces: of it.
    """

    turn: int = 0
    pieces: list[Piece] = field(default_factory=list)

    def tensors(self) -> dict[str, np.ndarray]:
        """None: a loan is taken whole or not at all."""
        return {}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Start without a loan."""
        self.pieces.clear()


class Loan(StateElement):
    """A loan on its way to a node that joins."""

    kind: ClassVar[StateKind] = StateKind.LOCAL

    def create(self, _node: NodeContext) -> LoanState:
        """No loan yet."""
        return LoanState()


class Borrow(Operator):
    """Takes a loan over, once all of it has come."""

    pool = "network"
    receives = True
    catches_up = True
    pieces = In(Piece)
    loan = Writes()
    replica = Writes()
    statistics = Writes()
    clocks = Writes()
    roll = Writes()

    def process(
        self,
        piece: Piece,
        loan: LoanState,
        replica: VectorState,
        statistics: VectorState,
        clocks: ClocksState,
        roll: RollState,
    ) -> Emissions:
        """Take in a piece, unless it is of a loan that is no longer waited for."""
        yield from ()
        if roll.settled or roll.lent or piece.turn != roll.turn:
            return
        if loan.turn != piece.turn:
            loan.turn = piece.turn
            loan.pieces.clear()
        loan.pieces.append(piece)
        if piece.element != "clocks":
            return
        vectors = {"replica": replica.values, "statistics": statistics.values}
        for part in loan.pieces[:-1]:
            vectors[part.element][part.start : part.start + part.values.size] = part.values
        for origin, last, applied in zip(piece.origins.tolist(), piece.last.tolist(), piece.applied, strict=True):
            if origin in clocks.fresh:
                continue  # it has died since the lender said so, and another has come in its place
            clocks.take_over(origin, applied)
            if last >= 0:
                clocks.end(origin, last)
        loan.pieces.clear()
        roll.lent = True


def _next(roll: RollState, clocks: ClocksState, window: Outgoing) -> Word | None:
    """The first request that can be met now: what was made here is sent, and what the asking node needs is applied."""
    if roll.node not in clocks.origins and window.newest != clocks.made:
        return None
    return next((word for word in roll.asked.values() if not any(_lacking(word, clocks))), None)


def _lacking(word: Word, clocks: ClocksState) -> Iterator[bool]:
    """Of every node that is followed, whether its gradients are not applied up to where they are kept for a joiner."""
    needed = dict(zip(word.origins.tolist(), word.applied.tolist(), strict=True))
    for origin in clocks.origins:
        if origin in clocks.fresh:
            # Either it was told here that it may begin, and the word where is coming; or whoever welcomed the node
            # that asks has died, and this is another in its place, which does not begin before that node has settled.
            yield origin in needed and origin in clocks.since
        elif origin in needed:
            yield clocks.lacks(origin, needed[origin])
        elif origin != word.origin:
            last = clocks.last.get(origin)
            yield last is None or clocks.lacks(origin, last)
