"""How a job went over time, from the statistics that its nodes tell while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from dataflow.observe.newest import Newest
from dataflow.reports import NodeStatistics, samples_named

MOST_POINTS = 512
"""So many points are kept at most."""


@dataclass(frozen=True, slots=True)
class Point:
    """What all nodes together had done by some time, those included that have died since the start.

    Args:
        time_s: seconds since the job began to run.
        gradients: finished.
        computing_s: seconds of task time in compute pools.
        waiting_s: seconds in which steps were held back by their `ready` predicate.
        sent_nbytes: bytes of messages sent.
        stale_gradients: how many gradients a staleness is known of.
        staleness: the sum of these.
        gaps: how many times it has been measured how far the replicas are apart.
        gap: the sum of what was found: root mean squares of weights' distances from the mean of all replicas.
        gapped_gradients: of how many gradients a gap is known.
        gradient_gap: the sum of these: root mean squares of how far weights moved until a gradient was applied.
        lagged_gradients: of how many gradients a lag is known.
        lag: the sum of these: updates in between.
        normalised_gradients: of how many gradients a normalised gap is known.
        normalised_gap: the sum of these: gaps over the norms of their gradients.
    """

    time_s: float
    gradients: int
    computing_s: float
    waiting_s: float
    sent_nbytes: int
    stale_gradients: int
    staleness: float
    gaps: int
    gap: float
    gapped_gradients: int = 0
    gradient_gap: float = 0.0
    lagged_gradients: int = 0
    lag: float = 0.0
    normalised_gradients: int = 0
    normalised_gap: float = 0.0


@dataclass
class Series:
    """Points over time: one each time that every node may have told its statistics again.

    Points count from the start, so that leaving some out loses detail only: of too many, every other one is dropped,
    and from then on only every other one that comes is kept, so that they are equally far apart.

    Attributes:
        newest: what they are made of.
    """

    points: list[Point] = field(default_factory=list)
    newest: Newest = field(default_factory=Newest)
    _told: set[int] = field(default_factory=set)
    _time_s: float = 0.0
    _made: int = 0
    _of: int = 1

    def add(self, time_s: float, statistics: NodeStatistics) -> None:
        """Take in what a node told."""
        if statistics.node in self._told:
            self.close()
        self.newest.take(statistics)
        self._time_s = time_s
        self._told.add(statistics.node)

    def close(self) -> None:
        """Make a point of what was told since the last one, if anything was."""
        if not self._told:
            return
        if self._made % self._of:
            self.points.pop()
        elif len(self.points) == MOST_POINTS:
            del self.points[::2]
            self._of *= 2
        self._made += 1
        self._told.clear()
        nodes = list(self.newest)
        stale, apart, gapped = (samples_named(nodes, name) for name in ("staleness", "rms", "gap"))
        lagged, normalised = (samples_named(nodes, name) for name in ("lag", "normalised_gap"))
        self.points.append(
            Point(
                time_s=self._time_s,
                gradients=sum(each.steps for each in nodes),
                computing_s=sum(each.computing_s for each in nodes),
                waiting_s=sum(each.waiting_s for each in nodes),
                sent_nbytes=sum(sum(each.sent_nbytes.values()) for each in nodes),
                stale_gradients=sum(sample.count for sample in stale),
                staleness=sum(sample.total for sample in stale),
                gaps=sum(sample.count for sample in apart),
                gap=sum(sample.total for sample in apart),
                gapped_gradients=sum(sample.count for sample in gapped),
                gradient_gap=sum(sample.total for sample in gapped),
                lagged_gradients=sum(sample.count for sample in lagged),
                lag=sum(sample.total for sample in lagged),
                normalised_gradients=sum(sample.count for sample in normalised),
                normalised_gap=sum(sample.total for sample in normalised),
            )
        )
