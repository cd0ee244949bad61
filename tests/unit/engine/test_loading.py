"""Making a node's operators and state from a plan."""

import sys
from pathlib import Path

import pytest
from engine_rig import Count, Log, LogState, NetNote, Num, Piece, graph_of, nodes_of, received

from dataflow.engine.loading import load_node, message_types, resolve
from dataflow.errors import OperatorError, PlanError
from dataflow.graph.logical import LogicalGraph
from dataflow.message import Message
from dataflow.node_context import NodeContext
from dataflow.operators_api import Operator


class NoState(Log):
    def create(self, node: NodeContext) -> LogState:
        raise ValueError(f"not on node {node.index}")


def _roles() -> LogicalGraph:
    return (
        LogicalGraph(name="roles")
        .with_role("worker", 2)
        .with_role("server", "rest")
        .with_state("log", Log(), role="server")
        .with_operator("count", Count(limit=7), role="worker")
        .with_operator("note", NetNote(), role="server")
    )


def test_node_gets_the_operators_and_state_of_its_roles_only() -> None:
    plan = nodes_of(_roles(), 3, compute_tasks=2, seed=9)
    worker, server = load_node(plan, 1), load_node(plan, 2, incarnation=4)
    assert worker.operators == {"count": Count(limit=7)}
    assert worker.states == {}
    assert list(server.operators) == list(server.contexts) == ["note"]
    assert list(server.states) == ["log"]
    assert server.contexts["note"] == NodeContext(
        index=2,
        name="node-2",
        role="server",
        members={"worker": (0, 1), "server": (2,)},
        tasks=2,
        seed=9,
        incarnation=4,
    )
    assert (server.contexts["note"].rank, worker.contexts["count"].rank) == (0, 1)


def test_every_node_has_state_of_its_own() -> None:
    plan = nodes_of(received(), 2)
    first, second = load_node(plan, 0), load_node(plan, 1)
    assert first.states["log"] is not second.states["log"]


def test_message_types_are_those_of_the_edges_that_cross_nodes() -> None:
    assert message_types(nodes_of(received(), 2)) == {0: Num}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no_such_module:X", "no_such_module:X cannot be imported: ModuleNotFoundError"),
        ("engine_rig:NoSuch", "engine_rig:NoSuch cannot be imported: AttributeError"),
        ("engine_rig:Num", "engine_rig:Num is not a kind of Operator"),
        ("engine_rig", "engine_rig is not a kind of Operator|engine_rig cannot be imported"),
    ],
)
def test_name_that_stands_for_no_operator_is_refused(name: str, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        resolve(name, Operator)


def test_name_of_a_subclass_resolves() -> None:
    assert resolve("engine_rig:Piece", Message) is Piece


def test_module_that_breaks_when_imported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_written_job.py").write_text("def (:\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(PlanError, match="half_written_job:X cannot be imported: SyntaxError"):
        resolve("half_written_job:X", Operator)


def test_parameters_that_the_class_refuses_name_the_operator() -> None:
    plan = nodes_of(graph_of({"count": Count(), "note": NetNote()}, [("count", "note")], ["log"]))
    spec = plan.graph.operator("count").model_copy(update={"params": '{"limit": "many"}'})
    graph = plan.graph.model_copy(update={"operators": (spec, *plan.graph.operators[1:])})
    with pytest.raises(OperatorError, match="'count' refuses its parameters"):
        load_node(plan.model_copy(update={"graph": graph}), 0)


def test_state_that_cannot_be_made_names_the_element_and_the_node() -> None:
    graph = LogicalGraph(name="none").with_role("worker").with_state("log", NoState(), role="worker")
    with pytest.raises(OperatorError, match="state element 'log' raised ValueError: not on node 0") as caught:
        load_node(nodes_of(graph), 0)
    assert caught.value.where.startswith(f"node node-0, {__file__}:")
