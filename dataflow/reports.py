"""What a node tells about a running job."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """A message emitted on a reported port.

    Args:
        port: ``operator.port``.
        fields: the message's fields by name.
    """

    port: str
    fields: dict[str, bool | int | float | str | None]


@dataclass(frozen=True, slots=True)
class SampleStatistics:
    """Count, sum, maximum and last value of the samples of one name.

    Args:
        count: how many.
        total: their sum.
        maximum: the largest.
        last: the newest.
    """

    count: int
    total: float
    maximum: float
    last: float

    def plus(self, value: float) -> SampleStatistics:
        """These statistics with one more sample."""
        return SampleStatistics(self.count + 1, self.total + value, max(self.maximum, value), value)


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """What a node's engine has counted since the start.

    Args:
        node: its number.
        steps: steps finished by gathering operators.
        tasks: tasks finished.
        busy_s: seconds of task time in each pool.
        waiting_s: seconds in which a gathering operator was held back by its `ready` predicate.
        sent_nbytes: bytes of messages sent to each node.
        received_nbytes: bytes of messages received from each node.
        samples: samples by ``operator.name``.
    """

    node: int
    steps: int = 0
    tasks: int = 0
    busy_s: dict[str, float] = field(default_factory=dict)
    waiting_s: float = 0.0
    sent_nbytes: dict[int, int] = field(default_factory=dict)
    received_nbytes: dict[int, int] = field(default_factory=dict)
    samples: dict[str, SampleStatistics] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LinkRates:
    """What passed from a node to one peer in a while.

    Args:
        nbytes: bytes of messages that the peer has acknowledged.
        busy_s: seconds in which something waited for the peer's acknowledgement.
        delay_s: mean seconds from handing a message to the link until the peer acknowledged it; 0 if none was.
    """

    nbytes: int = 0
    busy_s: float = 0.0
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a node was in a while: what it measures of itself, again and again, while it runs.

    Args:
        seconds: how long the while was.
        steps: steps finished by gathering operators.
        compute_s: processor seconds of the compute pool's tasks.
        exchange_s: processor seconds of what exists only because nodes exchange messages: connections, and tasks of
            chains that send to or receive from other nodes.
        busy_s: seconds in which something waited for the acknowledgement of any peer.
        blocked_s: seconds in which a gathering operator was held back by its `ready` predicate.
        links: by peer.
    """

    seconds: float
    steps: int = 0
    compute_s: float = 0.0
    exchange_s: float = 0.0
    busy_s: float = 0.0
    blocked_s: float = 0.0
    links: dict[int, LinkRates] = field(default_factory=dict)

    @property
    def sent_nbytes(self) -> int:
        """Bytes of messages that peers have acknowledged."""
        return sum(link.nbytes for link in self.links.values())

    @property
    def goodput(self) -> float:
        """Bytes per second that the node's link carried while it had something to carry; 0 if it never had."""
        return self.sent_nbytes / self.busy_s if self.busy_s else 0.0
