"""The real jobs on gradients that are multiples of 1/8: what every replica holds and what is owed are known exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

import numpy as np
from pydantic import BaseModel

from ako_jobs import ako, all_to_all, parameter_server, sparse
from dataflow.engine.loading import LoadedNode
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.specs import ElementSpec
from dataflow.node_context import NodeContext
from dataflow.operators_api import qualified_name
from dataflow.state import StateElement
from operators.clocks import ClocksState
from operators.coded_window import CodedWindowState
from operators.compression import Residual
from operators.compute import Compute, Part
from operators.ledger import Ledger, PeersLedgerState
from operators.messages import Batch, Vector
from operators.vector_state import Replica, Shard, ShardState, VectorState
from tests.known_answers.integers import integer_gradient

NODES, RATE = 4, 0.5
SETTINGS: dict[str, Any] = {
    "model": "mlp",
    "batch": 30,
    "epochs": 1,
    "lr": RATE,
    "warm_start": 0,
    "normalise": False,
    "seed": 3,
}
STEPS = 11
"""Of each of 4 workers: 1,442 training images less 144 held out are 324 for each, in mini-batches of 30."""
WEIGHTS = 7510
"""64 x 100 and 100 x 10 weights, and 110 biases."""

CODECS = ("threshold:tau=0.5", "threshold:tau=0.25:most=fit", "topk:density=0.01", "fp16")

ROUNDING = {"int8": 1e-3, "onebit": 1e-3}
"""Codecs whose numbers are no sums of few powers of two, and by what sums of all gradients may be off for rounding.

What a gradient adds to a weight, if anything, is a sixteenth or more.
"""

FALLING = {"schedule": "step", "milestones": "0.5", "gamma": 0.5}

JOBS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ako p=1 every=1": (ako, {"p": 1, "every": 1}),
    "ako p=3 every=1": (ako, {"p": 3, "every": 1}),
    "ako p=1 every=4": (ako, {"p": 1, "every": 4}),
    "ako p=3 every=4": (ako, {"p": 3, "every": 4, "tau": 0}),
    "ako live": (ako, {}),
    "ako, falling rate": (ako, {"p": 3, "every": 2, **FALLING}),
    "all_to_all bsp": (all_to_all, {"consistency": "bsp"}),
    "all_to_all ssp": (all_to_all, {"consistency": "ssp", "tau": 1}),
    "all_to_all async": (all_to_all, {"consistency": "async"}),
    "all_to_all async, falling rate": (all_to_all, {"consistency": "async", **FALLING}),
    "parameter_server bsp": (parameter_server, {"consistency": "bsp", "servers": "all"}),
    "parameter_server ssp": (parameter_server, {"consistency": "ssp", "tau": 1, "servers": "all"}),
    "parameter_server async": (parameter_server, {"consistency": "async", "servers": "all", "n_push": 2, "n_fetch": 4}),
    "sparse synchronous": (sparse, {"consistency": "ssp", "tau": 0}),
    "sparse ssp": (sparse, {"consistency": "ssp", "tau": 2}),
    "sparse async": (sparse, {"consistency": "async"}),
}

WAYS = (
    "ako p=3 every=1",
    "all_to_all bsp",
    "all_to_all async",
    "parameter_server bsp",
    "parameter_server async",
    "sparse async",
)
"""Jobs of which each takes coded gradients a way of its own: as the others of `JOBS` do, but for when they are sent."""


class ExactCompute(Compute):
    """Makes gradients that are known, and none beyond number `pause`."""

    pause: int | None = None

    def ready(self, clocks: ClocksState) -> bool:
        return clocks.made != self.pause and Compute.ready(self, clocks)

    def process(
        self, batch: Batch, replica: Vector, statistics: Vector, clocks: ClocksState, node: NodeContext
    ) -> Part:
        gradient = known_gradient(node.index, clocks.made + 1).copy()
        share = gradient if not batch.shard else np.zeros_like(gradient)
        rate, images = self._rate(batch, clocks, node), len(batch.images)
        return Part(share, statistics, images, 0.0, batch.size, rate, batch.epoch, batch.of_all, clocks.lag())


@cache
def known_gradient(node: int, number: int) -> Vector:
    """Multiples of 1/8 from -1 to 1: of sums of so few, and of half of them, no float32 rounds any. To be read only."""
    gradient: Vector = (integer_gradient(node, number, WEIGHTS) / 8).astype(np.float32)
    gradient.flags.writeable = False
    return gradient


def coded_job(job: str, codec: str, *, pause: int | None = None, **settings: Any) -> LogicalGraph:
    """The graph of one of `JOBS`, whose weights begin at zero and whose gradients are known."""
    module, own = JOBS[job]
    config: BaseModel = module.Config.parse({**SETTINGS, **own, "codec": codec, **settings})
    graph: LogicalGraph = module.build(config)
    compute = Compute.model_validate_json(graph.operator("compute").params)
    elements = tuple(_from_zeros(each) for each in graph.elements)
    graph = graph.replace("compute", ExactCompute(pause=pause, **{name: getattr(compute, name) for name in _FIELDS}))
    return graph.model_copy(update={"elements": elements})


class ZeroReplica(Replica):
    """A replica that begins with zeros."""

    def create(self, node: NodeContext) -> VectorState:
        return VectorState(np.zeros(WEIGHTS, np.float32))


class ZeroShard(Shard):
    """A shard that begins with zeros."""

    def create(self, node: NodeContext) -> ShardState:
        shard = super().create(node)
        shard.values[:] = 0
        return shard


class ZeroLedger(Ledger):
    """The ledger of replicas that begin with zeros."""

    def create(self, node: NodeContext) -> PeersLedgerState:
        return PeersLedgerState(np.zeros(WEIGHTS, np.float32), self.owed, node, local=self.local)


_ZERO: dict[str, type[StateElement]] = {
    qualified_name(Replica): ZeroReplica,
    qualified_name(Shard): ZeroShard,
    qualified_name(Ledger): ZeroLedger,
}


def _from_zeros(element: ElementSpec) -> ElementSpec:
    """The element, but for where it begins."""
    factory = _ZERO.get(element.factory)
    return element.model_copy(update={"factory": qualified_name(factory)}) if factory else element


_FIELDS = tuple(Compute.model_fields)


def owed(node: LoadedNode) -> np.ndarray:
    """What a worker owes: of updates if it has applied its own, else of gradients."""
    for state in node.states.values():
        if isinstance(state, Residual):
            return state.values
        if isinstance(state, CodedWindowState):
            return state.residual.values
    raise LookupError


def applies_whole(job: str) -> bool:
    """Whether workers apply their own gradients whole, so that a replica holds what its node owes, too."""
    return job.startswith(("ako", "all_to_all")) and "bsp" not in job


def assert_sum_is_exact(
    job: str, nodes: Sequence[LoadedNode], steps: int = STEPS, *, atol: float = 0.0, lives: int = 1
) -> None:
    """Every replica and what workers owe are the sum of all gradients, to the last bit unless `atol` says otherwise."""
    whole = applies_whole(job)
    counts = [steps] * NODES
    if job.startswith("parameter_server") and "bsp" not in job:  # whoever is first makes them
        counts = [cast("ClocksState", node.states["clocks"]).made for node in nodes]
        # What is made between two answers is beyond the end, once more each time that it was gone on from there.
        assert abs(sum(counts) - NODES * steps) <= 8 * NODES * lives
    made = [
        sum((_rate(job, number) if whole else 1.0) * known_gradient(node, number) for number in range(1, count + 1))
        for node, count in enumerate(counts)
    ]
    sent = [each - owed(node) for each, node in zip(made, nodes, strict=True)]
    everything = np.sum(sent, axis=0)
    assert everything.any()
    for index, node in enumerate(nodes):
        clocks = node.states["clocks"]
        assert isinstance(clocks, ClocksState)
        assert (clocks.made, clocks.rejected) == (counts[index], 0)
        want = everything + owed(node) if whole else RATE / (NODES if "bsp" in job else 1) * everything
        got = _values(node.states)
        np.testing.assert_allclose(got, -want.astype(np.float32), rtol=0, atol=atol, err_msg=f"node {index}")


def _rate(job: str, number: int) -> float:
    """The rate of a worker's gradient: half an epoch are the first 6 of 11 of each."""
    return RATE if "falling" not in job or number <= 6 else RATE / 2


def _values(states: Mapping[str, object]) -> np.ndarray:
    replica = states["replica"]
    assert isinstance(replica, VectorState)
    return replica.values
