"""Parameter servers of integer gradients whose answers go through a codec; both ends note what they hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ako_jobs.parameter_server import add_servers
from dataflow.engine.loading import LoadedNode
from dataflow.graph.logical import LogicalGraph
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions
from dataflow.state import State, StateElement, Writes
from operators.apply import Load
from operators.clocks import Clocks, ClocksState
from operators.coded_window import CodedWindow
from operators.compression import Codec
from operators.layout import Layout, Sharding
from operators.messages import Vector, Weights
from operators.partition import PartitionByOwner
from operators.schedule import Schedule
from operators.send import SendChanges
from operators.serve import Serve, ServeMean
from operators.shadows import Shadows, ShadowsState
from operators.vector_state import VectorState
from operators.window import Window
from tests.known_answers.integers import IntegerCompute, Zeros, expected

WEIGHTS, LAYERS = 997, (0, 300, 640)

Mode = Literal["bsp", "ssp", "async"]


@dataclass
class NotesState(State):
    """By server, worker and run of cells, copies of a vector, one for each answer."""

    seen: dict[tuple[int, int, int, int], list[Vector]] = field(default_factory=lambda: defaultdict(list))

    def snapshot(self) -> NotesState:
        return self

    def tensors(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        self.seen.clear()


class Notes(StateElement):
    """Empty notes."""

    def create(self, node: NodeContext) -> NotesState:
        return NotesState()


class NotingChanges(SendChanges):
    """Asserts of each answer that the shadow and what is owed are the shard, and notes the shadow."""

    notes = Writes("sent")

    def process(self, weights: Weights, shadows: ShadowsState, node: NodeContext, notes: NotesState) -> Emissions:
        effect, *told = super().process(weights, shadows, node)
        run = weights.start, weights.stop
        shadow = shadows.shadow(weights.to, *run)
        owed = weights.values - shadow
        assert np.array_equal(4 * owed, np.round(4 * owed))
        assert np.array_equal(shadow + owed, weights.values)
        notes.seen[node.index, weights.to, *run].append(shadow.copy())
        yield effect
        yield from told


class NotingLoad(Load):
    """Notes what was pulled, after each answer."""

    notes = Writes("loaded")

    def process(
        self, weights: Weights, replica: VectorState, pulled: VectorState, clocks: ClocksState, notes: NotesState
    ) -> Emissions:
        yield from super().process(weights, replica, pulled, clocks)
        where = self.layout.weights(weights.start, weights.stop)
        assert np.array_equal(replica.values[where], pulled.values[where])
        key = weights.origin, weights.to, weights.start, weights.stop
        notes.seen[key].append(pulled.values[where].copy())


def pulls_job(
    consistency: Mode,
    codec: Codec,
    *,
    push_codec: Codec | None = None,
    servers: int | Literal["all"] = 1,
    by: Literal["range", "layer"] = "range",
    fetch: int = 1,
    rounds: int = 9,
) -> LogicalGraph:
    """The servers of a real job, between workers and shards of integers."""
    layout, schedule = Layout.of(WEIGHTS, cells=60, align=LAYERS), Schedule(lr=1)
    sharding = Sharding(layout=layout, by=by, layers=LAYERS)
    serve: Serve | ServeMean
    if consistency == "bsp":
        serve = ServeMean(sharding=sharding, schedule=schedule, codec=push_codec)
    else:
        tau = 1 if consistency == "ssp" else None
        serve = Serve(sharding=sharding, schedule=schedule, tau=tau, fetch_every=fetch, codec=push_codec)
    kept: Window | CodedWindow = Window(layout=layout, receivers="server", sharding=sharding)
    if push_codec:
        kept = CodedWindow(layout=layout, codec=push_codec, layers=LAYERS, receivers="server", sharding=sharding)
    zeros = Zeros(n_weights=WEIGHTS)
    graph = (
        LogicalGraph(name="pulls")
        .with_role("worker", "all" if servers == "all" else "rest")
        .with_role("server", servers)
        .with_state("replica", zeros, role="worker")
        .with_state("shard", zeros, role="server")
        .with_state("clocks", Clocks(cells=layout.cells, origins="server", sharding=sharding), role="worker")
        .with_state("sent", Notes(), role="server")
        .with_state("loaded", Notes(), role="worker")
        .with_operator(
            "compute",
            IntegerCompute(n_weights=WEIGHTS, rounds=rounds, slack=fetch - 1, local=fetch > 1),
            role="worker",
        )
    )
    graph = add_servers(
        graph,
        serve,
        kept,
        PartitionByOwner(sharding=sharding),
        schedule,
        shadows=Shadows(layout=layout, codec=codec, layers=LAYERS),
        copy=zeros if fetch > 1 else None,
        colocated=servers == "all",
    )
    load = NotingLoad(layout=layout, codec=codec)
    return graph.replace("answer", NotingChanges(schedule=schedule, mean=consistency == "bsp")).replace(
        "load", load, bind={"pulled": "pulled" if fetch > 1 else "replica"}
    )


def assert_pulled_exactly(nodes: list[LoadedNode], consistency: Mode, rounds: int = 9) -> None:
    """Every answer made of a worker's replica what its server thinks, and at last all of it is the exact sum."""
    workers = [node for node in nodes if "replica" in node.states]
    servers = [node for node in nodes if "shard" in node.states]
    sent = {key: seen for node in servers for key, seen in _notes(node, "sent").items()}
    loaded = {key: seen for node in workers for key, seen in _notes(node, "loaded").items()}
    assert sent.keys() == loaded.keys()
    assert {worker for _, worker, *_ in sent} == set(range(len(workers)))
    for key, shadows in sent.items():
        assert len(loaded[key]) - len(shadows) in (0, 1)  # at last, what was owed
        for shadow, pulled in zip(shadows, loaded[key], strict=False):
            np.testing.assert_array_equal(pulled, shadow)
    shard = sum(_values(node, "shard") for node in servers)
    for node in workers:
        np.testing.assert_array_equal(_values(node, "replica"), shard)
    owed = sum(node.states["window"].tensors().get("residual.values", 0) for node in workers)
    divisor = len(workers) if consistency == "bsp" else 1
    np.testing.assert_array_equal(shard, (expected(len(workers), rounds, WEIGHTS) + owed) / divisor)


def _notes(node: LoadedNode, name: str) -> dict[tuple[int, int, int, int], list[Vector]]:
    notes = node.states[name]
    assert isinstance(notes, NotesState)
    return notes.seen


def _values(node: LoadedNode, name: str) -> Vector:
    state = node.states[name]
    assert isinstance(state, VectorState)
    return state.values
