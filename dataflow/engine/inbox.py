"""Inboxes: where messages wait for a chain, in arrival order within each key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dataflow.errors import OperatorError
from dataflow.graph.specs import InputSpec
from dataflow.message import Message
from dataflow.plan.physical import StreamId


@dataclass(init=False, slots=True, eq=False)
class Delivery:
    """A message waiting; `stream` and `nbytes` say whose credit it holds, if it came on a stream.

    `key` says which of an inbox's queues it waits in.
    """

    port: str
    message: Message
    stream: StreamId | None
    nbytes: int
    key: Any

    def __init__(self, port: str, message: Message, stream: StreamId | None = None, nbytes: int = 0) -> None:
        self.port, self.message, self.stream, self.nbytes, self.key = port, message, stream, nbytes, None


class Inbox:
    """Bounded by each port's capacity, or by the credit of streams; see `dataflow.ports.In` for `key` and `latest`.

    `size` counts the messages that wait.
    """

    def __init__(self, ports: Iterable[InputSpec], *, by_step: bool = False) -> None:
        """Make an empty inbox.

        Args:
            ports: the input ports of the chain's first operator.
            by_step: queue by the messages' steps, instead of the ports' own keys.
        """
        self._ports = {port.name: _Port(port.name, port.capacity, port.key, port.latest) for port in ports}
        self._by_step = by_step
        self._queues: dict[Any, dict[object, Delivery]] = {}
        self._waiting: dict[str, int] = dict.fromkeys(self._ports, 0)
        self._senders: defaultdict[int, int] = defaultdict(int)
        self._arrivals = self.size = 0

    def room(self, port: str, messages: int = 1) -> bool:
        """Whether so many more messages may be sent to `port`."""
        spec = self._ports[port]
        return bool(spec.latest) or self._waiting[port] + messages <= spec.capacity

    def push(self, delivery: Delivery) -> Delivery | None:
        """Add a delivery; returns the one it replaces, if the port keeps only the latest.

        Raises:
            OperatorError: the message lacks a field that the port goes by.
        """
        spec = self._ports[delivery.port]
        self._arrivals += 1
        slot: object = self._arrivals
        if spec.latest:
            slot = (spec.name, *(_field(delivery, name) for name in spec.latest))
        delivery.key = key = self._key(spec, delivery)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = {}
        replaced = queue.get(slot)
        queue[slot] = delivery
        self._count(delivery, 1)
        if replaced is not None:
            self._count(replaced, -1)
        return replaced

    def first(self, is_open: Callable[[Any], bool]) -> Delivery | None:
        """The first delivery of the first key for which `is_open`."""
        for key, queue in self._queues.items():
            if is_open(key):
                return next(iter(queue.values()))
        return None

    def lowest_step(self) -> Delivery | None:
        """The first delivery of the lowest step, or of those that have none."""
        if not self._queues:
            return None
        lowest = min(self._queues, key=lambda step: step if isinstance(step, int) else -1)
        return next(iter(self._queues[lowest].values()))

    def of_step(self, step: int) -> Delivery | None:
        """The first delivery of a step."""
        queue = self._queues.get(step)
        return next(iter(queue.values())) if queue else None

    def take(self, delivery: Delivery) -> None:
        """Remove a delivery that is the first of its key; the key goes behind the others."""
        key = delivery.key
        queue = self._queues.pop(key)
        del queue[next(iter(queue))]
        if queue:
            self._queues[key] = queue
        self._count(delivery, -1)

    def holds(self, node: int) -> bool:
        """Whether any message of a node waits."""
        return self._senders[node] > 0

    def of_node(self, node: int) -> Iterator[Delivery]:
        """The deliveries that a node has sent."""
        for queue in self._queues.values():
            for delivery in queue.values():
                if delivery.stream is not None and delivery.stream.source == node:
                    yield delivery

    def _key(self, port: _Port, delivery: Delivery) -> Any:
        if self._by_step:
            return getattr(delivery.message, "step", None)
        return _field(delivery, port.key) if port.key else None

    def _count(self, delivery: Delivery, change: int) -> None:
        self.size += change
        self._waiting[delivery.port] += change
        if delivery.stream is not None:
            self._senders[delivery.stream.source] += change


class _Port:
    """What an inbox has to know of an input port; see `dataflow.ports.In`."""

    def __init__(self, name: str, capacity: int, key: str | None, latest: tuple[str, ...]) -> None:
        self.name, self.capacity, self.key, self.latest = name, capacity, key, latest


def _field(delivery: Delivery, name: str) -> Any:
    try:
        return getattr(delivery.message, name)
    except AttributeError as error:
        raise OperatorError(
            what=f"a message at input port {delivery.port!r} has no field {name!r}",
            got=type(delivery.message).__name__,
            fix="name fields of the port's message type in key and latest",
        ) from error
