"""What links measure: how much peers have acknowledged, and for how long it, and anything at all, was on its way.

Peers hold acknowledgements back so that one answers for many frames, and say for how long they held the last. So a
message is taken to have been on its way for as long as the last one of its acknowledgement; but not to have arrived
earlier than `longest_delay_s` before that, or it would have been acknowledged sooner.

Invariant: what has been told never becomes less: of what is on its way, only that counts which is known not to have
arrived.
"""

from __future__ import annotations

import math
from collections import deque

from dataflow.clock import Clock
from dataflow.reports import LinkStatistics

_MANY_SPANS = 1000


class LinkMeters:
    """The measurements of all links that leave a node.

    Args:
        clock: the clock.
        longest_delay_s: seconds for which peers hold acknowledgements back at most.
    """

    def __init__(self, clock: Clock, longest_delay_s: float) -> None:
        self.clock, self.longest_delay_s = clock, longest_delay_s
        self._meters: dict[int, LinkMeter] = {}
        self._spans: list[tuple[float, float]] = []
        self._busy_s, self._counted_until_s = 0.0, -math.inf

    def of(self, peer: int) -> LinkMeter:
        """What measures the links to a peer, of which there is one at a time."""
        if peer not in self._meters:
            self._meters[peer] = LinkMeter(self)
        return self._meters[peer]

    def statistics(self) -> dict[int, LinkStatistics]:
        """What was measured until now, by peer."""
        return {peer: meter.statistics() for peer, meter in sorted(self._meters.items())}

    def busy_s(self) -> float:
        """Seconds until now in which anything was on its way to any peer."""
        now = self.clock.now()
        oldest_s = min((meter.oldest_s for meter in self._meters.values()), default=math.inf)
        self._count_until(min(now, oldest_s), now - self.longest_delay_s)
        return self._busy_s + max(0.0, now - self.longest_delay_s - oldest_s)

    def add(self, begin_s: float, end_s: float) -> None:
        """Something was on its way then."""
        self._spans.append((begin_s, end_s))
        if len(self._spans) >= _MANY_SPANS:
            self.busy_s()

    def _count_until(self, horizon_s: float, covered_s: float) -> None:
        """Add up what the spans cover until then, before which no further one will begin.

        One will last from there until `covered_s` at least, if that is later: what ends before says nothing more.
        """
        later = []
        for begin_s, end_s in sorted(self._spans):
            first_s, last_s = max(begin_s, self._counted_until_s), min(end_s, horizon_s)
            if last_s > first_s:
                self._busy_s += last_s - first_s
                self._counted_until_s = last_s
            if end_s > max(horizon_s, covered_s):
                later.append((max(begin_s, horizon_s), end_s))
        self._spans = later


class LinkMeter:
    """Measures the sending end of the links to one peer.

    Args:
        node: the measurements of all links of the node.
    """

    def __init__(self, node: LinkMeters) -> None:
        self._node, self._clock = node, node.clock
        self._handed: deque[tuple[int, float]] = deque()
        self._nbytes = self._messages = 0
        self._busy_s, self._busy_until_s = 0.0, -math.inf
        self._delay_s = 0.0

    @property
    def oldest_s(self) -> float:
        """When the oldest message that is not acknowledged was handed over; infinite if there is none."""
        return self._handed[0][1] if self._handed else math.inf

    def handed(self, last_frame: int) -> None:
        """Something was handed over whose last frame has this number."""
        self._handed.append((last_frame, self._clock.now()))

    def acknowledged(self, up_to_frame: int, nbytes: int, held_s: float) -> None:
        """The peer has acknowledged `nbytes` more bytes: all frames up to this number, which came in `held_s` ago.

        A peer that was too busy to acknowledge in time was as good as far away: that much has been told already.
        """
        self._nbytes += nbytes
        handed = self._handed
        done = []
        while handed and handed[0][0] <= up_to_frame:
            done.append(handed.popleft()[1])
        if not done:
            return
        now = self._clock.now()
        self._messages += len(done)
        earliest_s = now - self._node.longest_delay_s
        took_s = max(0.0, max(now - held_s, earliest_s) - done[-1])
        begin_s = end_s = done[0]
        for handed_s in done:
            arrived_s = max(handed_s + took_s, earliest_s)
            self._delay_s += arrived_s - handed_s
            if handed_s > end_s:
                self._was_busy(begin_s, end_s)
                begin_s = handed_s
            end_s = arrived_s
        self._was_busy(begin_s, end_s)

    def given_up(self) -> None:
        """Nothing that waits will be acknowledged."""
        if self._handed:
            self._was_busy(self._handed[0][1], self._clock.now())
            self._handed.clear()

    def statistics(self) -> LinkStatistics:
        """What was measured until now."""
        waiting_s = self._clock.now() - self._node.longest_delay_s - max(self.oldest_s, self._busy_until_s)
        return LinkStatistics(self._nbytes, self._messages, self._busy_s + max(0.0, waiting_s), self._delay_s)

    def _was_busy(self, begin_s: float, end_s: float) -> None:
        self._node.add(begin_s, end_s)
        self._busy_s += max(0.0, end_s - max(begin_s, self._busy_until_s))
        self._busy_until_s = max(end_s, self._busy_until_s)
