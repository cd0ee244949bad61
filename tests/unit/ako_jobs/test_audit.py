"""The audit of tree jobs: what it proves, and that it notices an update that is missing or counted twice."""

from __future__ import annotations

import numpy as np
import pytest

from ako_jobs.audit import audit, compare
from ako_jobs.jobs import load_job, prepare
from ako_jobs.models import network
from dataflow.errors import ConfigError, JobFailedError
from dataflow.node_context import NodeContext
from operators.layout import Layout
from operators.shared_replica import SharedReplica
from operators.shared_replica_state import SharedReplicaState
from operators.topology import Topology

SMALL = {"epochs": "0.1", "warm_start": "0"}


@pytest.mark.parametrize("topology", ["star", "twin_masters"])
def test_audit_of_a_tree_in_any_order_finds_all_updates_on_all_nodes(topology: str) -> None:
    """A tenth of an epoch are 4 mini-batches of a node: 1,298 images are 41 of 8 for each of four."""
    spec = prepare(load_job("tree"), {**SMALL, "topology": topology}, 4).spec
    found = audit(spec, order=11)
    assert found.updates == (4, 4, 4, 4)
    assert found.apart <= found.allowed < 1e-4


def test_audit_of_a_job_without_a_tree_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to audit"):
        audit(prepare(load_job("all_to_all"), SMALL, 2).spec)


def pair() -> list[SharedReplicaState]:
    """Two nodes, the first of which has made an update of 1 that both have."""
    element = SharedReplica(
        model=network("mlp", "digits", "uniform"), topology=Topology(), layout=Layout.of(8), consistency="eventual"
    )
    members = {"worker": (0, 1)}
    states = [element.begin(np.zeros(8, np.float32), NodeContext(index=node, members=members)) for node in (0, 1)]
    states[0].descend(np.ones(8, np.float32), 1.0, scale=True)
    states[1].sharing.absorb(0, states[0].sharing.sum_for(1))
    states[1].pull()
    return states


def test_comparison_of_nodes_with_the_same_updates_finds_nothing() -> None:
    assert compare(pair(), np.zeros(8)).updates == (1, 0)


def test_comparison_notices_an_update_that_a_node_lacks() -> None:
    states = pair()
    states[0].descend(np.ones(8, np.float32), 1.0, scale=True)
    with pytest.raises(JobFailedError, match="node 1 has 1 updates of node 0, which has pushed 2"):
        compare(states, np.zeros(8))


def test_comparison_notices_a_weight_that_no_update_explains() -> None:
    states = pair()
    states[1].values[3] += 0.01
    with pytest.raises(JobFailedError, match=r"differs by 0\.0099"):
        compare(states, np.zeros(8))
