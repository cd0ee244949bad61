"""What a node tells about a running job."""

from __future__ import annotations

from collections.abc import Iterable
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


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """What passed from a node to one peer since the start.

    A link is busy while the kernel has bytes on their way that the peer's kernel has not acknowledged, see
    `dataflow.transport.sockets`; where it does not count that, while something waits for the peer's acknowledgement.
    For how long the peer held that back counts nowhere, see `dataflow.transport.link_meter`.

    Args:
        nbytes: bytes of frames that the peer has acknowledged.
        messages: messages and ends that the peer has acknowledged.
        busy_s: seconds in which the link was busy.
        delay_s: the sum, over these messages, of the seconds from handing one to the link until it was acknowledged.
    """

    nbytes: int = 0
    messages: int = 0
    busy_s: float = 0.0
    delay_s: float = 0.0

    def plus(self, more: LinkStatistics) -> LinkStatistics:
        """The sum of both."""
        return LinkStatistics(
            self.nbytes + more.nbytes,
            self.messages + more.messages,
            self.busy_s + more.busy_s,
            self.delay_s + more.delay_s,
        )

    @property
    def goodput(self) -> float:
        """Bytes per second that the link carried while it had something to carry; 0 if it never had."""
        return self.nbytes / self.busy_s if self.busy_s else 0.0

    @property
    def mean_delay_s(self) -> float:
        """Mean seconds from handing over a message until it was acknowledged; 0 if none was."""
        return self.delay_s / self.messages if self.messages else 0.0


@dataclass(frozen=True, slots=True)
class ProcessorTimes:
    """Processor seconds that a node's job process has taken since the start.

    Args:
        process: of all its threads.
        compute: of the compute pool's tasks.
        exchange: of what exists only because nodes exchange messages; see `Rates`.
    """

    process: float = 0.0
    compute: float = 0.0
    exchange: float = 0.0

    def plus(self, more: ProcessorTimes) -> ProcessorTimes:
        """The sum of both."""
        return ProcessorTimes(self.process + more.process, self.compute + more.compute, self.exchange + more.exchange)


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """What a node has counted since the start.

    A simulated node has no processor and no links of its own: what they would measure stays unknown.

    Args:
        node: its number.
        steps: steps finished by gathering operators.
        tasks: tasks finished.
        busy_s: seconds of task time in each pool.
        waiting_s: seconds in which a gathering operator was held back by its `ready` predicate.
        sent_nbytes: bytes of messages sent to each node.
        received_nbytes: bytes of messages received from each node.
        samples: samples by ``operator.name``.
        running_s: seconds since it began to run.
        compute_tasks: tasks of its compute pool.
        processor: what its process has taken of the processor; None if that is unknown.
        links_busy_s: seconds in which any link to a peer was busy; None if that is unknown.
        links: what was acknowledged, by peer; empty if that is unknown.
        incarnation: how often it had been started for the job before; what was counted then is not in here.
    """

    node: int
    steps: int = 0
    tasks: int = 0
    busy_s: dict[str, float] = field(default_factory=dict)
    waiting_s: float = 0.0
    sent_nbytes: dict[int, int] = field(default_factory=dict)
    received_nbytes: dict[int, int] = field(default_factory=dict)
    samples: dict[str, SampleStatistics] = field(default_factory=dict)
    running_s: float = 0.0
    compute_tasks: int = 1
    processor: ProcessorTimes | None = None
    links_busy_s: float | None = None
    links: dict[int, LinkStatistics] = field(default_factory=dict)
    incarnation: int = 0

    @property
    def computing_s(self) -> float:
        """Seconds of task time in the compute pool."""
        return self.busy_s.get("compute", 0.0)

    @property
    def idle_s(self) -> float:
        """Seconds in which the compute pool's threads, on average, neither computed nor were held back."""
        return max(0.0, self.running_s - self.computing_s / self.compute_tasks - self.waiting_s)


LEFT_TO_OTHERS = "left_to_others"
"""Sample of a node that has left the last work of its job to another one, and has not heard that this has done it."""


def samples_named(statistics: Iterable[NodeStatistics], *names: str) -> list[SampleStatistics]:
    """The samples of these names, of all nodes and operators."""
    return [sample for each in statistics for key, sample in each.samples.items() if key.rpartition(".")[2] in names]


@dataclass(frozen=True, slots=True)
class LinkRates:
    """What passed from a node to one peer in a while.

    Args:
        nbytes: bytes of messages that the peer has acknowledged.
        busy_s: seconds in which the link was busy.
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
        busy_s: seconds in which any link to a peer was busy; as a node tells its engine, none where all peers have
            loopback addresses: what waits there waits for a processor.
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


def rates_between(before: NodeStatistics, after: NodeStatistics) -> Rates:
    """How fast a node was between two of its statistics; what they do not know counts as nothing."""
    cpu_before, cpu_after = before.processor or ProcessorTimes(), after.processor or ProcessorTimes()
    return Rates(
        seconds=after.running_s - before.running_s,
        steps=after.steps - before.steps,
        compute_s=cpu_after.compute - cpu_before.compute,
        exchange_s=cpu_after.exchange - cpu_before.exchange,
        busy_s=(after.links_busy_s or 0.0) - (before.links_busy_s or 0.0),
        blocked_s=after.waiting_s - before.waiting_s,
        links={peer: _link_rates(before.links.get(peer, LinkStatistics()), link) for peer, link in after.links.items()},
    )


def _link_rates(before: LinkStatistics, after: LinkStatistics) -> LinkRates:
    messages = after.messages - before.messages
    return LinkRates(
        nbytes=after.nbytes - before.nbytes,
        busy_s=after.busy_s - before.busy_s,
        delay_s=(after.delay_s - before.delay_s) / messages if messages else 0.0,
    )
