"""When a node pauses and slows, against a plain look at its faults."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.sim.faults import Fault, NodeFails, NodePauses, NodeSlows
from dataflow.sim.pace import Pace

EIGHTHS = st.integers(0, 40).map(lambda eighths: eighths / 8)
LENGTHS = st.integers(1, 24).map(lambda eighths: eighths / 8)
FAULTS = st.lists(
    st.one_of(
        st.builds(NodePauses, node=st.just(1), at_s=EIGHTHS, for_s=LENGTHS),
        st.builds(NodeSlows, node=st.just(1), at_s=EIGHTHS, for_s=LENGTHS, factor=st.sampled_from([0.5, 2.0, 4.0])),
        st.builds(NodePauses, node=st.just(0), at_s=EIGHTHS, for_s=LENGTHS),
        st.builds(NodeFails, node=st.just(1), at_s=EIGHTHS),
    ),
    max_size=5,
)


def slowness(faults: list[Fault], at_s: float) -> float:
    """How many times as long the work of node 1 takes at a time."""
    mine = [
        math.inf if isinstance(fault, NodePauses) else fault.factor
        for fault in faults
        if isinstance(fault, NodePauses | NodeSlows)
        and fault.node == 1
        and fault.at_s <= at_s < fault.at_s + fault.for_s
    ]
    return math.prod(mine)


@settings(max_examples=300, deadline=None)
@given(faults=FAULTS, at_s=EIGHTHS)
def test_pace_at_a_time_is_that_of_all_faults_until_the_next_begins_or_ends(faults: list[Fault], at_s: float) -> None:
    pace = Pace(faults, 1)
    found, changes_s = pace.at(at_s)
    assert found == slowness(faults, at_s)
    assert changes_s > at_s
    for eighth in range(1, 80):
        if at_s + eighth / 8 < changes_s:
            assert slowness(faults, at_s + eighth / 8) == found
    assert pace.even or math.isinf(changes_s) or any(changes_s in (f.at_s, f.at_s + (f.for_s or 0)) for f in faults)  # type: ignore[union-attr]


def test_pace_of_a_node_without_faults_of_its_own_is_even() -> None:
    faults = [NodePauses(node=0, at_s=1, for_s=1), NodeFails(node=1, at_s=2)]
    assert Pace(faults, 1).even
    assert Pace(faults, 1).at(1.5) == (1.0, math.inf)
    assert not Pace(faults, 0).even
    assert Pace(faults, 0).at(1.5) == (math.inf, 2.0)
