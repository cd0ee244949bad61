"""Jobs whose first node dies in its last work, when others are through: the next one does it, and keeps the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ako_jobs import ako, all_to_all, parameter_server, sparse, tree
from dataflow.engine.events import Snapshot, Task
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.operators_api import Artifact
from dataflow.plan.compile import compile_graph
from dataflow.plan.physical import PhysicalPlan
from dataflow.reports import OperatorReport
from tests.known_answers.coded import SETTINGS

JOBS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ako": (ako, {"tau": 0, "p": 2}),
    "all_to_all": (all_to_all, {"consistency": "bsp"}),
    "sparse": (sparse, {}),
    "servers": (parameter_server, {"consistency": "ssp", "servers": 1, "lr": 0.01}),
    "all are servers": (parameter_server, {"consistency": "async", "servers": "all", "lr": 0.01}),
    "tree": (tree, {}),
}


class DyingAtLast(MemoryDriver):
    """Buries node 0 when it is about to examine its model for the `last` time, and has it come back when asked to."""

    def __init__(self, plan: PhysicalPlan, seed: int, last: int = 0, *, comes_back: bool = False) -> None:
        super().__init__(plan, order=np.random.default_rng(seed))
        self.examined, self._last, self._comes_back = 0, last, comes_back

    def _run_task(self, node: int, task: Task) -> None:
        if (node, task.chain, task.role) == (0, "examine", "message") and not self.incarnations[0]:
            self.examined += 1
            if self.examined == self._last:
                self.bury(0)
                if self._comes_back:
                    self.join(0)
                return
        super()._run_task(node, task)


# A job all of whose nodes are servers cannot do without one that has died.
class DyingAsItKeeps(MemoryDriver):
    """Buries node 0 before it has kept its model at the `last` time, once the others do nothing more without it."""

    def __init__(self, plan: PhysicalPlan, seed: int, last: int = 0) -> None:
        super().__init__(plan, order=np.random.default_rng(seed))
        self.kept, self._last = 0, last

    def _run_task(self, node: int, task: Task) -> None:
        if (node, task.chain, task.role) == (0, "keep_model", "message"):
            self.kept += 1
            if self.kept == self._last:
                return
        super()._run_task(node, task)

    def _step(self) -> bool:
        if super()._step():
            return True
        if self.kept != self._last or 0 in self.run.buried:
            return False
        self.bury(0)
        return True


class LeavingAtLast(MemoryDriver):
    """Asks node 0 to leave once another worker has made its last gradient."""

    def __init__(self, plan: PhysicalPlan, seed: int) -> None:
        super().__init__(plan, order=np.random.default_rng(seed))
        self.model_of = -1

    def _step(self) -> bool:
        courses = [node.states["course"] for node in self.run.nodes[1:] if "course" in node.states]
        if not self._leaving and 0 not in self.run.buried and any(each.closed for each in courses):  # type: ignore[attr-defined]
            self.leave(0)
        return super()._step()

    def _report(self, node: int, what: OperatorReport | Artifact | Snapshot) -> None:
        if isinstance(what, Artifact):
            self.model_of = node
        super()._report(node, what)


def plan_of(job: str) -> PhysicalPlan:
    """The plan of one of the jobs on four nodes."""
    module, settings = JOBS[job]
    return compile_graph(module.build(module.Config.parse({**SETTINGS, "batch": 200, **settings})), 4)


@pytest.mark.parametrize(
    ("job", "comes_back"),
    [(job, comes_back) for job in JOBS for comes_back in (False, True) if comes_back or job != "all are servers"],
)
def test_job_whose_first_node_dies_in_its_last_work_keeps_a_model_and_tells_how_good_it_is(
    job: str, comes_back: bool
) -> None:
    plan = plan_of(job)
    for seed in range(4):
        whole = DyingAtLast(plan, seed)
        whole.execute()
        run = DyingAtLast(plan, seed, whole.examined, comes_back=comes_back).execute()
        assert (0 in run.buried) != comes_back
        assert "model.safetensors" in run.artifacts, seed
        (final,) = [node for node, report in run.reports if report.fields.get("final")]
        assert final != 0


@pytest.mark.parametrize("job", [job for job in JOBS if job != "all are servers"])
def test_job_whose_first_node_dies_while_it_keeps_its_model_keeps_that_of_the_next(job: str) -> None:
    plan = plan_of(job)
    for seed in range(4):
        whole = DyingAsItKeeps(plan, seed)
        whole.execute()
        run = DyingAsItKeeps(plan, seed, whole.kept).execute()
        assert run.buried == {0}
        assert "model.safetensors" in run.artifacts, seed


@pytest.mark.parametrize("job", [job for job in JOBS if job != "all are servers"])
def test_job_whose_first_node_leaves_at_the_end_keeps_the_model_of_one_that_heard_all_others(job: str) -> None:
    plan = plan_of(job)
    for seed in range(4):
        driver = LeavingAtLast(plan, seed)
        run = driver.execute()
        assert run.buried == {0}
        assert driver.model_of == 1, seed
        finals = [node for node, report in run.reports if report.fields.get("final")]
        assert finals[-1] == 1
