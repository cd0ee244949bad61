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
from dataflow.operators_api import Emissions, Operator, Sample
from dataflow.ports import In, Out
from dataflow.reports import Rates
from dataflow.state import State, StateElement, StateKind, Writes
from operators.cost_model import Choice, CostModel
from operators.known import Known
from operators.layout import Layout, Sharding, runs
from operators.messages import Accumulated, Offer
from operators.window import WindowState

_GRID = 1 << 40
"""Largest denominator of a place after a change: far finer than cells, and small enough for 64 bits in a checkpoint."""


class RotationState(State):
    """When a round is due, and where in the model each receiver's next partition begins, as a fraction of the cells."""

    def __init__(self, choice: Choice, receivers: Mapping[int, Fraction], cost: CostModel) -> None:
        """Start the rotation.

        Args:
            choice: p, and gradients in a round.
            receivers: nodes with the place of their first partition.
            cost: chooses both while the job runs.
        """
        self.choice, self.cost, self.known = choice, cost, Known()
        self._first, self._place = dict(receivers), dict(receivers)
        self._next, self._rounds = choice.every, 0
        self._longest, self._coarsest, self._uneven = choice.span, choice.every, False

    @property
    def receivers(self) -> tuple[int, ...]:
        """Nodes that are sent to."""
        return tuple(self._place)

    @property
    def span(self) -> int:
        """Gradients at most until every cell has had its turn again.

        Between two turns of a cell lie a round and others that make less than one turn of the model together. Rounds of
        r gradients with p partitions take p r for the whole, so with several (p, r) it is less than the largest p r,
        and the first round; with one r that round is within the largest p r.
        """
        return self._longest + (self._coarsest if self._uneven else 0)

    def adapt(self, rates: Rates) -> None:
        """Take in a measurement, and use what the cost model chooses then."""
        self.known, choice = self.cost.decide(self.known, self.choice, rates, len(self._place))
        self.change(*choice)

    def change(self, partitions: int, every: int) -> None:
        """Divide the model by another number of partitions from the next round on; nobody's place is lost.

        The next round is due when it was: nodes wait for it with the span that they have been told. Another `every`
        counts from there. A place whose denominator has grown beyond `_GRID` moves back to a multiple of 1/`_GRID`.
        """
        choice = Choice(partitions, every)
        if choice == self.choice:
            return
        self._longest, self._coarsest = max(self._longest, choice.span), max(self._coarsest, every)
        self._uneven |= every != self.choice.every
        self.choice, self._rounds = choice, 0
        for node, place in self._place.items():
            if place.denominator > _GRID:
                self._place[node] = Fraction(math.floor(place * _GRID), _GRID)
                self._uneven = True  # what lies between is due once more

    def begin(self, number: int) -> bool:
        """Whether a round begins with gradient `number`; after a full turn, what was chosen before counts no more."""
        if number < self._next:
            return False
        self._next = number + self.choice.every
        self._rounds += 1
        if self._rounds > self.choice.partitions:
            self._longest, self._coarsest, self._uneven = self.choice.span, self.choice.every, False
        return True

    def turn(self, receiver: int, cells: int) -> Iterator[tuple[int, int]]:
        """The run of cells that `receiver` is due, in two parts where it wraps around, and move its place on.

        With more partitions than cells a turn may be empty, but not in the first round after a change: a receiver
        that does not hear of a longer span would wait for cells that are not due.
        """
        pieces = 1 if self.cost.in_turn else cells
        start, stop, self._place[receiver] = _turn(self._place[receiver], self.choice.partitions, pieces)
        if self._rounds == 1:
            stop = max(stop, start + 1)
        if start < min(stop, pieces):
            yield start, min(stop, pieces) * (cells // pieces)
        if stop > pieces:
            yield 0, (stop - pieces) * (cells // pieces)

    def leave(self, receiver: int) -> None:
        """Send nothing to `receiver` any more."""
        self._place.pop(receiver, None)

    def join(self, receiver: int) -> None:
        """Send to a receiver that is new, from where it would have begun at the start."""
        self._place[receiver] = self._first[receiver]

    def snapshot(self) -> dict[int, Fraction]:
        """A copy of every receiver's place."""
        return dict(self._place)

    def tensors(self) -> dict[str, np.ndarray]:
        """``rounds``: p, r, next round's gradient, what spans come of; ``place``: receiver, numerator, denominator.

        What has been measured is not among them: it is measured anew.
        """
        spans = (self._longest, self._coarsest, self._uneven)
        rows = [(node, place.numerator, place.denominator) for node, place in self._place.items()]
        return {
            "rounds": np.array([*self.choice, self._next, *spans], np.int64),
            "place": np.array(rows, np.int64).reshape(-1, 3),
        }

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over rounds and places."""
        p, every, self._next, self._longest, self._coarsest, uneven = (int(value) for value in tensors["rounds"])
        self.choice, self._uneven, self._rounds = Choice(p, every), bool(uneven), 0
        self._place = {int(node): Fraction(int(above), int(below)) for node, above, below in tensors["place"]}

    def resume(self, tensors: Mapping[str, np.ndarray], node: int, steps: Mapping[int, int]) -> None:
        """Go on with all receivers: whoever had left is there again, unless this node is told otherwise.

        They wait for the first round no longer than at the start, as they know of no span that was told before.
        """
        super().resume(tensors, node, steps)
        self._next = min(self._next, steps.get(node, 0) + self.cost.first(0).span)
        self._place = {receiver: self._place.get(receiver, first) for receiver, first in self._first.items()}


@lru_cache(maxsize=1024)
def _turn(begin: Fraction, partitions: int, cells: int) -> tuple[int, int, Fraction]:
    """First and last cell of a turn, and the place behind it; many receivers take the same turns round after round."""
    end = begin + Fraction(1, partitions)
    return math.floor(begin * cells), math.floor(end * cells), end % 1


class Rotation(StateElement):
    """Places of the members of role `receivers`: receiver of rank i begins with partition (i + j) mod p at rank j.

    Of a p that is chosen, and may become less, no more than n, the number of members, count for this.

    Where receivers take turns (`CostModel.in_turn`), a place is where in p rounds the receiver is due, not which cells.

    Args:
        receivers: role whose other nodes are sent to.
        cost: chooses p, and the gradients in a round.
    """

    kind: ClassVar[StateKind] = StateKind.LOCAL
    receivers: str
    cost: CostModel

    def create(self, node: NodeContext) -> RotationState:
        """The places before the first round."""
        members = node.members[self.receivers]
        choice, own = self.cost.first(len(members) - 1), node.rank
        p = choice.partitions if self.cost.partitions else min(choice.partitions, len(members))
        others = {rank: member for rank, member in enumerate(members) if member != node.index}
        # In turn: the next node in the ring of all comes last, so each is sent to by one other in a round.
        first = {rank: (rank - own - 1) % len(members) if self.cost.in_turn else rank + own for rank in others}
        places = {member: Fraction(first[rank] % p, p) for rank, member in others.items()}
        return RotationState(choice, places, self.cost)


class Partition(Operator):
    """Offers one of p partitions to each peer in every round, the next one in the next round.

    At constant p, receiver i is offered partition (i + j + t) mod p by sender j in round t; the paper's ``i mod p``
    would never deliver the others (methods, section 1).

    Args:
        layout: the model's cells.
    """

    pool = "network"
    layout: Layout
    accumulated = In(Accumulated)
    offers = Out(Offer)
    rotation = Writes()
    window = Writes()

    def process(self, accumulated: Accumulated, rotation: RotationState, window: WindowState) -> Emissions:
        """Offers of this round, if one is due."""
        if not rotation.begin(accumulated.number):
            return
        window.span = rotation.span
        window.close()
        for receiver in rotation.receivers:
            for start, stop in rotation.turn(receiver, self.layout.cells):
                yield self.offers(Offer(receiver, start, stop))

    def on_end(self, rotation: RotationState, window: WindowState) -> Emissions:
        """After the last gradient, offer everybody all that is left."""
        window.span = rotation.span
        window.close()
        for receiver in rotation.receivers:
            for start, stop in self.layout.frames(0, self.layout.cells):
                yield self.offers(Offer(receiver, start, stop))

    def on_left(self, receiver: int, rotation: RotationState) -> Emissions:
        """Offer nothing to a node that has died."""
        rotation.leave(receiver)
        yield from ()

    def on_joined(self, receiver: int, rotation: RotationState) -> Emissions:
        """Offer partitions to a node that has joined; the window keeps them until it has a model."""
        rotation.join(receiver)
        yield from ()


class LivePartition(Partition):
    """Has the number of partitions, and of gradients in a round, chosen from what the node measures.

    Its samples are the choice and, from it and the node's own pace, the bytes that it sends in a second; while there is
    nobody to send to, there are none.
    """

    def on_rates(self, rates: Rates, rotation: RotationState) -> Emissions:
        """Take in a measurement; what is chosen by it holds from the next round on."""
        rotation.adapt(rates)
        choice, peers = rotation.choice, len(rotation.receivers)
        if not peers:
            return
        yield Sample("p", choice.partitions)
        yield Sample("every", choice.every)
        yield Sample("predicted_nbytes_s", rotation.cost.nbytes_s(rotation.known, choice, peers))


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
    window = Writes()

    _due: tuple[Offer, ...] = PrivateAttr()

    def open(self, node: NodeContext) -> None:
        """Work out the offers, which are the same at every push."""
        members = node.members[self.role]
        owned = runs(self.sharding.owners(len(members)))
        self._due = tuple(Offer(members[rank], start, stop) for start, stop, rank in owned)

    def process(self, accumulated: Accumulated, window: WindowState) -> Emissions:
        """Offers to every server, if a push is due."""
        if accumulated.number % self.every == 0:
            window.close()
            yield from map(self.offers, self._due)

    def on_end(self, window: WindowState) -> Emissions:
        """Push what is left."""
        window.close()
        yield from map(self.offers, self._due)
