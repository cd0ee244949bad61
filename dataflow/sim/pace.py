"""When a simulated node pauses and slows: its faults, as spans of time in each of which it is equally slow."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from dataflow.sim.faults import Fault, NodePauses, NodeSlows


class Pace:
    """How slow a node is at which time.

    Args:
        faults: those of the node are picked out.
        node: its number.
    """

    __slots__ = ("_begins", "_slowness", "even")

    def __init__(self, faults: Iterable[Fault], node: int) -> None:
        mine = [fault for fault in faults if isinstance(fault, NodePauses | NodeSlows) and fault.node == node]
        self._begins = sorted({0.0, *(fault.at_s for fault in mine), *(fault.at_s + fault.for_s for fault in mine)})
        self._slowness = [_slowness(mine, begin) for begin in self._begins]
        self.even = not mine
        """Whether it is always the same."""

    def at(self, time_s: float) -> tuple[float, float]:
        """How many times as long work takes at a time, infinite in a pause, and when that may change."""
        behind = bisect_right(self._begins, time_s)
        changes_s = self._begins[behind] if behind < len(self._begins) else float("inf")
        return self._slowness[behind - 1], changes_s


def _slowness(faults: Sequence[NodePauses | NodeSlows], at_s: float) -> float:
    """How many times as long work takes at a moment; infinite while the node pauses."""
    factor = 1.0
    for fault in faults:
        if fault.at_s <= at_s < fault.at_s + fault.for_s:
            factor *= fault.factor if isinstance(fault, NodeSlows) else float("inf")
    return factor
