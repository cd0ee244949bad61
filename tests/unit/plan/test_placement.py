from __future__ import annotations

import pytest

from dataflow.errors import PlanError
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.specs import Role, RoleSize
from dataflow.plan.placement import place


def roles(**sizes: RoleSize) -> LogicalGraph:
    return LogicalGraph(name="g", roles=tuple(Role(name=name, size=size) for name, size in sizes.items()))


@pytest.mark.parametrize(
    ("sizes", "nodes", "placed"),
    [
        ({"worker": "all"}, 3, {"worker": (0, 1, 2)}),
        ({"worker": 2, "server": 1}, 3, {"worker": (0, 1), "server": (2,)}),
        ({"worker": "rest", "server": 2}, 5, {"worker": (0, 1, 2), "server": (3, 4)}),
        ({"server": 2, "worker": "rest"}, 5, {"server": (0, 1), "worker": (2, 3, 4)}),
        ({"worker": "all", "server": 1}, 3, {"worker": (0, 1, 2), "server": (0,)}),
        ({"server": 1, "worker": "rest", "probe": "all"}, 2, {"server": (0,), "worker": (1,), "probe": (0, 1)}),
    ],
)
def test_place_roles_fit_takes_disjoint_runs(
    sizes: dict[str, RoleSize], nodes: int, placed: dict[str, tuple[int, ...]]
) -> None:
    assert place(roles(**sizes), nodes) == placed


@pytest.mark.parametrize(
    ("sizes", "nodes", "text"),
    [
        ({"w": "all"}, 0, "a job needs at least one node (got 0); give --nodes 1 or more"),
        ({"w": 3}, 2, "the roles of 'g' (w=3) need at least 3 nodes (got 2); give --nodes 3 or more"),
        (
            {"w": "rest", "s": 2},
            2,
            "the roles of 'g' (w=rest, s=2) need at least 3 nodes (got 2); give --nodes 3 or more",
        ),
        (
            {"w": 2},
            5,
            "the roles of 'g' leave 3 of 5 nodes without work (got 5); give --nodes 2, or make one role's size 'rest'",
        ),
        (
            {"w": "rest", "s": "rest"},
            4,
            "only one role can take the rest of the nodes (got ['w', 's']); give the others a number of nodes",
        ),
        ({"w": -1, "s": "rest"}, 4, "role 'w' has no nodes (got -1); give it at least 1"),
    ],
)
def test_place_roles_that_do_not_fit_are_refused(sizes: dict[str, RoleSize], nodes: int, text: str) -> None:
    with pytest.raises(PlanError) as caught:
        place(roles(**sizes), nodes)
    assert str(caught.value) == text
