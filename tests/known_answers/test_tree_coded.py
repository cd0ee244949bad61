"""Trees with a codec, of integers: at each message a neighbour's mirror and what its edge owes are the sum."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from dataflow.engine.memory_driver import MemoryDriver
from dataflow.plan.compile import compile_graph
from operators.compression import parse_codec
from operators.contribution import Contribution, Told
from operators.edge_codes import EdgeCodes
from operators.messages import Code, Vector
from operators.shared_replica_state import SharedReplicaState
from tests.known_answers.shared import TOPOLOGIES, assert_shared, tree_job

NODES, ROUNDS, WEIGHTS = 4, 7, 997

Mirrors = dict[int, list[Vector]]


@pytest.mark.parametrize("codec", ["threshold:tau=4", "threshold:tau=2:most=fit", "topk:density=0.05", "fp16"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_mirror_and_what_is_owed_are_the_sum_at_each_message(
    topology: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: Mirrors = defaultdict(list)
    heard: Mirrors = defaultdict(list)
    tell, arrive = EdgeCodes.codes, SharedReplicaState.arrive

    def watched_tell(edge: EdgeCodes, values: Vector, unit: float) -> list[tuple[int, int, Code]]:
        before, codes = edge.shadow.copy(), tell(edge, values, unit)
        np.testing.assert_array_equal(edge.shadow + edge.residual.values, values)
        assert codec == "fp16" or np.count_nonzero(edge.shadow - before) < WEIGHTS
        told[id(edge)].append(edge.shadow.copy())
        return codes

    def watched_arrive(state: SharedReplicaState, said: Contribution) -> Told | None:
        whole = arrive(state, said)
        if whole is not None and whole.total is not None and said.values.dtype == np.uint8:
            heard[said.origin * NODES + state.sharing.node].append(whole.total.values.copy())
        return whole

    monkeypatch.setattr(EdgeCodes, "codes", watched_tell)
    monkeypatch.setattr(SharedReplicaState, "arrive", watched_arrive)
    plan = compile_graph(tree_job(topology, codec=parse_codec(codec)), NODES)
    run = MemoryDriver(plan, order=np.random.default_rng(len(topology))).execute()
    assert_shared(run.nodes, ROUNDS, WEIGHTS)
    compared = 0
    for node, loaded in enumerate(run.nodes):
        replica = loaded.states["replica"]
        assert isinstance(replica, SharedReplicaState)
        for neighbour, edge in replica.messages.codes.items():
            mirrors = heard[node * NODES + neighbour]
            assert len(mirrors) == len(told[id(edge)])
            for shadow, mirror in zip(told[id(edge)], mirrors, strict=True):
                np.testing.assert_array_equal(mirror, shadow)
            compared += len(mirrors)
    assert compared >= NODES
