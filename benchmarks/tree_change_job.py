"""The `tree` job, with an operator on each node that tells the longest time between two of its gradients.

ako run benchmarks/tree_change_job.py topology=chain data=mnist epochs=1 --nodes 4
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from ako_jobs import tree
from dataflow import LogicalGraph
from dataflow.message import Message
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, Operator
from dataflow.ports import In, Out
from operators.messages import Gradient

TOLD_AFTER = 20
"""Gradients of a node between two reports."""


class Config(tree.Config):
    """Settings of a tree job."""


@dataclass(frozen=True, slots=True)
class Gap(Message):
    """The longest time between two of the last gradients of a node, in seconds."""

    longest_s: float


class Gaps(Operator):
    """Takes the time between gradients."""

    gradients = In(Gradient)
    gaps = Out(Gap, reported=True)

    def open(self, _node: NodeContext) -> None:
        """Begin with no gradient."""
        self._last_s = self._longest_s = 0.0

    def process(self, gradient: Gradient) -> Emissions:
        """The longest time, if it is to be told."""
        now_s = time.monotonic()
        if gradient.number > 1:
            self._longest_s = max(self._longest_s, now_s - self._last_s)
        self._last_s = now_s
        if gradient.number % TOLD_AFTER == 0:
            yield self.gaps(Gap(self._longest_s))
            self._longest_s = 0.0


def build(config: Config) -> LogicalGraph:
    """A tree job whose nodes tell of gaps."""
    return (
        tree.build(config).with_operator("gaps", Gaps(), role="worker").connect("compute.gradients", "gaps.gradients")
    )
