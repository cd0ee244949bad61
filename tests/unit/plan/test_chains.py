"""One test per rule of `chains`: each starts from a run that is fused and breaks it by that rule alone."""

from __future__ import annotations

from typing import Any

import pytest
from plan_samples import Apply, Batch, Blur, Clocks, Compute, Model, Source, ako

from dataflow.errors import PlanError
from dataflow.graph.logical import LogicalGraph
from dataflow.operators_api import Operator
from dataflow.plan.compile import chains
from dataflow.plan.physical import ChainPlan
from dataflow.ports import In, Out
from dataflow.state import Reads, Writes
from tests.idle import Idle


class Watch(Idle):
    model = Reads()
    batches = In(Batch)
    watched = Out(Batch)


class Change(Idle):
    model = Writes()
    batches = In(Batch)
    changed = Out(Batch)


class Fork(Idle):
    batches = In(Batch)
    left = Out(Batch)
    right = Out(Batch)


def line(*operators: Operator) -> LogicalGraph:
    """Operators a, b, c, ... in a row, behind a source."""
    graph = LogicalGraph(name="g").with_role("worker").with_state("model", Model(), role="worker")
    graph = graph.with_state("clocks", Clocks(), role="worker").with_operator("source", Source(), role="worker")
    last = "source"
    for name, operator in zip("abcdefgh", operators, strict=False):
        graph = graph.with_operator(name, operator, role="worker").connect(last, name)
        last = name
    return graph


def changed(graph: LogicalGraph, operator: str, **fields: Any) -> LogicalGraph:
    operators = tuple(o.model_copy(update=fields) if o.id == operator else o for o in graph.operators)
    return graph.model_copy(update={"operators": operators})


def runs(graph: LogicalGraph) -> list[str]:
    return [" ".join(chain.operators) for chain in chains(graph)]


def test_chains_stateless_line_is_one_chain() -> None:
    assert chains(line(Blur(), Blur(), Blur())) == (
        ChainPlan(operators=("source", "a", "b", "c"), role="worker", pool="compute"),
    )


def test_chains_edge_that_crosses_nodes_is_not_fused() -> None:
    graph = line(Blur(), Blur())
    edges = (graph.edges[0], graph.edges[1].model_copy(update={"route": "one-to-all"}))
    assert runs(graph.model_copy(update={"edges": edges})) == ["source a", "b"]


def test_chains_target_with_two_edges_is_not_fused() -> None:
    graph = line(Blur(), Blur()).connect("source", "b")
    assert runs(graph) == ["source", "a", "b"]


def test_chains_source_with_two_edges_is_not_fused() -> None:
    graph = line(Blur()).with_operator("b", Blur(), role="worker").connect("source", "b")
    assert runs(graph) == ["source", "a", "b"]


def test_chains_source_with_edges_at_two_ports_is_not_fused() -> None:
    graph = line(Fork()).with_operator("b", Blur(), role="worker").with_operator("c", Blur(), role="worker")
    assert runs(graph.connect("a.left", "b")) == ["source a b", "c"]
    assert runs(graph.connect("a.left", "b").connect("a.right", "c")) == ["source a", "b", "c"]


def test_chains_other_pool_is_not_fused() -> None:
    assert runs(changed(line(Blur(), Blur()), "b", pool="network")) == ["source a", "b"]


def test_chains_nothing_is_fused_behind_a_gather() -> None:
    graph = line(Compute()).with_operator("apply", Apply(), role="worker", bind={"model": "model"})
    assert runs(graph.connect("a", "apply")) == ["source", "a", "apply"]
    assert runs(changed(line(Blur(), Blur()), "a", gather=True)) == ["source", "a", "b"]


def test_chains_sending_operator_is_not_fused() -> None:
    assert runs(changed(line(Blur(), Blur()), "b", sends=True)) == ["source a", "b"]


def test_chains_receiving_operator_starts_a_chain() -> None:
    graph = line(Blur(), Blur(), Blur())
    edges = tuple(
        edge.model_copy(update={"route": "one-to-all"}) if edge.target == "b" else edge for edge in graph.edges
    )
    assert runs(changed(graph, "b", receives=True).model_copy(update={"edges": edges})) == ["source a", "b c"]


@pytest.mark.parametrize("queue", [{"key": "shard"}, {"latest": ("step",)}])
def test_chains_port_with_queues_of_its_own_is_not_fused(queue: dict[str, Any]) -> None:
    graph = line(Blur(), Blur())
    port = graph.operator("b").inputs[0].model_copy(update=queue)
    assert runs(changed(graph, "b", inputs=(port,))) == ["source a", "b"]


def test_chains_gather_is_not_fused_with_what_feeds_it() -> None:
    assert runs(line(Blur(), Compute())) == ["source a", "b"]


def test_chains_source_that_feeds_a_gather_runs_beside_the_compute_tasks() -> None:
    assert [chain.pool for chain in chains(line(Blur(), Compute(), Blur()))] == ["network", "compute", "compute"]
    assert [chain.pool for chain in chains(changed(line(Blur(), Blur()), "b", sends=True))] == ["compute", "compute"]


def test_chains_element_written_and_then_read_is_not_fused() -> None:
    assert runs(line(Change(), Blur(), Watch())) == ["source a b", "c"]


def test_chains_element_read_and_then_written_is_not_fused() -> None:
    assert runs(line(Watch(), Blur(), Change())) == ["source", "a b", "c"]


def test_chains_element_only_written_is_fused() -> None:
    assert runs(line(Change(), Blur(), Change())) == ["source a b c"]


def test_chains_element_only_read_is_fused_behind_its_first_reader() -> None:
    assert runs(line(Blur(), Watch(), Blur(), Watch())) == ["source a", "b c d"]


def test_chains_different_elements_written_are_fused() -> None:
    graph = line(Change()).with_operator("b", Change(), role="worker", bind={"model": "clocks"}).connect("a", "b")
    assert runs(graph) == ["source a b"]


def test_chains_reader_of_what_nothing_before_it_uses_is_not_fused() -> None:
    assert runs(line(Blur(), Watch())) == ["source a", "b"]
    graph = line(Change()).with_operator("b", Watch(), role="worker", bind={"model": "clocks"}).connect("a", "b")
    assert runs(graph) == ["source a", "b"]


def test_chains_local_cycle_is_refused() -> None:
    with pytest.raises(PlanError, match="operators of 'g' form a cycle that stays on its node"):
        chains(line(Blur(), Blur()).connect("b", "a"))


def test_chains_of_ako_are_these() -> None:
    assert runs(ako()) == ["source", "compute", "accumulate partition", "send", "receive", "apply"]


def test_chains_order_is_the_graphs_order_of_heads() -> None:
    graph = line(Blur())
    reordered = graph.model_copy(update={"operators": tuple(reversed(graph.operators))})
    assert runs(reordered) == ["source a"]
    assert [chain.head for chain in chains(ako())] == ["source", "compute", "accumulate", "send", "receive", "apply"]
