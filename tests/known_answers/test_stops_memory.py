"""Jobs that are asked to stop at any moment, at which nodes have read and made different numbers of mini-batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ako_jobs import ako, all_to_all, parameter_server, sparse, tree
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.plan.compile import compile_graph
from dataflow.plan.physical import PhysicalPlan
from operators.vector_state import VectorState
from tests.known_answers.coded import SETTINGS

JOBS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ako": (ako, {"tau": 0, "p": 2}),
    "all_to_all bsp": (all_to_all, {"consistency": "bsp"}),
    "all_to_all ssp": (all_to_all, {"consistency": "ssp"}),
    "sparse ssp": (sparse, {"consistency": "ssp"}),
    "servers bsp": (parameter_server, {"consistency": "bsp", "servers": "all", "lr": 0.01}),
    "servers ssp": (parameter_server, {"consistency": "ssp", "servers": 1, "lr": 0.01}),
    "tree bsp": (tree, {"consistency": "bsp"}),
    "tree ssp": (tree, {"consistency": "ssp"}),
}


class Stopped(MemoryDriver):
    """Has all nodes stop once so many events have been handled."""

    def __init__(self, plan: PhysicalPlan, at: int, seed: int) -> None:
        super().__init__(plan, order=np.random.default_rng(seed))
        self._at: int | None = at

    def _step(self) -> bool:
        if self._at is not None and self.run.deliveries >= self._at:
            self._at = None
            self.stop()
        return super()._step()


@pytest.mark.parametrize("job", JOBS)
def test_job_that_is_stopped_ends_with_one_model(job: str) -> None:
    module, settings = JOBS[job]
    graph = module.build(module.Config.parse({**SETTINGS, "batch": 60, **settings}))
    plan = compile_graph(graph, 4)
    for seed, at in enumerate((0, 1, 3, 5, 8, 13, 34, 89, 233)):
        run = Stopped(plan, at, seed).execute()
        assert "model.safetensors" in run.artifacts
        replicas = [node.states["replica"] for node in run.nodes if "replica" in node.states]
        first = replicas[0]
        assert isinstance(first, VectorState)
        for each in replicas[1:]:
            assert isinstance(each, VectorState)
            np.testing.assert_allclose(each.values, first.values, rtol=0, atol=1e-5)
