"""The cost model at work in virtual time: p and r follow link and processor, nodes train on, and no gradient is lost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from dataflow.graph.logical import LogicalGraph
from dataflow.plan.job import JobSpec, StopRules
from dataflow.reports import NodeStatistics
from dataflow.sim.costs import TaskKind
from dataflow.sim.faults import parse_fault
from dataflow.sim.model import ClusterModel
from dataflow.sim.replay import compare, replay
from dataflow.sim.simulator import SimRun, Simulator
from operators.cost_model import Choice, CostModel
from operators.partition import LivePartition, Rotation, RotationState
from tests.known_answers.integers import assert_exact, integer_job

NODES, WEIGHTS, STEP_S = 4, 59_590, 0.005
"""As many weights as the paper's MNIST network has: 143 MB/s of gradients for three peers."""


def live_job(rounds: int, *, cost: Mapping[str, Any] | None = None) -> LogicalGraph:
    graph = integer_job(1, n_weights=WEIGHTS, cells=256, rounds=rounds, slack=4, every=4)
    model = CostModel(model_nbytes=4 * WEIGHTS, **(cost or {}))
    layout = LivePartition.model_validate_json(graph.operator("partition").params).layout
    elements = tuple(
        Rotation(receivers="worker", cost=model).described("rotation", "worker") if each.name == "rotation" else each
        for each in graph.elements
    )
    return graph.replace("partition", LivePartition(layout=layout)).model_copy(update={"elements": elements})
