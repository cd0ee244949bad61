"""Whose turn it is: the chains of a node that may have something to do, in the order in which they are asked."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from operator import attrgetter

from dataflow.engine.chain_state import ChainState


class Turns:
    """Chains take turns; whoever has had one goes behind all others, asleep or awake.

    Invariant: a chain that is not idle is awake, so that only those that are awake need to be asked.

    Attributes:
        chains: all that have not ended.
    """

    def __init__(self, chains: Iterable[ChainState]) -> None:
        """Everybody is awake.

        Args:
            chains: those that begin first.
        """
        self.chains = list(chains)
        self._awake = self.chains.copy()
        self._last = len(self._awake)
        for turn, state in enumerate(self._awake):
            state.turn, state.awake = turn, True

    def in_turn(self) -> list[ChainState]:
        """The chains that are awake, first things first."""
        return self._awake.copy()

    def wake(self, state: ChainState) -> None:
        """Have a chain asked again, in its old place, unless it is idle."""
        if not state.awake and not state.idle():
            state.awake = True
            insort(self._awake, state, key=_turn)

    def served(self, state: ChainState) -> None:
        """Put a chain behind all others; to sleep, if it is idle now."""
        self._awake.remove(state)
        self._last += 1
        state.turn = self._last
        state.awake = not state.idle()
        if state.awake:
            self._awake.append(state)

    def sleep(self, state: ChainState) -> None:
        """Do not ask a chain until it is woken."""
        state.awake = False
        self._awake.remove(state)

    def end(self, state: ChainState) -> None:
        """Never ask a chain again, nor have others reckon with what it writes."""
        self.chains.remove(state)
        if state.awake:
            self.sleep(state)
        for other in self.chains:
            other.look_around(self.chains)


_turn = attrgetter("turn")
