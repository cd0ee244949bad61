"""Operators of a user's own that drop mini-batches: nobody waits for the gradients that these do not become."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dataflow.engine.memory_driver import MemoryDriver
from dataflow.errors import OperatorError
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, Operator
from dataflow.plan.compile import compile_graph
from dataflow.ports import In, Out
from operators.messages import Batch
from tests.known_answers.rejoining import clocks_of
from tests.known_answers.training import BASE, job, replica

NODES = 3


class Drop(Operator):
    """Lets every `keeps`-th mini-batch of one node through, none with 0, and all of others."""

    node: int
    keeps: int
    batches = In(Batch)
    kept = Out(Batch)

    def process(self, batch: Batch, node: NodeContext) -> Emissions:
        if node.index != self.node or (self.keeps and batch.step % self.keeps == 0):
            yield self.kept(batch)


@pytest.mark.parametrize(
    ("topology", "settings", "keeps"),
    [
        ("ako", {"p": 1}, 2),
        ("ako", {"p": 1}, 0),
        ("ako", {"p": 2, "every": 2}, 2),
        ("ako", {"p": 1, "codec": "threshold"}, 2),
        ("all_to_all", {"consistency": "bsp"}, 2),
        ("all_to_all", {"consistency": "ssp"}, 0),
        ("parameter_server", {"consistency": "bsp"}, 2),
        ("parameter_server", {"consistency": "ssp"}, 2),
        ("sparse", {}, 2),
        ("tree", {}, 2),
    ],
)
def test_job_ends_however_many_mini_batches_one_node_drops(topology: str, settings: dict[str, Any], keeps: int) -> None:
    graph = job(topology, **settings).insert_after("source", Drop(node=1, keeps=keeps))
    run = MemoryDriver(compile_graph(graph, NODES, seed=BASE["seed"])).execute()
    workers = [node for node in run.nodes if "course" in node.states]
    made = [clocks_of(worker).made for worker in workers]
    if topology != "parameter_server" or settings["consistency"] == "bsp":
        assert made[1] == (-(-made[0] // keeps) if keeps else 0)
    assert made[0] > 0
    if topology in ("ako", "all_to_all") and "codec" not in settings:
        for worker in workers[1:]:
            np.testing.assert_allclose(replica(worker), replica(workers[0]), atol=1e-5)


@pytest.mark.parametrize("consistency", ["async", "ssp"])
def test_job_of_servers_fails_by_the_worker_of_which_no_gradient_comes(consistency: str) -> None:
    graph = job("parameter_server", consistency=consistency).insert_after("source", Drop(node=1, keeps=0))
    with pytest.raises(OperatorError, match=r"\d+ mini-batches were read, .* at node node-1, .*; look at"):
        MemoryDriver(compile_graph(graph, NODES, seed=BASE["seed"])).execute()


@pytest.mark.parametrize("images", [7, 9, 0])
def test_batch_with_other_images_has_as_many_as_labels(images: int) -> None:
    pixels, labels = np.zeros((8, 1, 2, 2), np.float32), np.zeros(8, np.int64)
    batch = Batch(0, 0, 1, pixels, labels, size=8, epoch_before=0.0, epoch=0.1, of_all=8)
    with pytest.raises(ValueError, match=f"{images} images in the place of 8"):
        batch.with_images(np.zeros((images, 1, 2, 2), np.float32))
