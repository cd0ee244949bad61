"""The modelled network: nodes on one switch, each with a link up and a link down.

A link serves the flows that use it in turn, 64 KiB at a time. What leaves the sender's link reaches the receiver's
after the latency, its head while its tail is still on its way: a message alone takes the latency plus its size over the
slower link's rate. A flow has a limited number of quanta under way between the two links, as a TCP connection has its
window: a receiver with many senders slows its own flows down, and not others that share their senders.

All streams from one node to another are one flow, first in, first out, as they share one connection.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from dataflow.sim.clock import VirtualClock

QUANTUM: Final = 64 << 10
"""Bytes that a link serves of a flow before it turns to the next."""

_LEAST_WINDOW: Final = 4
_MORE: Final = object()
"""Stands for the item of a quantum that is not the last of its message."""


class SimNetwork:
    """Carries items from node to node in virtual time.

    Args:
        clock: the virtual clock.
        rates: bytes per second of each node's links, up and down alike.
        latency_s: seconds from one link to the next.
        deliver: called with (source, target, item) when the last byte of an item has arrived.
    """

    def __init__(
        self,
        clock: VirtualClock,
        rates: Sequence[float],
        latency_s: float,
        deliver: Callable[[int, int, Any], None],
    ) -> None:
        self._clock, self._latency_s, self._deliver = clock, latency_s, deliver
        self._up, self._down = [_Link(rate) for rate in rates], [_Link(rate) for rate in rates]
        self._flows: dict[tuple[int, int], _Flow] = {}
        self._gone: set[int] = set()

    def send(self, source: int, target: int, item: Any, nbytes: int) -> None:
        """Have an item of `nbytes` bytes delivered, behind all that was sent from `source` to `target` before."""
        flow = self._flow(source, target)
        flow.queue.append((nbytes, item))
        self._offer(flow)

    def signal(self, source: int, target: int, item: Any) -> None:
        """Have an item delivered that is too small to take time on a link, such as a grant of credit."""
        flow = self._flow(source, target)
        if flow.cuts:
            flow.signals.append(item)
        else:
            self._clock.at(self._clock.now() + self._latency_s, self._signalled, (flow, item))

    def cut(self, one: int, other: int) -> None:
        """Let nothing more pass between two nodes, except what is between their links already."""
        for flow in (self._flow(one, other), self._flow(other, one)):
            flow.cuts += 1

    def mend(self, one: int, other: int) -> None:
        """Take back one `cut`: once all are taken back, what waited goes on."""
        for flow in (self._flow(one, other), self._flow(other, one)):
            flow.cuts -= 1
            if not flow.cuts:
                signals, flow.signals = flow.signals, []
                for item in signals:
                    self.signal(flow.source, flow.target, item)
                self._offer(flow)

    def drop(self, node: int) -> None:
        """Deliver nothing more from or to a node."""
        self._gone.add(node)
        for (source, target), flow in self._flows.items():
            if node in (source, target):
                flow.queue.clear()

    def queued_nbytes(self, source: int, target: int) -> int:
        """Bytes that wait at `source` to leave for `target`."""
        return sum(nbytes for nbytes, _ in self._flow(source, target).queue)

    def _flow(self, source: int, target: int) -> _Flow:
        flow = self._flows.get((source, target))
        if flow is None:
            flow = _Flow(source, target, self._up[source], self._down[target], self._latency_s)
            self._flows[source, target] = flow
        return flow

    def _offer(self, flow: _Flow) -> None:
        """Put a flow among those that its sender's link serves, if it has something that may leave."""
        if flow.queue and not flow.in_turn_up and not flow.cuts and flow.under_way < flow.window:
            flow.in_turn_up = True
            flow.up.turns.append(flow)
            if not flow.up.busy:
                self._serve_up(flow.up)

    def _serve_up(self, link: _Link) -> None:
        link.busy = False
        while link.turns and not link.busy:
            flow = link.turns.popleft()
            if flow.cuts or not flow.queue:
                flow.in_turn_up = False
                continue
            link.busy = True
            nbytes, item = flow.queue[0]
            if nbytes > QUANTUM:
                flow.queue[0] = (nbytes - QUANTUM, item)
                nbytes, item = QUANTUM, _MORE
            else:
                flow.queue.popleft()
            flow.under_way += 1
            now, up_s, down_s = self._clock.now(), nbytes * link.byte_s, nbytes * flow.down.byte_s
            self._clock.at(now + up_s, self._sent, flow)
            # A faster receiver's link is taken up only for as long as it needs, with the tail.
            head_s = now + self._latency_s + max(0.0, up_s - down_s)
            self._clock.at(head_s, self._came, (flow, down_s, item))

    def _sent(self, flow: _Flow) -> None:
        flow.in_turn_up = False
        if flow.queue and not flow.cuts and flow.under_way < flow.window:
            flow.in_turn_up = True
            flow.up.turns.append(flow)
        self._serve_up(flow.up)

    def _came(self, arrival: tuple[_Flow, float, Any]) -> None:
        flow, down_s, item = arrival
        flow.arriving.append((down_s, item))
        if not flow.in_turn_down:
            flow.in_turn_down = True
            flow.down.turns.append(flow)
            if not flow.down.busy:
                self._serve_down(flow.down)

    def _serve_down(self, link: _Link) -> None:
        link.busy = bool(link.turns)
        if link.busy:
            flow = link.turns.popleft()
            down_s, item = flow.arriving.popleft()
            self._clock.at(self._clock.now() + down_s, self._received, (flow, item))

    def _received(self, arrival: tuple[_Flow, Any]) -> None:
        flow, item = arrival
        flow.under_way -= 1
        if flow.arriving:
            flow.down.turns.append(flow)
        else:
            flow.in_turn_down = False
        self._offer(flow)
        self._serve_down(flow.down)
        if item is not _MORE:
            self._hand_over(flow, item)

    def _signalled(self, arrival: tuple[_Flow, Any]) -> None:
        self._hand_over(*arrival)

    def _hand_over(self, flow: _Flow, item: Any) -> None:
        if not self._gone or (flow.source not in self._gone and flow.target not in self._gone):
            self._deliver(flow.source, flow.target, item)


class _Link:
    """One direction of a node's connection to the switch: who is to be served, in turn."""

    __slots__ = ("busy", "byte_s", "turns")

    def __init__(self, rate: float) -> None:
        self.byte_s, self.busy = 1.0 / rate, False
        self.turns: deque[_Flow] = deque()


class _Flow:
    """What goes from one node to another: waiting at the sender, under way, arriving at the receiver's link."""

    __slots__ = (
        *("source", "target", "up", "down", "window", "queue", "arriving", "signals"),
        *("under_way", "cuts", "in_turn_up", "in_turn_down"),
    )

    def __init__(self, source: int, target: int, up: _Link, down: _Link, latency_s: float) -> None:
        self.source, self.target, self.up, self.down = source, target, up, down
        in_a_round_trip = 2 * latency_s / (QUANTUM * max(up.byte_s, down.byte_s))
        self.window = max(_LEAST_WINDOW, math.ceil(in_a_round_trip) + 2)
        self.queue: deque[tuple[int, Any]] = deque()
        self.arriving: deque[tuple[float, Any]] = deque()
        self.signals: list[Any] = []
        self.under_way = self.cuts = 0
        self.in_turn_up = self.in_turn_down = False
