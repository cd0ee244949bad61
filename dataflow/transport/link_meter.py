"""What links measure: how much peers have acknowledged, how long that took, and for how long anything waited.

Invariant: a link is busy from the moment at which something waits for its acknowledgement until nothing does.
"""

from __future__ import annotations

from collections import deque

from dataflow.clock import Clock
from dataflow.reports import LinkStatistics


class Stopwatch:
    """Seconds in which at least one of those who may start it had started it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._holders, self._since_s, self._until_s, self._total_s = 0, 0.0, 0.0, 0.0

    def start(self, now: float) -> None:
        """One more has started it."""
        if not self._holders:
            self._since_s = self._until_s = now
        self._holders += 1

    def stop(self, at_s: float) -> None:
        """One who had started it has stopped it, perhaps a moment ago."""
        self._holders -= 1
        self._until_s = max(self._until_s, at_s)
        if not self._holders:
            self._total_s += self._until_s - self._since_s

    def total_s(self) -> float:
        """Seconds until now."""
        return self._total_s + (self._clock.now() - self._since_s if self._holders else 0.0)


class LinkMeter:
    """Measures the sending end of all links to one peer, of which there is one at a time.

    Args:
        clock: the clock.
        node_busy: runs while any of the node's links is busy.
    """

    def __init__(self, clock: Clock, node_busy: Stopwatch) -> None:
        self._clock, self._node_busy, self._busy = clock, node_busy, Stopwatch(clock)
        self._is_busy = False
        self._handed: deque[tuple[int, float]] = deque()
        self._nbytes = self._messages = 0
        self._delay_s = 0.0

    def handed(self, last_frame: int) -> None:
        """Something was handed over whose last frame has this number."""
        now = self._clock.now()
        self._handed.append((last_frame, now))
        if not self._is_busy:
            self._is_busy = True
            self._busy.start(now)
            self._node_busy.start(now)

    def acknowledged(self, up_to_frame: int, nbytes: int, held_s: float = 0.0) -> None:
        """The peer has acknowledged `nbytes` more bytes, up to this frame, `held_s` after it had the last."""
        arrived_s, handed = self._clock.now() - held_s, self._handed
        handed_s = arrived_s
        self._nbytes += nbytes
        while handed and handed[0][0] <= up_to_frame:
            handed_s = handed.popleft()[1]
            self._delay_s += max(0.0, arrived_s - handed_s)
            self._messages += 1
        if not handed:
            self._rest(max(arrived_s, handed_s))

    def given_up(self) -> None:
        """Nothing that waits will be acknowledged."""
        self._handed.clear()
        self._rest(self._clock.now())

    def statistics(self) -> LinkStatistics:
        """What was measured until now."""
        return LinkStatistics(self._nbytes, self._messages, self._busy.total_s(), self._delay_s)

    def _rest(self, now: float) -> None:
        if self._is_busy:
            self._is_busy = False
            self._busy.stop(now)
            self._node_busy.stop(now)
