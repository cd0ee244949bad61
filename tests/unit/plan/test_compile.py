from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plan_samples import ako, all_to_all, parameter_server, worker

from dataflow.errors import PlanError
from dataflow.graph.logical import LogicalGraph
from dataflow.plan.compile import compile_graph
from dataflow.plan.physical import NodePlan, PhysicalPlan, StreamId, check_size

ROOT = Path(__file__).resolve().parents[3]


def test_compile_nodes_have_names_roles_and_pools() -> None:
    plan = compile_graph(parameter_server(), 3, compute_tasks=4, network_tasks=2, seed=7)
    assert plan.seed == 7
    assert plan.nodes == (
        NodePlan(index=0, name="node-0", roles=("worker",), compute_tasks=4, network_tasks=2),
        NodePlan(index=1, name="node-1", roles=("server",), compute_tasks=4, network_tasks=2),
        NodePlan(index=2, name="node-2", roles=("server",), compute_tasks=4, network_tasks=2),
    )
    assert plan.members() == {"worker": (0,), "server": (1, 2)}


def test_compile_role_everywhere_shares_nodes_in_graph_order() -> None:
    graph = worker("w").with_role("probe", 1)
    assert [node.roles for node in compile_graph(graph, 2).nodes] == [("worker", "probe"), ("worker",)]


def test_compile_names_given_are_used() -> None:
    assert [node.name for node in compile_graph(ako(), 2, names=("left", "right")).nodes] == ["left", "right"]


@pytest.mark.parametrize("names", [("a",), ("a", "b", "c"), ("a", "a")])
def test_compile_names_that_do_not_fit_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(PlanError, match="2 nodes need 2 different names"):
        compile_graph(ako(), 2, names=names)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"compute_tasks": 0}, "compute_tasks is at least 1 (got 0)"),
        ({"network_tasks": -1}, "network_tasks is at least 1 (got -1)"),
        ({"seed": -1}, "seed is at least 0 (got -1)"),
    ],
)
def test_compile_numbers_out_of_range_are_refused(options: dict[str, int], text: str) -> None:
    with pytest.raises(PlanError) as caught:
        compile_graph(ako(), 2, **options)  # type: ignore[arg-type]
    assert str(caught.value) == text


def test_compile_too_many_nodes_is_refused_before_any_is_made() -> None:
    with pytest.raises(PlanError) as caught:
        compile_graph(ako(), 10**12)
    assert str(caught.value) == "a plan has at most 100000 nodes (got 1000000000000); use fewer nodes"


def test_check_size_limits_are_inclusive() -> None:
    check_size(100_000, 10_000)
    with pytest.raises(PlanError, match="at most 100000 nodes"):
        check_size(100_001, 1)
    with pytest.raises(PlanError, match="at most 10000 operators"):
        check_size(1, 10_001)


def test_plan_with_too_many_operators_is_refused_from_json() -> None:
    plan = compile_graph(ako(), 1)
    operators = plan.graph.operators[:1] * 10_001
    text = plan.model_copy(update={"graph": plan.graph.model_copy(update={"operators": operators})}).model_dump_json()
    with pytest.raises(PlanError, match="at most 10000 operators"):
        PhysicalPlan.model_validate_json(text)


def test_plan_with_nodes_out_of_order_is_refused() -> None:
    plan = compile_graph(ako(), 2)
    with pytest.raises(PlanError, match="the nodes of a plan are not numbered from 0, in order"):
        PhysicalPlan(graph=plan.graph, nodes=plan.nodes[::-1], chains=plan.chains)


def test_compile_many_nodes_is_linear_in_their_number() -> None:
    plan = compile_graph(parameter_server(), 20_000)
    assert plan.members()["server"] == (19_998, 19_999)
    assert plan.links_from(19_999) == tuple(range(19_998))
    assert plan.links_from(0) == (19_998, 19_999)


def test_streams_of_one_role_are_all_ordered_pairs() -> None:
    plan = compile_graph(all_to_all(), 3)
    (edge,) = plan.stream_edges()
    assert plan.graph.edges[edge].name == "send.fragments -> receive.fragments"
    assert list(plan.streams()) == [
        StreamId(edge, 0, 1),
        StreamId(edge, 0, 2),
        StreamId(edge, 1, 0),
        StreamId(edge, 1, 2),
        StreamId(edge, 2, 0),
        StreamId(edge, 2, 1),
    ]


def test_streams_between_roles_go_both_ways_on_edges_of_their_own() -> None:
    plan = compile_graph(parameter_server(), 4)
    forth, back = plan.stream_edges()
    assert set(plan.streams()) == {StreamId(forth, w, s) for w in (0, 1) for s in (2, 3)} | {
        StreamId(back, s, w) for w in (0, 1) for s in (2, 3)
    }


@pytest.mark.parametrize("graph", [ako(), all_to_all(), parameter_server()], ids=lambda graph: graph.name)
def test_links_from_are_the_targets_of_streams(graph: LogicalGraph) -> None:
    plan = compile_graph(graph, 5)
    for node in range(5):
        assert plan.links_from(node) == tuple(sorted({s.target for s in plan.streams() if s.source == node}))


def test_chains_on_a_node_are_those_of_its_roles() -> None:
    plan = compile_graph(parameter_server(), 3)
    assert [chain.head for chain in plan.chains_on(0)] == ["source", "compute", "partition", "send", "receive", "apply"]
    assert [chain.head for chain in plan.chains_on(2)] == ["serve", "update", "reply"]


def test_json_round_trip_is_equal() -> None:
    for graph in (ako(), all_to_all(), parameter_server()):
        plan = compile_graph(graph, 4, seed=3)
        assert PhysicalPlan.model_validate_json(plan.model_dump_json()) == plan


def test_digest_is_the_same_in_processes_with_other_hash_seeds() -> None:
    program = (
        "from plan_samples import parameter_server; from dataflow.plan.compile import compile_graph; "
        "print(compile_graph(parameter_server(), 4).digest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1", "4242")
    }
    assert digests == {compile_graph(parameter_server(), 4).digest()}


def test_digest_is_64_hex_digits() -> None:
    assert len(bytes.fromhex(compile_graph(ako(), 1).digest())) == 32


def test_digest_does_not_depend_on_where_the_job_file_lies() -> None:
    plan = compile_graph(ako(), 2)
    text = plan.model_dump_json().replace(str(Path(__file__).parent), "/somewhere/else")
    moved = PhysicalPlan.model_validate_json(text)
    assert moved != plan
    assert moved.digest() == plan.digest()


OTHER_WORD = {
    "compute": "network",
    "network": "compute",
    "partial": "local",
    "local": "partitioned",
    "partitioned": "partial",
    "by-owner": "one-to-any",
    "by-destination": "one-to-any",
    "one-to-all": "one-to-any",
}


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every value in nested dicts and lists, with the way to it."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*path, key))
    else:
        yield path, value


def other(path: tuple[str | int, ...], value: Any) -> Any:
    """A different value that the field accepts."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if path[-1] in ("pool", "kind", "route") and value in OTHER_WORD:
        return OTHER_WORD[value]
    if path[-1] == "route":
        return "one-to-all"
    return "other" if value is None else value + "x"


def test_digest_changes_with_every_other_field() -> None:
    plan = compile_graph(parameter_server(), 4)
    tried = 0
    for path, value in leaves(plan.model_dump(mode="json")):
        if path[-1] in ("where", "index", "size"):  # a node's index is its place; sizes follow below
            continue
        data = plan.model_dump(mode="json")
        parent: Any = data
        for step in path[:-1]:
            parent = parent[step]
        parent[path[-1]] = other(path, value)
        assert PhysicalPlan.model_validate(data).digest() != plan.digest(), path
        tried += 1
    assert tried > 200
    sizes = [role.model_copy(update={"size": 2}) for role in plan.graph.roles]
    resized = plan.model_copy(update={"graph": plan.graph.model_copy(update={"roles": tuple(sizes)})})
    assert resized.digest() != plan.digest()
