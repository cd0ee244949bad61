"""Inboxes: where messages wait for a chain, in arrival order within each key."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataflow.plan.physical import StreamId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dataflow.graph.logical import InputSpec
    from dataflow.message import Message


@dataclass(frozen=True, slots=True)
class Left:
    """Stands in an inbox behind the last message of a node that has left or ended."""

    node: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message waiting; `stream` and `nbytes` say whose credit it holds, if it came from another node."""

    port: str
    message: Message | Left
    stream: StreamId | None = None
    nbytes: int = 0


class Inbox:
    """Bounded by each port's capacity; see `dataflow.ports.In` for `key` and `latest`."""

    def __init__(self, ports: Iterable[InputSpec], *, key: str | None = None) -> None:
        """Make an empty inbox.

        Args:
            ports: the input ports of the chain's first operator.
            key: field to queue by, instead of the ports' own.
        """
        self._ports = {port.name: port for port in ports}
        self._key = key
        self._queues: dict[object, dict[object, Delivery]] = {}
        self._waiting: Counter[str] = Counter()
        self._arrivals = 0

    def __len__(self) -> int:
        return self._waiting.total()

    def room(self, port: str) -> bool:
        """Whether another message may be sent to `port`."""
        spec = self._ports[port]
        return bool(spec.latest) or self._waiting[port] < spec.capacity

    def push(self, delivery: Delivery) -> Delivery | None:
        """Add a delivery; returns the one it replaces, if the port keeps only the latest."""
        spec, message = self._ports[delivery.port], delivery.message
        self._arrivals += 1
        key: object = None
        slot: object = self._arrivals
        if not isinstance(message, Left):
            name = self._key or spec.key
            key = getattr(message, name) if name else None
            slot = tuple(getattr(message, field) for field in spec.latest) if spec.latest else slot
        queue = self._queues.setdefault(key, {})
        replaced = queue.get(slot)
        queue[slot] = delivery
        if replaced is None:
            self._waiting[delivery.port] += 1
        return replaced

    def pop(self, is_open: Callable[[object], bool]) -> Delivery | None:
        """Take the first delivery of the first key for which `is_open`; that key goes behind the others."""
        for key, queue in self._queues.items():
            if is_open(key):
                delivery = queue.pop(next(iter(queue)))
                del self._queues[key]
                if queue:
                    self._queues[key] = queue
                self._waiting[delivery.port] -= 1
                return delivery
        return None

    def first_key(self) -> object:
        """The key that would be served first; raises `StopIteration` if nothing waits."""
        return next(iter(self._queues))
