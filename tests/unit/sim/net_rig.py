"""Runs transfers over a modelled network and notes what arrived when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dataflow.sim.clock import VirtualClock
from dataflow.sim.network import QUANTUM, SimNetwork

RATE = 125e6
"""Bytes per second of a link, unless a test says otherwise: 1 Gbit/s."""

LATENCY_S = 100e-6
QUANTUM_S = QUANTUM / RATE


@dataclass(frozen=True)
class Arrival:
    """An item that was delivered."""

    at_s: float
    source: int
    target: int
    item: Any


@dataclass
class Rig:
    """A network of nodes with these rates, and what it has delivered.

    Args:
        rates: bytes per second by node.
        latency_s: of the network.
        react: called with each arrival, to send something in turn.
        uneven: seed of how unevenly flows share links; None: evenly.
    """

    rates: Sequence[float]
    latency_s: float = LATENCY_S
    react: Callable[[Arrival], None] = lambda arrival: None
    uneven: int | None = None
    arrivals: list[Arrival] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.network = SimNetwork(self.clock, self.rates, self.latency_s, self._deliver, self.uneven)

    def _deliver(self, source: int, target: int, item: Any) -> None:
        arrival = Arrival(self.clock.now(), source, target, item)
        self.arrivals.append(arrival)
        self.react(arrival)

    def send(self, at_s: float, source: int, target: int, item: Any, nbytes: int) -> None:
        """Send at a time to come."""
        self.clock.at(at_s, lambda _: self.network.send(source, target, item, nbytes))

    def signal(self, at_s: float, source: int, target: int, item: Any) -> None:
        """Signal at a time to come."""
        self.clock.at(at_s, lambda _: self.network.signal(source, target, item))

    def call(self, at_s: float, what: Callable[..., None], *nodes: int) -> None:
        """Cut, mend or drop at a time to come."""
        self.clock.at(at_s, lambda _: what(*nodes))

    def run(self) -> list[Arrival]:
        """Let everything arrive."""
        self.clock.run()
        return self.arrivals

    def queued_nbytes(self, source: int, target: int) -> int:
        """Bytes that wait at one node to leave for another."""
        flow = self.network._flows[source].get(target)
        return sum(nbytes for nbytes, _ in flow.queue) if flow else 0

    @property
    def flows(self) -> int:
        """How many flows are kept."""
        return sum(map(len, self.network._flows))

    def items(self, source: int, target: int) -> list[Any]:
        """What has come from one node to another, in order."""
        return [each.item for each in self.arrivals if (each.source, each.target) == (source, target)]


def last_s(rates: Sequence[float], sends: Iterable[tuple[int, int, int]], latency_s: float = LATENCY_S) -> float:
    """When the last of these (source, target, bytes), all sent at second 0, has arrived."""
    rig = Rig(rates, latency_s)
    for number, (source, target, nbytes) in enumerate(sends):
        rig.network.send(source, target, number, nbytes)
    return max(arrival.at_s for arrival in rig.run())
