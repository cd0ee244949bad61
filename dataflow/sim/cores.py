"""The cores of a simulated node: when what it works on is done.

Tasks of its compute pool run beside each other. Besides computing, a node does one thing at a time, in the order in
which they come up: the tasks of its network pool, and the messages that it sends and receives. That comes first, as on
a cluster, where compute threads have a lower priority.

What has been done is worked out up to the moment at which somebody asks, and not ahead of it, since what comes up later
may hold up what is worked on. So the times that are told are the earliest: whoever has waited asks again.
"""

from __future__ import annotations

from typing import Final

ROUNDING_S: Final = 1e-12
"""Work that is left of sums of rounded numbers only: nobody waits for it."""


class Cores:
    """Those of a node with a machine of its own that never stands still: one for each compute task.

    What it does besides borrows from these: while all compute, each of them loses its share of the time that it takes.

    Args:
        tasks: compute tasks at most.
    """

    even = True
    """Whether times that are told of `beside` are when it is done, so that nobody need ask again."""

    def __init__(self, tasks: int) -> None:
        self._count = tasks
        self._seen_s = 0.0
        """Until when all below is worked out."""
        self._computing = 0
        self._computed_s = 0.0
        """What every task that computes has done, counted from a moment at which none did."""
        self._asked_s = self._beside_s = 0.0
        """Seconds of work besides computing that have come up, and of these what is done."""
        self._done_s = 0.0
        """When somebody was told last that something besides computing is done."""

    def compute(self, now: float, work_s: float) -> float:
        """A compute task begins that is so much work; the mark by which `computed_s` and `end` know it."""
        self.look(now)
        if not self._computing:
            self._computed_s = 0.0
        self._computing += 1
        return self._computed_s + work_s

    def computed_s(self, now: float, mark: float) -> float:
        """When a compute task is done, at the earliest; `now` if it is."""
        self.look(now)
        left_s, ahead_s = mark - self._computed_s, self._asked_s - self._beside_s
        if left_s <= ROUNDING_S:
            return now
        if ahead_s > 0.0 and self._computing == self._count:
            each = self._each()
            return now + (left_s / each if left_s <= ahead_s * each else left_s + ahead_s * (1.0 - each))
        return now + left_s

    def end(self, now: float, _mark: float) -> None:
        """A compute task has ended."""
        self.look(now)
        self._computing -= 1

    def beside(self, now: float, work_s: float) -> float:
        """Something else comes up that is so much work, behind all before; the mark by which `beside_s` knows it."""
        self.look(now)
        self._asked_s += work_s
        return self._asked_s

    def done_s(self, now: float, work_s: float) -> float:
        """When something else that comes up now is done, where that is sure: on cores that are `even`."""
        if not work_s and self._asked_s == self._beside_s:
            return max(now, self._done_s)
        # Rounded sums may be less than one that was told before, and all is done in order.
        self._done_s = max(self._done_s, now + (self.beside(now, work_s) - self._beside_s))
        return self._done_s

    def beside_s(self, now: float, mark: float) -> float:
        """When something besides computing is done, at the earliest; `now` if it is."""
        self.look(now)
        left_s = mark - self._beside_s
        return now if left_s <= ROUNDING_S else now + left_s

    def turn_s(self, now: float, asked_s: float) -> float:
        """Seconds for which the node was at something besides computing that came up at `asked_s` and is done now."""
        began_s, self._done_s = max(asked_s, self._done_s), now
        return now - began_s

    def awake_s(self, now: float) -> float:
        """The first moment from now on at which the node does not stand still, as far as it is known."""
        return now

    def look(self, now: float) -> None:
        """Work out what is done until now."""
        if now <= self._seen_s:
            return
        passed_s, ahead_s = now - self._seen_s, self._asked_s - self._beside_s
        self._seen_s = now
        if ahead_s > 0.0:
            beside_s = min(passed_s, ahead_s)
            self._beside_s = self._asked_s if beside_s == ahead_s else self._beside_s + beside_s
            if self._computing == self._count:
                passed_s -= beside_s * (1.0 - self._each())
        if self._computing:
            self._computed_s += passed_s

    def _each(self) -> float:
        """The pace of each compute task while all compute and something is done besides."""
        return (self._count - 1) / self._count
