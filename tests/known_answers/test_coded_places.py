"""Parameter servers with a codec: places that nobody has, and workers that come back before they have pushed."""

from __future__ import annotations

import numpy as np
import pytest

from dataflow.engine.memory_driver import MemoryDriver
from dataflow.plan.compile import compile_graph
from dataflow.plan.job import JobSpec
from tests.known_answers.coded import assert_sum_is_exact, coded_job, owed
from tests.known_answers.rejoining import Dying, values

SERVED = ("parameter_server async", "parameter_server ssp", "parameter_server bsp")
CODEC = "threshold:tau=0.5"


@pytest.mark.parametrize("job", SERVED)
def test_job_with_vacant_places_ends_with_the_sum_of_all_gradients(job: str) -> None:
    graph = coded_job(job, CODEC, servers=1)
    plan = JobSpec(name="roomy", graph=graph, nodes=5, max_nodes=7).plan()
    assert plan.vacant == (4, 5)
    run = MemoryDriver(plan, order=np.random.default_rng(3)).execute()
    assert_sum_is_exact(job, run.nodes[:4])
    assert not owed(run.nodes[4]).any()


@pytest.mark.parametrize("job", SERVED)
@pytest.mark.parametrize("dies", [1, 2, 4, 8, 16])
def test_worker_that_comes_back_before_it_has_pushed_is_answered(job: str, dies: int) -> None:
    plan = compile_graph(coded_job(job, CODEC, servers=1), 5)
    driver = Dying(plan, [(dies, 1), (dies + 1, 1)], order=np.random.default_rng(dies))
    nodes = driver.execute().nodes
    assert driver.incarnations[1] == 1
    for node in (1, 2, 3):
        np.testing.assert_array_equal(values(nodes[node]), values(nodes[0]))
