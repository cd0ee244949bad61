"""For how long the links of a node were busy: by the kernel's count where there is one, else by acknowledgements.

Acknowledgements of messages come late from a peer that gets no processor, as if its link were slow; see
`dataflow.transport.sockets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dataflow.clock import Clock
from dataflow.reports import LinkStatistics


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
            counted_s: what the kernel has counted, of some peers. Nothing tells how these seconds overlap: links are
                taken to be busy independently of each other, which is all of the time if one always is.
        """
        now_s = self._clock.now()
        seconds, self._now_s = now_s - self._now_s, now_s
        newly_any_s, self._waited_for_any_s = waited_s - self._waited_for_any_s, waited_s
        free = 1.0
        for peer, link in measured.items():
            newly_s, self._waited_s[peer] = link.busy_s - self._waited_s.get(peer, 0.0), link.busy_s
            if peer in counted_s:
                newly_s = counted_s[peer] - self._counted_s.get(peer, 0.0)
                self._counted_s[peer] = counted_s[peer]
            free *= max(0.0, 1.0 - newly_s / seconds) if seconds > 0.0 else 1.0
            self._links_s[peer] = self._links_s.get(peer, 0.0) + newly_s
        self._any_s += seconds * (1.0 - free) if counted_s else newly_any_s
        return {peer: replace(link, busy_s=self._links_s[peer]) for peer, link in measured.items()}, self._any_s
