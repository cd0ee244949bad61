"""For how long the links of a node were busy: by the kernel's count where there is one, else by acknowledgements.

Acknowledgements of messages come late from a peer that gets no processor, as if its link were slow; see
`dataflow.transport.sockets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from heapq import nlargest
from math import prod

from dataflow.clock import Clock
from dataflow.reports import LinkStatistics

OVERLAPPING = 3
"""Of so many links, the busiest, the times are taken to overlap by chance, and those of others not to add to that.

A node sends to all its peers at the same moments, so with more of them many links that are hardly busy would look like
one that always is. Of one alone, full links are overlooked: four nodes whose links of 20 Mbit/s are full have each busy
for 56 to 82% of the time (docs/decisions/0020).
"""


class BusyLinks:
    """Adds up the seconds in which each link of a node, and any of them, was busy.

    Args:
        clock: the clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._now_s = clock, clock.now()
        self._waited_s: dict[int, float] = {}
        self._waited_for_any_s = 0.0
        self._counted_s: dict[int, float] = {}
        self._links_s: dict[int, float] = {}
        self._any_s = 0.0

    def add(
        self, measured: Mapping[int, LinkStatistics], waited_s: float, counted_s: Mapping[int, float]
    ) -> tuple[dict[int, LinkStatistics], float]:
        """What was measured, with the seconds in which each link was busy, and those in which any was.

        Args:
            measured: by peer; its busy seconds are those in which something waited for acknowledgements.
            waited_s: seconds in which something waited for those of any peer.
            counted_s: what the kernel has counted of the connections to some peers; a new one begins with nothing.
                Nothing tells how these seconds overlap: see `OVERLAPPING`.
        """
        now_s = self._clock.now()
        seconds, self._now_s = now_s - self._now_s, now_s
        newly_any_s, self._waited_for_any_s = waited_s - self._waited_for_any_s, waited_s
        shares = []
        for peer, link in measured.items():
            newly_s, self._waited_s[peer] = link.busy_s - self._waited_s.get(peer, 0.0), link.busy_s
            if peer in counted_s:
                before_s, self._counted_s[peer] = self._counted_s.get(peer, 0.0), counted_s[peer]
                newly_s = counted_s[peer] - before_s if counted_s[peer] >= before_s else counted_s[peer]
                newly_s = min(newly_s, seconds)  # the older of two connections has ended
            shares.append(min(1.0, newly_s / seconds) if seconds > 0.0 else 0.0)
            self._links_s[peer] = self._links_s.get(peer, 0.0) + newly_s
        free = prod(1.0 - share for share in nlargest(OVERLAPPING, shares))
        self._any_s += seconds * (1.0 - free) if counted_s else newly_any_s
        return {peer: replace(link, busy_s=self._links_s[peer]) for peer, link in measured.items()}, self._any_s
