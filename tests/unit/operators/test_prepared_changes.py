"""Changes of a tree that a node is ready for: it makes those, and no others, and each when it is its turn."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dataflow.node_context import NodeContext
from dataflow.operators_api import Adjusted
from dataflow.testing.operator_harness import Harness
from operators.messages import Gradient
from operators.neighbours import Push
from operators.share_clocks import ShareClocks
from operators.shared_replica_state import SharedReplicaState
from operators.topology import Topology
from operators.tree_changes import PLANNED
from tests.unit.operators.test_shared_replica import messages, states, update

TURNED = ((0, 2), (1, 2))
"""A chain of three, in which 2 is in the middle."""


def stages(state: SharedReplicaState) -> list[tuple[int, str]]:
    """What a node tells of changes since it was last asked."""
    return [(told.adjustment, told.stage) for told in state.reports() if isinstance(told, Adjusted)]


@pytest.mark.parametrize("epoch", [6, 8, 1 << 32])
def test_change_that_is_prepared_is_made_when_somebody_speaks_of_its_own_number_alone(epoch: int) -> None:
    """Edges of newcomers have numbers of their own, higher than those of all changes."""
    one, other, _ = states(weights=512)
    one.prepare(7, TURNED)
    assert stages(one) == [(7, "ready")]
    update(other, 1.0)
    (sent,) = messages(other, 0)
    assert one.arrive(dataclasses.replace(sent, origin=2, epoch=epoch)) is None
    assert stages(one) == []
    assert set(one.sharing.sides) == {1}
    assert one.arrive(dataclasses.replace(sent, origin=2, epoch=7)) is not None
    assert stages(one) == [(7, "begun")]
    assert set(one.sharing.sides) == {2}


def test_gradient_of_a_planned_change_does_not_make_another_that_is_asked_for() -> None:
    """The planned one is made before, as a neighbour speaks of it; the other may still be dropped."""
    one, other, _ = states(weights=512, then=Topology(kind="edges", edges=TURNED))
    update(other, 1.0)
    (sent,) = messages(other, 0)
    told = one.arrive(dataclasses.replace(sent, origin=2, epoch=PLANNED))
    assert told is not None
    one.sharing.absorb(2, told)
    assert stages(one) == [(PLANNED, "begun"), (PLANNED, "settled")]
    one.prepare(2, ((0, 1), (1, 2)))
    push = Harness(
        Push(change_after=5),
        node=NodeContext(members={"worker": (0, 1, 2)}),
        states={"replica": one, "clocks": ShareClocks().create(NodeContext())},
    )
    push.send(Gradient(5, np.zeros(512, np.float32), 1))
    assert not push.emitted("adjusted")
    assert stages(one) == [(2, "ready")]
    one.decide(2, make=False)
    assert set(one.sharing.sides) == {2}


@pytest.mark.parametrize("number", [5, 9])
def test_planned_change_is_made_by_the_first_gradient_that_is_not_before_it(number: int) -> None:
    """A job that goes on from a checkpoint behind it begins with the tree of the start."""
    one, _, _ = states(weights=512, then=Topology(kind="edges", edges=TURNED))
    push = Harness(
        Push(change_after=5),
        node=NodeContext(members={"worker": (0, 1, 2)}),
        states={"replica": one, "clocks": ShareClocks().create(NodeContext())},
    )
    for number_now in (4, number, number + 1):
        push.send(Gradient(number_now, np.zeros(512, np.float32), 1))
    assert [each.stage for each in push.emitted("adjusted")] == ["begun"]
    assert set(one.sharing.sides) == {2}
