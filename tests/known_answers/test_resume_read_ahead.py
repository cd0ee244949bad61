"""State of operators between source and compute, which read ahead: a resumed job goes on with what compute had had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dataflow.engine.memory_driver import MemoryDriver
from dataflow.errors import OperatorError
from dataflow.graph.logical import LogicalGraph
from dataflow.node_context import NodeContext
from dataflow.operators_api import Adjustment, Emissions, Operator
from dataflow.plan.compile import compile_graph
from dataflow.ports import In, Out
from dataflow.state import State, StateElement, Writes
from operators.messages import Batch
from tests.known_answers.test_resume_memory import by_number, resumed
from tests.known_answers.training import BASE, job, replica


class SeenState(State):
    """Mini-batches and images that were seen, and a sum of random numbers."""

    def __init__(self) -> None:
        self.seen, self.mean, self.drawn = np.zeros(2, np.int64), np.zeros(4, np.float32), np.zeros(1)

    def tensors(self) -> dict[str, np.ndarray]:
        return {"seen": self.seen, "mean": self.mean, "drawn": self.drawn}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        self.seen, self.mean, self.drawn = (tensors[name].copy() for name in ("seen", "mean", "drawn"))


class Seen(StateElement):
    def create(self, node: NodeContext) -> SeenState:
        return SeenState()


class Whiten(Operator):
    """Takes a running mean off the images, and drops every `drops`-th mini-batch."""

    drops: int = 0
    batches = In(Batch)
    whitened = Out(Batch)
    seen = Writes()

    def process(self, batch: Batch, seen: SeenState, rng: np.random.Generator) -> Emissions:
        seen.seen += (1, len(batch.images))
        seen.mean += (batch.images.mean() - seen.mean) / seen.seen[0]
        seen.drawn += rng.random()
        if not self.drops or seen.seen[0] % self.drops:
            yield self.whitened(batch.with_images(batch.images - seen.mean[0]))


class Behind(Whiten):
    """A chain of its own, as it has a queue of its own."""

    batches = In(Batch, key="step")


def graph_of(topology: str, whiten: Operator, **settings: Any) -> LogicalGraph:
    graph = job(topology, checkpoint_every=64, **settings).with_state("seen", Seen(), role="worker")
    return graph.insert_after("source", whiten)


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize(
    ("topology", "settings", "nodes"),
    [("ako", {}, 1), ("all_to_all", {"consistency": "bsp"}, 3), ("parameter_server", {"consistency": "bsp"}, 3)],
)
@pytest.mark.parametrize("whiten", [Whiten(), Behind(), Whiten(drops=3)], ids=["chained", "apart", "drops"])
def test_state_that_is_ahead_of_compute_goes_on_from_where_compute_was(
    whiten: Whiten, topology: str, settings: dict[str, Any], nodes: int, tasks: int
) -> None:
    graph = graph_of(topology, whiten, **settings)
    of = compile_graph(graph, nodes, seed=BASE["seed"], compute_tasks=tasks)
    whole = MemoryDriver(of).execute()
    kept = [snapshots for snapshots in by_number(whole).values() if len(snapshots) == nodes]
    assert len(kept) >= 3
    for snapshots in (kept[0], kept[len(kept) // 2]):
        again = MemoryDriver(of, nodes=resumed(snapshots, of, of)).execute()
        for before, after in zip(whole.nodes, again.nodes, strict=True):
            if "seen" in before.states:
                for name, expected in before.states["seen"].tensors().items():
                    np.testing.assert_array_equal(after.states["seen"].tensors()[name], expected, err_msg=name)
                np.testing.assert_array_equal(replica(after), replica(before))


class CorrectedState(SeenState):
    """Makes up itself for what was ahead."""

    def resume(self, tensors: Mapping[str, np.ndarray], node: int, steps: Mapping[int, int]) -> None:
        self.restore(tensors)
        self.seen[0] = steps[node]


class Corrected(StateElement):
    def create(self, node: NodeContext) -> CorrectedState:
        return CorrectedState()


@pytest.mark.parametrize(("element", "ahead"), [(Seen(), 0), (Corrected(), 2)])
def test_only_state_that_makes_up_for_it_itself_is_kept_as_far_ahead_as_it_is(
    element: StateElement, ahead: int
) -> None:
    graph = job("ako", checkpoint_every=64).with_state("seen", element, role="worker")
    run = MemoryDriver(compile_graph(graph.insert_after("source", Whiten()), 1, seed=BASE["seed"])).execute()
    assert [snapshot.tensors["seen/seen"][0] - snapshot.steps for snapshot in run.snapshots[:3]] == [ahead] * 3


class Told(Operator):
    """Notes changes of the job, and passes on mini-batches as they are; a chain of its own."""

    batches = In(Batch, key="step")
    passed = Out(Batch)
    seen = Writes()

    def process(self, batch: Batch) -> Emissions:
        yield self.passed(batch)

    def on_adjust(self, adjustment: Adjustment, seen: SeenState) -> Emissions:
        seen.seen[0] += adjustment.number
        yield from ()


def test_state_that_no_mini_batch_changes_is_kept_as_it_is() -> None:
    graph = graph_of("ako", Told())
    driver = MemoryDriver(compile_graph(graph, 1, seed=BASE["seed"]))
    driver.adjust(Adjustment(7, "prepare", ""))
    assert [snapshot.tensors["seen/seen"][0] for snapshot in driver.execute().snapshots[:3]] == [7] * 3


class UnkeepableState(SeenState):
    """Cannot be kept once it has seen a few mini-batches."""

    def tensors(self) -> dict[str, np.ndarray]:
        if self.seen[0] > 2:
            raise NotImplementedError
        return super().tensors()


class Unkeepable(StateElement):
    def create(self, node: NodeContext) -> UnkeepableState:
        return UnkeepableState()


def test_state_that_cannot_be_kept_fails_only_jobs_that_keep_checkpoints() -> None:
    def of(**settings: Any) -> MemoryDriver:
        graph = job("ako", **settings).with_state("seen", Unkeepable(), role="worker")
        return MemoryDriver(compile_graph(graph.insert_after("source", Whiten()), 1, seed=BASE["seed"]))

    assert of().execute().ended == {0}
    with pytest.raises(OperatorError, match="'seen' raised NotImplementedError"):
        of(checkpoint_every=64).execute()
