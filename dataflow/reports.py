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
