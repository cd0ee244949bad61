"""Short training jobs on the embedded digits, and the plain loops that they must equal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from pydantic import PrivateAttr

from ako_jobs import ako, all_to_all, parameter_server, sparse, tree
from ako_jobs.worker import Setting
from dataflow.engine.events import Snapshot
from dataflow.engine.loading import LoadedNode
from dataflow.graph.logical import LogicalGraph
from dataflow.message import Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, EndOfData
from dataflow.ports import Emission
from operators.course import CourseState
from operators.dnn import Model
from operators.messages import Batch
from operators.roll import Present
from operators.source import Source
from operators.vector_state import VectorState

TOPOLOGIES = {
    "ako": ako,
    "all_to_all": all_to_all,
    "parameter_server": parameter_server,
    "sparse": sparse,
    "tree": tree,
}
BASE: dict[str, Any] = {"epochs": 0.25, "batch": 8, "lr": 0.02, "warm_start": 0, "holdout": 0.1, "seed": 3}


def job(topology: str, /, **settings: Any) -> LogicalGraph:
    module: Any = TOPOLOGIES[topology]
    graph: LogicalGraph = module.build(module.Config.parse({**BASE, **settings}))
    return graph


def replica(node: LoadedNode) -> np.ndarray:
    state = node.states["replica"]
    assert isinstance(state, VectorState)
    return state.values


def plain_sgd(workers: int = 1, *, corrected: bool = False, **settings: Any) -> np.ndarray:
    """What one machine without any engine computes: the weights after SGD over all mini-batches, with plain NumPy."""
    *_, weights = plain_steps(workers, corrected=corrected, **settings)
    return weights


def plain_steps(workers: int = 1, *, corrected: bool = False, **settings: Any) -> Iterator[np.ndarray]:
    """The weights after each step of `plain_sgd`.

    The gradient is the mean of those of the mini-batches that so many workers would read in a step. The velocity is
    `corrected` by having each gradient's rate in it (Goyal et al. 2017, 3, remark 2).
    """
    setting = Setting.of(ako.Config.parse({**BASE, **settings}))
    model = Model(setting.model)
    weights = model.initial(np.random.default_rng(np.random.SeedSequence(setting.config.seed, spawn_key=(0,))))
    config, members = setting.config, {"worker": tuple(range(workers))}
    momentum, decay = np.float32(config.momentum), np.float32(config.weight_decay)
    gradient, velocity = np.empty_like(weights), np.zeros_like(weights)
    statistics = model.initial_statistics()
    nodes = [NodeContext(index=index, members=members, seed=config.seed) for index in range(workers)]
    for number, step in enumerate(zip(*(batches(setting, node) for node in nodes), strict=True), start=1):
        total = np.zeros_like(weights)
        for batch in step:
            workspace = model.workspace(max(1, len(batch.images)))
            model.gradient(
                weights,
                batch.images,
                batch.labels,
                gradient,
                workspace,
                1.0 / len(batch.images),
                statistics=statistics,
                seed=0,
            )
            total += gradient
        mean = total / np.float32(workers) + decay * weights
        rate = np.float32(setting.schedule.at(number, workers))
        added = rate * mean if corrected else mean
        velocity = momentum * velocity + added
        direction = added + momentum * velocity if config.nesterov else velocity
        weights -= direction if corrected else rate * direction
        yield weights.copy()


def checkpoints(snapshots: Iterable[Snapshot], node: int = 0) -> dict[int, Mapping[str, np.ndarray]]:
    """The tensors that a node has kept, by the steps it had made."""
    return {each.steps or 0: each.tensors for each in snapshots if each.node == node}


def batches(setting: Setting, node: NodeContext) -> Iterator[Batch]:
    """The normalised mini-batches of one node."""
    config = setting.config
    source = Source(data=setting.data, batch=config.batch, epochs=config.epochs, holdout=config.holdout)
    source.open(node)
    step, course = 0, CourseState()
    while True:
        (effect,) = source.process(Tick(step, 0, 1), Present(settled=True), course, node)
        if isinstance(effect, EndOfData):
            return
        assert isinstance(effect, Emission)
        assert isinstance(effect.message, Batch)
        assert setting.normalise is not None
        yield effect.message.with_images(setting.normalise.apply(effect.message.images))
        step += 1


def plain_sparse(workers: int, tau: float, **settings: Any) -> tuple[np.ndarray, list[np.ndarray]]:
    """Synchronous SGD with error feedback, with plain NumPy: the weights, and what every worker owes in the end.

    In each step every worker owes its gradient more, and sends plus or minus tau of every weight that is owed more than
    that; the weights move by the learning rate times what all have sent (strom_sparse_sgd.txt 2.6).
    """
    setting = Setting.of(ako.Config.parse({**BASE, **settings}))
    model = Model(setting.model)
    weights = model.initial(np.random.default_rng(np.random.SeedSequence(setting.config.seed, spawn_key=(0,))))
    members = {"worker": tuple(range(workers))}
    nodes = [NodeContext(index=index, members=members, seed=setting.config.seed) for index in range(workers)]
    threshold, residuals = np.float32(tau), [np.zeros_like(weights) for _ in nodes]
    for number, step in enumerate(zip(*(batches(setting, node) for node in nodes), strict=True), start=1):
        quantum, before = np.float32(setting.schedule.at(number, workers)) * threshold, weights.copy()
        for batch, residual in zip(step, residuals, strict=True):
            gradient, workspace = np.empty_like(weights), model.workspace(len(batch.images))
            scale, statistics = 1.0 / len(batch.images), model.initial_statistics()
            model.gradient(
                before, batch.images, batch.labels, gradient, workspace, scale, statistics=statistics, seed=0
            )
            np.add(residual, gradient, out=residual)
            for sign in (1, -1):
                over = sign * residual > threshold
                residual[over] -= sign * threshold
                weights[over] -= sign * quantum
    return weights, residuals


class UnionSource(Source):
    """One node that reads, in each step, the mini-batches that `nodes` nodes would read."""

    nodes: int
    _sources: list[tuple[Source, NodeContext, CourseState]] = PrivateAttr(default_factory=list)

    def open(self, node: NodeContext) -> None:
        members = {"worker": tuple(range(self.nodes))}
        for index in range(self.nodes):
            source = Source(data=self.data, batch=self.batch, epochs=self.epochs, holdout=self.holdout)
            context = NodeContext(index=index, members=members, seed=node.seed)
            source.open(context)
            self._sources.append((source, context, CourseState()))

    def process(self, tick: Tick, roll: Present, course: CourseState, node: NodeContext) -> Emissions:
        parts: list[Batch] = []
        for source, context, each in self._sources:
            (effect,) = source.process(tick, roll, each, context)
            if isinstance(effect, EndOfData):
                course.closed = True
                yield EndOfData()
                return
            assert isinstance(effect, Emission)
            assert isinstance(effect.message, Batch)
            parts.append(effect.message)
        images = np.concatenate([part.images for part in parts])
        labels = np.concatenate([part.labels for part in parts])
        before, after, size = parts[0].epoch_before, parts[0].epoch, len(labels)
        yield self.batches(Batch(tick.step, 0, 1, images, labels, size, before, after, of_all=size))


def union_job(nodes: int, **settings: Any) -> LogicalGraph:
    """All-to-all BSP on one node that reads what `nodes` workers would."""
    graph = job("all_to_all", consistency="bsp", **settings)
    source = Source.model_validate_json(graph.operator("source").params)
    return graph.replace("source", UnionSource(nodes=nodes, **source.model_dump()))
