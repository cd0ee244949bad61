"""Workers of every topology that leave by request while they train: nobody waits for them, and nothing is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ako_jobs import ako, all_to_all, parameter_server, sparse
from dataflow.engine.memory_driver import MemoryDriver, MemoryRun
from dataflow.plan.compile import compile_graph
from dataflow.reports import OperatorReport
from tests.known_answers.coded import SETTINGS
from tests.known_answers.rejoining import clocks_of, values


def drained(graph: Any, nodes: int, leaver: int, after: int) -> tuple[MemoryRun, int]:
    """A run in which a node is asked to leave after so many deliveries; and how many gradients it had made then."""

    class Leaver(MemoryDriver):
        asked = 0

        def _step(self) -> bool:
            if not self.asked and self.run.deliveries > after:
                self.asked = clocks_of(self.run.nodes[leaver]).made
                self.leave(leaver)
            return super()._step()

    driver = Leaver(compile_graph(graph, nodes))
    run = driver.execute()
    assert driver.asked
    assert run.buried == {leaver}
    lost = [engine.statistics().samples.get("apply.lost_gradients") for engine in driver.engines]
    assert lost == [None] * nodes
    return run, driver.asked


@pytest.mark.parametrize("codec", ["none", "topk:density=0.1"])
@pytest.mark.parametrize("consistency", ["bsp", "ssp", "async"])
def test_worker_of_parameter_servers_leaves_and_the_others_end_with_one_model(consistency: str, codec: str) -> None:
    config = parameter_server.Config.parse(
        {**SETTINGS, "servers": 2, "lr": 0.01, "consistency": consistency, "codec": codec}
    )
    run, asked = drained(parameter_server.build(config), 5, 1, 150)
    made = clocks_of(run.nodes[1]).made
    assert asked <= made < clocks_of(run.nodes[0]).made
    np.testing.assert_array_equal(values(run.nodes[0]), values(run.nodes[2]))
    if consistency == "async":
        for server in run.nodes[3:]:
            pulls: Any = server.states["pulls"]
            assert {pushed[1] for pushed in pulls.pushed.values()} == {made}


@pytest.mark.parametrize(
    ("job", "settings"),
    [(ako, {"p": 2}), (ako, {"p": 2, "codec": "topk:density=0.1"}), (all_to_all, {"consistency": "bsp"}), (sparse, {})],
)
def test_worker_leaves_its_peers_who_divide_its_data(job: Any, settings: dict[str, object]) -> None:
    config = job.Config.parse({**SETTINGS, "lr": 0.01, **settings})
    run, _ = drained(job.build(config), 3, 0, 120)
    assert clocks_of(run.nodes[0]).made < clocks_of(run.nodes[1]).made
    course: Any = run.nodes[1].states["course"]
    assert course.sharing == (1, 2)
    assert "model.safetensors" in run.artifacts
    assert [clocks_of(node).rejected for node in run.nodes] == [0, 0, 0]
    last: OperatorReport = run.reports[-1][1]
    assert (run.reports[-1][0], last.port, last.fields["final"]) == (1, "validate.results", True)
    assert last.fields["step"] == clocks_of(run.nodes[1]).made
