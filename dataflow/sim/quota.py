"""A node's share of a core, given in slices, as control groups give it."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Final

_ROUNDING_S: Final = 1e-12
"""Work that is left of sums of rounded numbers only: nobody stands still for it."""

_KEPT: Final = 16
"""Stops that are remembered at least, for those who ask what there was of a time."""


class Quota:
    """What a node may use of a core in each period; one that has used it up stands still until the next begins.

    So a node with 0.4 of a core is not one that is slower: it computes as fast as any, and rests for up to 0.6 of each
    period, while the others may go on. What it does not use of a period is lost.

    Args:
        share: of each period, above 0 and at most 1.
        period_s: seconds of a period.
        phase_s: when one begins.
    """

    __slots__ = ("_number", "_period_s", "_phase_s", "_share_s", "_stops", "_until_s", "_used_s")

    def __init__(self, share: float, period_s: float, phase_s: float) -> None:
        self._share_s, self._period_s, self._phase_s = share * period_s, period_s, phase_s
        self._number = 0  # of the period in which `_used_s` were used
        self._used_s = 0.0
        # What has been asked for so far keeps the core busy until then, but for these stops.
        self._until_s = 0.0
        self._stops: list[tuple[float, float]] = []

    def done(self, begin_s: float, work_s: float) -> float:
        """When `work_s` seconds of the core that begin at `begin_s` are done.

        What runs while other work does uses the core once: it is the simulator's part that one holds up the other.
        """
        now, left_s = self.awake(begin_s), work_s
        for place in range(self._behind(now), len(self._stops)):
            stop_s, end_s = self._stops[place]
            if now + left_s <= stop_s:
                return now + left_s
            left_s -= stop_s - now
            now = end_s
        if now + left_s <= self._until_s:
            return now + left_s
        if now < self._until_s:
            left_s -= self._until_s - now
            now = self._until_s
        self._until_s = self._use(now, left_s)
        return self._until_s

    def awake(self, at_s: float) -> float:
        """The first moment from `at_s` on at which the node does not stand still."""
        behind = self._behind(at_s)
        return max(at_s, self._stops[behind - 1][1]) if behind else at_s

    def stood_s(self, begin_s: float, end_s: float) -> float:
        """Seconds for which the node stands still between two moments that are not long past."""
        stood_s = 0.0
        for place in range(max(0, self._behind(begin_s) - 1), len(self._stops)):
            stop_s, until_s = self._stops[place]
            if stop_s >= end_s:
                break
            stood_s += max(0.0, min(end_s, until_s) - max(begin_s, stop_s))
        return stood_s

    def _behind(self, at_s: float) -> int:
        """The place of the first stop that begins later."""
        return bisect_right(self._stops, (at_s, math.inf))

    def _use(self, now: float, left_s: float) -> float:
        """When so much of the core is used that nobody has asked for; notes where the node stands still."""
        past = min(self._behind(now - self._period_s), len(self._stops) - _KEPT)
        if past > _KEPT:
            del self._stops[:past]
        while True:
            number = math.floor((now - self._phase_s) / self._period_s)
            if number > self._number:
                self._number, self._used_s = number, 0.0
            end_s = self._phase_s + (self._number + 1) * self._period_s
            run_s = min(left_s, self._share_s - self._used_s, end_s - now)
            self._used_s += run_s
            left_s -= run_s
            now += run_s
            if left_s <= _ROUNDING_S:
                return now
            if now < end_s:
                self._stops.append((now, end_s))
            now, self._number, self._used_s = end_s, self._number + 1, 0.0
