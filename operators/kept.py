"""What a node that sends every gradient whole keeps for those that join: the fragments that they have not been sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dataflow.node_context import NodeContext
from dataflow.state import State, StateElement, StateKind
from operators.messages import Fragment, Vector

CAP_NBYTES = 256 << 20
"""What is kept for those that have not begun, at most, unless that is few gradients."""


class KeptState(State):
    """Live receivers of one node, and what is kept for those that have not begun: nothing where there is none.

    `newest` is the number of the newest gradient sent. `owed` is what codes have left out of the gradients up to there,
    (weights,) float32, as it stands; None without a codec. `span` is no gradients, as each is sent at once.
    """

    def __init__(self, receivers: Sequence[int], cap_nbytes: int = CAP_NBYTES) -> None:
        """Nothing was sent yet.

        Args:
            receivers: nodes that are sent to.
            cap_nbytes: what is kept at most; beyond it nothing is, and who it was for has come too late.
        """
        self.newest = self.span = 0
        self.owed: Vector | None = None
        self._receivers = dict.fromkeys(receivers)
        self._held: dict[int, tuple[int, int]] = {}
        self._late: dict[int, int] = {}
        self._claimed: set[int] = set()
        self._cap_nbytes, self._nbytes = cap_nbytes, 0
        self._fragments: list[Fragment] = []

    @property
    def closed(self) -> int:
        """Number of the newest gradient that receivers may have: as `newest`."""
        return self.newest

    @property
    def receivers(self) -> tuple[int, ...]:
        """Nodes that are sent what comes."""
        return tuple(self._receivers)

    def keep(self, number: int, fragments: Sequence[Fragment]) -> None:
        """Note that gradient `number` is sent, and keep its fragments for those that have not begun."""
        self.newest = number
        if not self._held:
            return
        self._fragments += fragments
        self._nbytes += sum(fragment.values.nbytes for fragment in fragments)
        if self._nbytes > self._cap_nbytes:
            late = {receiver: turn for receiver, (turn, _) in self._held.items() if receiver not in self._claimed}
            self._late |= late
            for receiver in late:
                del self._held[receiver]
            self._free()

    def claim(self, receiver: int, turn: int) -> bool:
        """Whether a new receiver may begin, for which all is kept from now on until it does; False if it is too late.

        Args:
            receiver: number of the node.
            turn: what it names.
        """
        if self._held.get(receiver, (None, 0))[0] == turn:
            self._claimed.add(receiver)
        return self._late.get(receiver) != turn

    def leave(self, receiver: int) -> None:
        """Send nothing to `receiver` any more."""
        self._receivers.pop(receiver, None)
        self._held.pop(receiver, None)
        self._late.pop(receiver, None)
        self._claimed.discard(receiver)
        self._free()

    def join(self, receiver: int, turn: int) -> int:
        """Keep for a new receiver what comes from now on: behind the number that is returned; see `WindowState`."""
        self._held[receiver] = (turn, self.newest)
        return self.newest

    def begin(self, receiver: int, turn: int, applied: npt.NDArray[np.int64]) -> list[Fragment]:
        """What a new receiver has missed behind the number that each cell of its replica holds; it is sent to now."""
        if self._held.get(receiver, (None, 0))[0] != turn:
            return []
        del self._held[receiver]
        self._claimed.discard(receiver)
        missed = [fragment for fragment in self._fragments if fragment.low >= applied[fragment.start]]
        self._receivers[receiver] = None
        self._free()
        return missed

    def start(self, number: int) -> None:
        """Begin behind gradient `number`."""
        self.newest = number

    def tensors(self) -> dict[str, np.ndarray]:
        """``newest``; what is kept is not part of a checkpoint."""
        return {"newest": np.array([self.newest], np.int64)}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over the number."""
        self.newest = int(tensors["newest"][0])
        self._fragments.clear()
        self._nbytes = 0

    def resume(self, tensors: Mapping[str, np.ndarray], node: int, steps: Mapping[int, int]) -> None:
        """Go on after the last gradient that the node had made."""
        super().resume(tensors, node, steps)
        self.newest = steps.get(node, self.newest)

    def _free(self) -> None:
        least = min((number for _, number in self._held.values()), default=self.newest)
        self._fragments = [fragment for fragment in self._fragments if fragment.high > least]
        self._nbytes = sum(fragment.values.nbytes for fragment in self._fragments)


class Kept(StateElement):
    """What is kept for the members of role `receivers`.

    Args:
        receivers: role whose nodes are sent to.
        own: whether this node is one of them.
        cap_nbytes: see `KeptState`.
    """

    kind: ClassVar[StateKind] = StateKind.LOCAL
    receivers: str
    own: bool = False
    cap_nbytes: int = CAP_NBYTES

    def create(self, node: NodeContext) -> KeptState:
        """Nothing is kept."""
        receivers = [member for member in node.members[self.receivers] if self.own or member != node.index]
        return KeptState(receivers, self.cap_nbytes)
