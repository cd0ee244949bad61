"""What an engine counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataflow.operators_api import Sample
from dataflow.reports import NodeStatistics, SampleStatistics


class _Sum:
    """The samples of one name so far."""

    def __init__(self) -> None:
        self.count, self.total, self.maximum, self.last = 0, 0.0, float("-inf"), 0.0

    def add(self, value: float) -> None:
        """Count one more."""
        self.count += 1
        self.total += value
        self.maximum = max(self.maximum, value)
        self.last = value

    def statistics(self) -> SampleStatistics:
        """What is known of them."""
        return SampleStatistics(self.count, self.total, self.maximum, self.last)


class Tally:
    """Counters of one node since the start; see `NodeStatistics`."""

    def __init__(self, node: int, incarnation: int, pools: Mapping[str, int]) -> None:
        self.node, self.incarnation, self.compute_tasks = node, incarnation, pools["compute"]
        self.steps = self.tasks = 0
        self.waiting_s = 0.0
        self.busy_s = dict.fromkeys(pools, 0.0)
        self.sent_nbytes: dict[int, int] = {}
        self.received_nbytes: dict[int, int] = {}
        self._samples: dict[tuple[str, str], _Sum] = {}

    def sample(self, operator: str, sample: Sample) -> None:
        """Count a sample."""
        key = (operator, sample.name)
        known = self._samples.get(key)
        if known is None:
            known = self._samples[key] = _Sum()
        value: Any = sample.value  # perhaps one of NumPy's numbers
        known.add(float(value))

    def statistics(self, waiting_s: float, running_s: float) -> NodeStatistics:
        """What has been counted in `running_s` seconds, with `waiting_s` more of waiting that has not ended."""
        samples = tuple(self._samples.items())
        return NodeStatistics(
            node=self.node,
            steps=self.steps,
            tasks=self.tasks,
            busy_s=dict(self.busy_s),
            waiting_s=self.waiting_s + waiting_s,
            sent_nbytes=dict(self.sent_nbytes),
            received_nbytes=dict(self.received_nbytes),
            samples={f"{operator}.{name}": known.statistics() for (operator, name), known in samples},
            running_s=running_s,
            compute_tasks=self.compute_tasks,
            incarnation=self.incarnation,
        )
