"""Which neighbours of a node of a tree are to be told a sum, and the sums that are made before they can be sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from operators.contribution import FAR, Told
from operators.share import Sharing


class SumTurns:
    """The turns of one node's neighbours.

    With rounds and with periods a sum is made when it is due and waits as it is for its turn, or it would hold what
    comes later; otherwise it is made when it can be sent. A turn is a neighbour and the number of its sum; 0: what it
    is told is decided when it can be sent.

    Args:
        sharing: the node's.
        rounds: neighbours are told once in every bulk-synchronous round.
        periods: neighbours are told when somebody asks who is owed something.
    """

    def __init__(self, sharing: Sharing, *, rounds: bool, periods: bool) -> None:
        self._sharing, self._in_rounds, self._early = sharing, rounds, rounds or periods
        self._queued: dict[int, deque[Told]] = {}
        self._rounds: dict[int, int] = {}

    def meet(self, neighbour: int) -> None:
        """Begin with a neighbour that has been told nothing yet."""
        self._queued[neighbour], self._rounds[neighbour] = deque(), 0

    def due(self) -> Iterator[tuple[int, int]]:
        """The turns of neighbours who are to be told something, now that something has changed."""
        sharing = self._sharing
        for neighbour, side in sharing.sides.items():
            if self._early:
                final = sharing.is_final_for(neighbour) and not side.closed
                if final or (self._in_rounds and self._rounds[neighbour] < sharing.rounds(neighbour) < FAR):
                    self._rounds[neighbour] = sharing.rounds(neighbour)
                    yield self.queue(neighbour)
            elif sharing.may_tell(neighbour):
                yield neighbour, 0
            if side.noted:
                yield neighbour, 0

    def owed(self) -> Iterator[tuple[int, int]]:
        """Make the sums of all who are owed one, unless it would lack what lies behind a new neighbour; their turns."""
        sides = self._sharing.sides
        for neighbour, side in sides.items():
            if side.owed and not side.closed and all(each.heard for each in sides.values() if each is not side):
                yield self.queue(neighbour)

    def take(self, neighbour: int, number: int) -> Told | None:
        """What a neighbour whose turn it is is told now, which counts as sent; None if that is nothing any more."""
        if number:
            queued = self._queued.get(neighbour)
            return queued.popleft() if queued else None
        return self._sharing.note_for(neighbour) if self._early else self._sharing.tell(neighbour)

    def queue(self, neighbour: int) -> tuple[int, int]:
        """Make the sum of a neighbour, to wait for its turn; which turn that is."""
        told = self._sharing.sum_for(neighbour)
        self._queued[neighbour].append(told)
        return neighbour, told.number
