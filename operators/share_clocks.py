"""Clocks of workers in a tree: how far what is known of others lets each go on (parameter_sharing_tree.txt, 3.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from dataflow.node_context import NodeContext
from dataflow.state import StateElement, StateKind
from operators.clocks import ClocksState
from operators.contribution import FAR
from operators.share import Sharing

Consistency = Literal["bsp", "ssp", "assp", "eventual"]


class ShareClocksState(ClocksState):
    """Clocks of one node of a tree: how far others let it go on (3.5).

    `bound` is the number of gradients that it must not be `slack` beyond; `oldest` that of the slowest other node's
    that are in its belief, `foreign` how many of all others' are.
    """

    def __init__(self) -> None:
        """Nothing is made, and nobody is waited for."""
        super().__init__(1, {})
        self.bound = FAR
        self.oldest = self.foreign = 0
        self._begun, self._others = 0, 0

    def follow(self, sharing: Sharing, consistency: Consistency, rounds: int) -> None:
        """Bring the clocks up to date with what is known.

        With ``ssp`` U[q] counts updates in x of q, and with ``assp`` those in its belief: U[p] - min U[q], of which
        U[p] grows by one with each gradient made here, becomes a bound for that number.

        Args:
            sharing: of the node.
            consistency: what the node waits for.
            rounds: bulk-synchronous rounds whose updates are all in the replica.
        """
        places = list(sharing.others)
        self._others = len(places)
        self.oldest = max(self._begun, int((sharing.counts + sharing.ahead)[places].min(initial=FAR)))
        self.foreign = int(sharing.counts.sum() - sharing.counts[sharing.node])
        if consistency == "bsp":
            self.bound = rounds
        elif consistency == "ssp":
            self.bound = int(sharing.known[0, places].min(initial=FAR))
        elif consistency == "assp":
            self.bound = int(sharing.known[1, places].min(initial=FAR)) - self.foreign

    def slowest(self) -> float:
        """The number of gradients that this node must not be far beyond."""
        return self.bound

    def lag(self) -> int:
        """Gradients made here beyond those of the slowest other node that are in the belief."""
        return max(0, self.made - self.oldest)

    def seen(self) -> dict[int, int]:
        """Gradients of all others in the belief, as of one node."""
        return {0: self.foreign}

    def average(self) -> int:
        """How many gradients of each node are in the belief on average."""
        return (self.made + self.foreign) // (1 + self._others)

    def resume(self, tensors: Mapping[str, np.ndarray], node: int, steps: Mapping[int, int]) -> None:
        """Go on behind the last gradient; until the neighbours have spoken, as if all others were as far."""
        super().resume(tensors, node, steps)
        self.bound = max(self.bound, self.made)
        self.oldest = self._begun = self.made

    def snapshot(self) -> ShareClocksState:
        """A copy."""
        copy = ShareClocksState()
        copy.made, copy.images, copy.bound, copy.oldest = self.made, self.images, self.bound, self.oldest
        copy.foreign, copy.pace, copy._begun, copy._others = self.foreign, self.pace, self._begun, self._others
        return copy


class ShareClocks(StateElement):
    """Clocks of the workers of a tree.

    Args:
        waits: whether the node waits for others at all.
    """

    kind: ClassVar[StateKind] = StateKind.LOCAL
    waits: bool = False

    def create(self, _node: NodeContext) -> ShareClocksState:
        """Nothing is made."""
        clocks = ShareClocksState()
        clocks.bound = 0 if self.waits else FAR
        return clocks
