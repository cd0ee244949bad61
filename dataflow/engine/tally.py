"""What an engine counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dataflow.operators_api import Sample
from dataflow.reports import NodeStatistics, SampleStatistics

_NONE = SampleStatistics(0, 0.0, float("-inf"), 0.0)


class Tally:
    """Counters of one node since the start; see `NodeStatistics`."""

    def __init__(self, node: int, incarnation: int, pools: Mapping[str, int]) -> None:
        self.node, self.incarnation, self.compute_tasks = node, incarnation, pools["compute"]
        self.steps = self.tasks = 0
        self.waiting_s = 0.0
        self.busy_s = dict.fromkeys(pools, 0.0)
        self.sent_nbytes: Counter[int] = Counter()
        self.received_nbytes: Counter[int] = Counter()
        self._samples: dict[tuple[str, str], SampleStatistics] = {}

    def sample(self, operator: str, sample: Sample) -> None:
        """Count a sample."""
        key = (operator, sample.name)
        self._samples[key] = self._samples.get(key, _NONE).plus(sample.value)

    def statistics(self, waiting_s: float, running_s: float) -> NodeStatistics:
        """What has been counted in `running_s` seconds, with `waiting_s` more of waiting that has not ended."""
        return NodeStatistics(
            node=self.node,
            steps=self.steps,
            tasks=self.tasks,
            busy_s=dict(self.busy_s),
            waiting_s=self.waiting_s + waiting_s,
            sent_nbytes=dict(self.sent_nbytes),
            received_nbytes=dict(self.received_nbytes),
            samples={f"{operator}.{name}": known for (operator, name), known in tuple(self._samples.items())},
            running_s=running_s,
            compute_tasks=self.compute_tasks,
            incarnation=self.incarnation,
        )
