"""The modelled network: nodes on one switch, each with a link up and a link down.

A link serves the flows that use it in turn, 64 KiB at a time, round by the numbers of the nodes at their other ends.

What leaves the sender's link reaches the receiver's after the latency, its head while its tail is still on its way: a
message alone takes the latency plus its size over the slower link's rate. A flow has a limited number of bytes under
way between the two links, as a TCP connection has its window: a receiver with many senders slows its own flows down,
and not others that share their senders.

Flows may share links unevenly, as TCP connections do that lose nothing. Then turns go to who has waited longest, and at
the sender a flow's are of one, two or three times 64 KiB, drawn when it begins, unless it still owes the link a part of
its last turn; receivers' links are shared evenly. A connection with a larger window gets more, for as long as it has
something to send: those of four hosts that all send to each other at 100 Mbit/s had a sixth to a half of a link in a
lab, each the same for seconds. And it keeps two segments in its machine's queue, by which whoever sends first is ahead.
With even shares, answers that a server sends one soon after the other are all whole at the end only; the workers that
wait for them go on at once, and push at once, and so on. And those who wait for each other's updates find that all come
together, where on a cluster some are there long before others, and learn less from each image.

All streams from one node to another are one flow, first in, first out, as they share one connection. What a node sends
itself takes no time. A flow exists while there is something about it to know: most pairs of many nodes have none.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from dataflow.sim.clock import Action, VirtualClock

QUANTUM: Final = 64 << 10
"""Bytes that a link serves of a flow before it turns to the next."""

_TURNS: Final = (1, 2, 3)
"""How many quanta it is at the sender, of flows that share links unevenly."""

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
        uneven: seed of how unevenly flows share links; None: evenly.
    """

    def __init__(
        self,
        clock: VirtualClock,
        rates: Sequence[float],
        latency_s: float,
        deliver: Callable[[int, int, Any], None],
        uneven: int | None = None,
    ) -> None:
        self._clock, self._latency_s, self._deliver = clock, latency_s, deliver
        self._uneven = None if uneven is None else random.Random(uneven)
        kind = _Link if uneven is None else _FirstCome
        self._up = [kind(node, rate) for node, rate in enumerate(rates)]
        self._down = [kind(node, rate) for node, rate in enumerate(rates)]
        self._flows: list[dict[int, _Flow]] = [{} for _ in rates]  # by sender, by receiver
        self._spare: list[_Flow] = []
        self._gone: set[int] = set()
        self._lives: dict[int, int] = {}
        # What happens to every quantum: a method would be bound anew each time.
        self._at_left: Action = self._left
        self._at_came: Action = self._came
        self._at_entered: Action = self._entered
        self._at_signalled: Action = self._signalled

    def send(self, source: int, target: int, item: Any, nbytes: int) -> None:
        """Have an item of `nbytes` bytes, perhaps none, delivered behind all sent from `source` to `target` before."""
        if self._lost(source, target):
            return
        item = self._tagged(source, target, item)
        if source == target or (not nbytes and target not in self._flows[source]):
            self._signal(source, target, item)
            return
        flow = self._flow(source, target)
        flow.queue.append((nbytes, item))
        self._offer(flow)

    def signal(self, source: int, target: int, item: Any) -> None:
        """Have an item delivered that is too small to take time on a link, such as a grant of credit."""
        if not self._lost(source, target):
            self._signal(source, target, self._tagged(source, target, item))

    def _signal(self, source: int, target: int, item: Any) -> None:
        flow = self._flows[source].get(target)
        if flow is not None and flow.cuts:
            flow.signals.append(item)
        else:
            latency_s = self._latency_s if source != target else 0.0
            self._clock.at(self._clock.now() + latency_s, self._at_signalled, (source, target, item))

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
                    self._signal(flow.source, flow.target, item)
                self._offer(flow)
                self._forget_if_idle(flow)

    def change(self, node: int, rate: float) -> None:
        """Have a node's link carry so many bytes per second, both ways, except what is on it already."""
        self._up[node].byte_s = self._down[node].byte_s = 1.0 / rate
        for flow in self._flows_of(node):
            flow.size_window(self._latency_s)

    def drop(self, node: int) -> None:
        """Deliver nothing more from or to a node."""
        self._gone.add(node)
        for flow in self._flows_of(node):
            flow.queue.clear()
            flow.signals.clear()

    def join(self, node: int) -> None:
        """Deliver again what is sent from or to a node that was dropped, and nothing of what was sent before."""
        self._gone.discard(node)
        self._lives[node] = self._lives.get(node, 0) + 1

    def _tagged(self, source: int, target: int, item: Any) -> Any:
        """An item with the lives of the two nodes, if either has had more than one."""
        if not self._lives or not (source in self._lives or target in self._lives):
            return item
        return _Tagged(item, self._lives.get(source, 0), self._lives.get(target, 0))

    def _lost(self, source: int, target: int) -> bool:
        """Whether nothing passes any more between two nodes, as one of them is gone."""
        return bool(self._gone) and (source in self._gone or target in self._gone)

    def _flows_of(self, node: int) -> list[_Flow]:
        """The flows that begin or end at a node."""
        return [flow for flows in self._flows for flow in flows.values() if node in (flow.source, flow.target)]

    def _flow(self, source: int, target: int) -> _Flow:
        flow = self._flows[source].get(target)
        if flow is None:
            flow = self._spare.pop() if self._spare else _Flow()
            flow.begin(source, target, self._up[source], self._down[target], self._latency_s)
            if self._uneven is not None:
                flow.turn = QUANTUM * self._uneven.choice(_TURNS)
            self._flows[source][target] = flow
        return flow

    def _forget_if_idle(self, flow: _Flow) -> None:
        if flow.idle():
            del self._flows[flow.source][flow.target]
            self._spare.append(flow)

    def _offer(self, flow: _Flow) -> None:
        """Put a flow among those that its sender's link serves, if it has something that may leave."""
        if flow.in_turn_up or not flow.may_leave():
            return
        flow.in_turn_up = True
        flow.up.join(flow.target, flow)
        if not flow.up.busy:
            flow.up.busy = True
            # Only once all that is sent at this instant is there can the link choose whom it serves first.
            self._clock.at(self._clock.now(), self._start_up, flow.up, priority=1)

    def _start_up(self, link: _Link) -> None:
        link.start()
        self._serve_up(link)

    def _serve_up(self, link: _Link) -> None:
        while link.waiting:
            flow = link.next()
            if flow.queue and not flow.cuts:
                flow.turn_up += flow.turn
                self._leave(flow)
                return
            flow.in_turn_up = False
            self._forget_if_idle(flow)
        link.busy = False

    def _leave(self, flow: _Flow) -> None:
        """Let the next quantum of a flow leave on its sender's link."""
        nbytes, item = flow.queue[0]
        if nbytes > QUANTUM:
            flow.queue[0] = (nbytes - QUANTUM, item)
            nbytes, item = QUANTUM, _MORE
        else:
            flow.queue.popleft()
        flow.under_way += nbytes
        flow.pieces += 1
        flow.turn_up -= nbytes
        now, up_s, down_s = self._clock.now(), nbytes * flow.up.byte_s, nbytes * flow.down.byte_s
        self._clock.at(now + up_s, self._at_left, flow)
        # A faster receiver's link is taken up only for as long as it needs, with the tail.
        head_s = now + self._latency_s + max(0.0, up_s - down_s)
        self._clock.at(head_s, self._at_came, _Quantum(flow, nbytes, item))

    def _left(self, flow: _Flow) -> None:
        if not flow.may_leave():
            flow.in_turn_up, flow.turn_up = False, min(flow.turn_up, 0)
            self._forget_if_idle(flow)
        elif flow.turn_up > 0:
            self._leave(flow)
            return
        else:
            flow.up.join(flow.target, flow)
        self._serve_up(flow.up)

    def _came(self, quantum: _Quantum) -> None:
        flow = quantum.flow
        flow.arriving.append(quantum)
        if not flow.in_turn_down:
            flow.in_turn_down = True
            flow.down.join(flow.source, flow)
            if not flow.down.busy:
                self._serve_down(flow.down)

    def _serve_down(self, link: _Link) -> None:
        link.busy = bool(link.waiting)
        if link.busy:
            flow = link.next()
            flow.turn_down += QUANTUM
            self._enter(flow)

    def _enter(self, flow: _Flow) -> None:
        """Let the next quantum of a flow come in on its receiver's link."""
        quantum = flow.arriving.popleft()
        flow.turn_down -= quantum.nbytes
        self._clock.at(self._clock.now() + quantum.nbytes * flow.down.byte_s, self._at_entered, quantum)

    def _entered(self, quantum: _Quantum) -> None:
        flow = quantum.flow
        flow.under_way -= quantum.nbytes
        flow.pieces -= 1
        self._offer(flow)
        # The next quantum is asked for after this one is handed over, so that a receiver that puts off both, to the
        # same moment, still takes them in order.
        if quantum.item is not _MORE:
            self._hand_over(flow.source, flow.target, quantum.item)
        if not flow.arriving:
            flow.in_turn_down, flow.turn_down = False, min(flow.turn_down, 0)
            self._forget_if_idle(flow)
        elif flow.turn_down > 0:
            self._enter(flow)
            return
        else:
            flow.down.join(flow.source, flow)
        self._serve_down(flow.down)

    def _signalled(self, arrival: tuple[int, int, Any]) -> None:
        self._hand_over(*arrival)

    def _hand_over(self, source: int, target: int, item: Any) -> None:
        if self._lost(source, target):
            return
        if self._lives:
            lives = (item.source, item.target) if isinstance(item, _Tagged) else (0, 0)
            if lives != (self._lives.get(source, 0), self._lives.get(target, 0)):
                return
            item = item.item if isinstance(item, _Tagged) else item
        self._deliver(source, target, item)


class _Tagged(NamedTuple):
    """An item, and how often the two nodes had joined again when it was sent."""

    item: Any
    source: int
    target: int


class _Quantum:
    """What a link serves of a flow at once.

    Args:
        flow: what it is part of.
        nbytes: its size.
        item: what is whole with it; `_MORE` if nothing is.
    """

    __slots__ = ("flow", "item", "nbytes")

    def __init__(self, flow: _Flow, nbytes: int, item: Any) -> None:
        self.flow, self.nbytes, self.item = flow, nbytes, item


class _Link:
    """One direction of a node's connection to the switch, and the flows that wait for their turn on it.

    Turns go round by the number of the other node.
    """

    __slots__ = ("_flows", "_last", "_node", "busy", "byte_s", "waiting")

    def __init__(self, node: int, rate: float) -> None:
        self._node, self.byte_s, self.busy = node, 1.0 / rate, False
        self.waiting: list[int] = []
        self._flows: dict[int, _Flow] = {}
        self._last = -1

    def join(self, peer: int, flow: _Flow) -> None:
        """Have a flow wait for its turn; `peer` is the node at its other end."""
        self._flows[peer] = flow
        insort(self.waiting, peer)

    def start(self) -> None:
        """Begin somewhere among those that wait.

        Links that become busy at once, as in an all-to-all exchange, begin with different nodes: if all began with the
        first, the others would have nothing to receive in the meantime.
        """
        self._last = self.waiting[self._node % len(self.waiting)] - 1

    def next(self) -> _Flow:
        """The flow whose turn it is; it waits no more."""
        place = bisect_right(self.waiting, self._last)
        self._last = self.waiting.pop(place % len(self.waiting))
        return self._flows.pop(self._last)


class _FirstCome(_Link):
    """A link whose turns go to who has waited longest."""

    __slots__ = ()

    def join(self, peer: int, flow: _Flow) -> None:
        """Have a flow wait behind all that do; `peer` is the node at its other end."""
        self._flows[peer] = flow
        self.waiting.append(peer)

    def start(self) -> None:
        """Begin somewhere among those that wait, as any link, and go on by number."""
        if len(self.waiting) > 1:
            self.waiting.sort()
            first = self._node % len(self.waiting)
            self.waiting = self.waiting[first:] + self.waiting[:first]

    def next(self) -> _Flow:
        """The flow whose turn it is; it waits no more."""
        return self._flows.pop(self.waiting.pop(0))


class _Flow:
    """What goes from one node to another: waiting at the sender, under way, arriving at the receiver's link.

    One that is idle is as good as new, for any other two nodes.
    """

    __slots__ = (
        *("source", "target", "up", "down", "window", "queue", "arriving", "signals", "under_way", "cuts"),
        *("pieces", "in_turn_up", "in_turn_down", "turn", "turn_up", "turn_down"),
    )

    source: int
    target: int
    up: _Link
    down: _Link
    window: int
    turn: int

    def __init__(self) -> None:
        self.queue: deque[tuple[int, Any]] = deque()
        self.arriving: deque[_Quantum] = deque()
        self.signals: list[Any] = []
        # Bytes: between the links, and what is left of a turn on each. A turn may be overdrawn once, and the next one
        # is shorter for it.
        self.under_way = self.turn_up = self.turn_down = 0
        # Quanta that have begun to leave and have not all come in; some have no bytes.
        self.pieces = 0
        self.cuts = 0
        self.in_turn_up = self.in_turn_down = False

    def begin(self, source: int, target: int, up: _Link, down: _Link, latency_s: float) -> None:
        """Go from one node to another, over their links."""
        self.source, self.target, self.up, self.down = source, target, up, down
        self.turn = QUANTUM
        self.size_window(latency_s)

    def size_window(self, latency_s: float) -> None:
        """Let as much be under way as fills a round trip, at the rate of the slower link."""
        in_a_round_trip = 2 * latency_s / (QUANTUM * max(self.up.byte_s, self.down.byte_s))
        self.window = QUANTUM * max(_LEAST_WINDOW, math.ceil(in_a_round_trip) + 2)

    def may_leave(self) -> bool:
        """Whether there is something that may leave the sender now."""
        return bool(self.queue) and not self.cuts and self.under_way < self.window

    def idle(self) -> bool:
        """Whether a new flow would be no different."""
        busy = self.queue or self.signals or self.pieces or self.in_turn_up or self.in_turn_down
        return not (busy or self.cuts or self.turn_up or self.turn_down)
