"""Rounds that become longer while a job runs: nobody waits for one that comes later than it knows of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dataflow.engine.events import Event, Measured, Started
from dataflow.engine.loading import LoadedNode
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.plan.compile import compile_graph
from dataflow.plan.physical import PhysicalPlan
from dataflow.reports import Rates
from operators.cost_model import CostModel
from operators.partition import RotationState
from tests.known_answers.coded import NODES, coded_job
from tests.known_answers.rejoining import Dying, borrowed, clocks_of
from tests.known_answers.test_coded_resumed import whole
from tests.known_answers.test_resume_memory import resumed

COSTLY = Rates(1.0, steps=100, compute_s=0.1, exchange_s=5.0)
"""Exchanging takes most of the processor's time: rounds are to be long."""


class Lengthening(Dying):
    """Nodes measure at once that rounds are to be long, before they have told anybody of the first one."""

    def _handle(self, node: int, event: Event) -> None:
        super()._handle(node, event)
        if isinstance(event, Started):
            for _ in range(12):
                self._put(("rates", node), node, Measured(COSTLY))


def plan(codec: str, **settings: Any) -> PhysicalPlan:
    """Of workers that wait for each other's newest gradients, but for those that a rotation takes."""
    return compile_graph(coded_job("ako live", codec, tau=0, **settings), NODES)


@pytest.mark.parametrize(
    ("codec", "batch", "dies", "joins", "seed"),
    [
        ("threshold:tau=0.5", 30, 99, 149, 597),
        ("threshold:tau=0.25:most=fit", 15, 141, 191, 644),
        ("topk:density=0.01", 15, 80, 100, 607),
    ],
)
def test_worker_that_joins_where_rounds_have_become_long_waits_as_long_for_the_others(
    codec: str, batch: int, dies: int, joins: int, seed: int
) -> None:
    driver = Lengthening(plan(codec, batch=batch), [(dies, 2), (joins, 2)], order=np.random.default_rng(seed))
    nodes = driver.execute().nodes
    assert driver.incarnations == [0, 0, 1, 0]
    assert borrowed(nodes[2])
    assert [clocks_of(node).rejected for node in nodes] == [0] * NODES


@pytest.mark.parametrize("codec", ["threshold:tau=0.5", "topk:density=0.01"])
def test_job_whose_rounds_have_become_long_goes_on_from_any_checkpoint(codec: str) -> None:
    of = plan(codec, batch=10, checkpoint_every=120)
    run = Lengthening(of, [], order=np.random.default_rng(0)).execute()
    checkpoints = whole(run.snapshots)
    assert len(checkpoints) >= 8
    longest = 0
    for snapshots in checkpoints[::2]:
        nodes = resumed(snapshots, of, of)
        longest = max([longest, *(rotation_of(node).choice.every for node in nodes)])
        made = [clocks_of(node).made for node in MemoryDriver(of, nodes=nodes).execute().nodes]
        assert made == [clocks_of(node).made for node in run.nodes]
    assert longest > CostModel(model_nbytes=1, in_turn="threshold" in codec).first(0).span


def rotation_of(node: LoadedNode) -> RotationState:
    rotation = node.states["rotation"]
    assert isinstance(rotation, RotationState)
    return rotation
