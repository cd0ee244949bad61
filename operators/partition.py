"""Partition: decide which range of the model each receiver is due in a round."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

import numpy as np
from pydantic import Field, PrivateAttr

from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, Operator
from dataflow.ports import In, Out
from dataflow.state import State, StateElement, StateKind, Writes
from operators.cost_model import CostModel
from operators.layout import Layout, Sharding, runs
from operators.messages import Accumulated, Offer

_GRID = 1 << 40
"""Largest denominator of a place after a change: far finer than cells, and small enough for 64 bits in a checkpoint."""


class RotationState(State):
    """Where in the model each receiver's next partition begins, as a fraction of the cells."""

    def __init__(self, partitions: int, receivers: Mapping[int, Fraction]) -> None:
        """Start the rotation.

        Args:
            partitions: p; `span` is the number of rounds until every cell has had its turn.
            receivers: nodes with the place of their first partition.
        """
        self.partitions = partitions
        self.span = partitions
        self._rounds = 0
        self._place = dict(receivers)

    @property
    def receivers(self) -> tuple[int, ...]:
        """Nodes that are sent to."""
        return tuple(self._place)

    def change(self, partitions: int) -> None:
        """Use another number of partitions from the next round on; nobody's place is lost.

        A place whose denominator has grown beyond `_GRID` moves back to a multiple of 1/`_GRID`.
        """
        self.span = max(self.span, partitions)
        self.partitions = partitions
        self._rounds = 0
        self._place = {
            node: place if place.denominator <= _GRID else Fraction(math.floor(place * _GRID), _GRID)
            for node, place in self._place.items()
        }

    def next_round(self) -> None:
        """Begin a round; a full turn after the last change, `span` is the number of partitions again."""
        self._rounds += 1
        if self._rounds > self.span:
            self.span = self.partitions

    def turn(self, receiver: int, cells: int) -> Iterator[tuple[int, int]]:
        """The run of cells that `receiver` is due, in two parts where it wraps around, and move its place on.

        With more partitions than cells a turn may be empty, but not in the first round after a change: a receiver
        that does not hear of a longer span would wait for cells that are not due.
        """
        start, stop, self._place[receiver] = _turn(self._place[receiver], self.partitions, cells)
        if self._rounds == 1:
            stop = max(stop, start + 1)
        if start < min(stop, cells):
            yield start, min(stop, cells)
        if stop > cells:
            yield 0, stop - cells

    def leave(self, receiver: int) -> None:
        """Send nothing to `receiver` any more."""
        self._place.pop(receiver, None)

    def snapshot(self) -> dict[int, Fraction]:
        """A copy of every receiver's place."""
        return dict(self._place)

    def tensors(self) -> dict[str, np.ndarray]:
        """``partitions`` and ``place``: receiver, numerator, denominator."""
        rows = [(node, place.numerator, place.denominator) for node, place in self._place.items()]
        return {
            "partitions": np.array([self.partitions, self.span], np.int64),
            "place": np.array(rows, np.int64).reshape(-1, 3),
        }

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over the places."""
        self.partitions, self.span = (int(value) for value in tensors["partitions"])
        self._place = {int(node): Fraction(int(above), int(below)) for node, above, below in tensors["place"]}
        self._rounds = 0


@lru_cache(maxsize=1024)
def _turn(begin: Fraction, partitions: int, cells: int) -> tuple[int, int, Fraction]:
    """First and last cell of a turn, and the place behind it; many receivers take the same turns round after round."""
    end = begin + Fraction(1, partitions)
    return math.floor(begin * cells), math.floor(end * cells), end % 1


class Rotation(StateElement):
    """Places of the members of role `receivers`: receiver of rank i begins with partition (i + j) mod p at rank j.

    Args:
        partitions: p; by the cost model if None.
        receivers: role whose other nodes are sent to.
        cost: what the cost model is asked with.
    """

    kind: ClassVar[StateKind] = StateKind.LOCAL
    partitions: int | None = Field(ge=1)
    receivers: str
    cost: CostModel

    def create(self, node: NodeContext) -> RotationState:
        """The places before the first round."""
        members = node.members[self.receivers]
        p = self.partitions or self.cost.partitions(len(members))
        own = node.rank
        places = {member: Fraction((rank + own) % p, p) for rank, member in enumerate(members) if member != node.index}
        return RotationState(p, places)


class Partition(Operator):
    """Offers one of p partitions to each peer in every round, the next one in the next round.

    At constant p, receiver i is offered partition (i + j + t) mod p by sender j in round t; the paper's ``i mod p``
    would never deliver the others (methods, section 1).

    Args:
        layout: the model's cells.
        every: gradients in a round.
    """

    pool = "network"
    layout: Layout
    every: int = Field(default=1, ge=1)
    accumulated = In(Accumulated)
    offers = Out(Offer)
    rotation = Writes()

    def process(self, accumulated: Accumulated, rotation: RotationState) -> Emissions:
        """Offers of this round, if one is due."""
        if accumulated.number % self.every:
            return
        rotation.next_round()
        span = rotation.span * self.every
        for receiver in rotation.receivers:
            for start, stop in rotation.turn(receiver, self.layout.cells):
                yield self.offers(Offer(receiver, start, stop, span))

    def on_end(self, rotation: RotationState) -> Emissions:
        """After the last gradient, offer everybody all that is left."""
        for receiver in rotation.receivers:
            for start, stop in self.layout.frames(0, self.layout.cells):
                yield self.offers(Offer(receiver, start, stop, rotation.span * self.every))


class PartitionByOwner(Operator):
    """Offers every cell to the node that owns it: the push to sharded parameter servers.

    Args:
        sharding: the model's division over the owners.
        role: role of the owners.
        every: push after so many gradients (Downpour's n_push).
    """

    pool = "network"
    sharding: Sharding
    role: str = "server"
    every: int = Field(default=1, ge=1)
    accumulated = In(Accumulated)
    offers = Out(Offer)

    _due: tuple[Offer, ...] = PrivateAttr()

    def open(self, node: NodeContext) -> None:
        """Work out the offers, which are the same at every push."""
        members = node.members[self.role]
        owned = runs(self.sharding.owners(len(members)))
        self._due = tuple(Offer(members[rank], start, stop, span=0) for start, stop, rank in owned)

    def process(self, accumulated: Accumulated) -> Emissions:
        """Offers to every server, if a push is due."""
        if accumulated.number % self.every == 0:
            yield from map(self.offers, self._due)

    def on_end(self) -> Emissions:
        """Push what is left."""
        yield from map(self.offers, self._due)
