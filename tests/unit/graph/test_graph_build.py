from __future__ import annotations

import inspect
from dataclasses import dataclass

import pytest
from graph_samples import Batch, Blur, Compute, Gradient, Model, Source, Split, exchange, pipeline

from dataflow.errors import GraphError
from dataflow.graph.logical import LogicalGraph, canonical_json
from dataflow.graph.routes import Route
from dataflow.graph.specs import InputSpec, OutputSpec, UseSpec, describe
from dataflow.message import Message
from dataflow.operators_api import Emissions, Gather, Operator
from dataflow.ports import In, Out
from dataflow.state import StateKind
from tests.idle import Idle


class Queued(Idle):
    batches = In(Batch, capacity=3, key="shard", latest=("step", "shard"))


class ReportsArrays(Idle):
    batches = In(Batch)
    gradients = Out(Gradient, reported=True)


@dataclass(frozen=True, slots=True)
class Scalars(Message):
    flag: bool
    name: str | None
    weight: float = 0.0


class ReportsScalars(Idle):
    batches = In(Batch)
    scalars = Out(Scalars, reported=True)


class Misspelt(Operator):
    batches = In(Batch)
    out = Out(Batch)

    def proces(self, batch: Batch) -> Emissions:
        yield self.out(batch)


class NeverMerges(Gather):
    batches = In(Batch)

    def process(self, batch: Batch) -> Batch:
        return batch


def here(offset: int = 0) -> str:
    """``file:line`` of the caller, moved by `offset` lines."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{__file__}:{frame.f_back.f_lineno + offset}"


def test_building_returns_new_graphs_and_leaves_the_old() -> None:
    empty = LogicalGraph(name="g")
    with_role = empty.with_role("worker")
    assert empty.roles == ()
    assert [role.name for role in with_role.roles] == ["worker"]


def test_describe_keeps_ports_flags_and_uses() -> None:
    spec = pipeline().operator("compute")
    assert spec.kind == "graph_samples:Compute"
    assert (spec.gather, spec.source, spec.sends, spec.receives, spec.pool) == (True, False, False, False, "compute")
    assert spec.inputs == (InputSpec(name="batches", type="graph_samples:Batch", capacity=8),)
    assert spec.outputs == (
        OutputSpec(name="gradients", types=("graph_samples:Gradient", "dataflow.message:Message")),
        OutputSpec(name="losses", types=("graph_samples:Loss", "dataflow.message:Message"), reported=True),
    )
    assert spec.uses == (
        UseSpec(name="model", element="model", writes=False),
        UseSpec(name="live", element="model", writes=True),
    )


def test_describe_keeps_parameters_as_json() -> None:
    assert describe("blur", Blur(radius=4), "worker", {}).params == '{"radius":4}'


def test_describe_keeps_queue_options() -> None:
    (port,) = describe("queued", Queued(), "worker", {}).inputs
    assert (port.capacity, port.key, port.latest) == (3, "shard", ("step", "shard"))


def test_describe_lineage_lists_the_type_then_its_bases() -> None:
    (port,) = describe("source", Source(), "worker", {}).outputs
    assert port.types == ("graph_samples:Batch", "dataflow.message:Sharded", "dataflow.message:Message")


def test_with_operator_binds_other_state() -> None:
    graph = pipeline().with_state("shadow", Model(), role="worker")
    graph = graph.with_operator("second", Compute(), role="worker", bind={"model": "shadow", "live": "shadow"})
    assert [use.element for use in graph.operator("second").uses] == ["shadow", "shadow"]


def test_with_operator_where_is_the_line_of_the_call() -> None:
    graph = pipeline().with_operator("b", Blur(), role="worker")
    assert graph.operator("b").where == here(-1)


def test_with_state_keeps_kind_and_parameters() -> None:
    graph = pipeline().with_state("wide", Model(width=9), role="worker")
    element = graph.elements[-1]
    assert (element.kind, element.factory, element.params) == (StateKind.PARTIAL, "graph_samples:Model", '{"width":9}')
    assert element.where == here(-3)


def test_connect_default_ports_are_the_only_ones() -> None:
    assert [edge.name for edge in pipeline().edges] == [
        "source.batches -> blur.batches",
        "blur.blurred -> compute.batches",
    ]


def test_connect_route_and_key_are_kept() -> None:
    graph = exchange()
    edge = next(edge for edge in graph.edges if edge.source == "send")
    assert (edge.route, edge.loopback, edge.key) == (Route.ONE_TO_ALL, False, None)


def test_connect_ambiguous_port_names_the_choices_and_the_line() -> None:
    graph = pipeline().with_operator("split", Split(), role="worker").with_operator("b", Blur(), role="worker")
    with pytest.raises(GraphError) as caught:
        graph.connect("split", "b")
    assert str(caught.value) == (
        f"which output port of 'split'? at {here(-2)}; write operator.port; ports: left, right"
    )


def test_connect_unknown_operator_suggests_the_nearest() -> None:
    with pytest.raises(GraphError) as caught:
        pipeline().connect("sorce", "blur")
    assert str(caught.value) == (
        f"there is no such operator (got sorce) at {here(-2)}; did you mean 'source'? known: blur, compute, source"
    )


def test_connect_unknown_port_suggests_the_nearest() -> None:
    with pytest.raises(GraphError, match=r"there is no such input port of 'blur' .*did you mean 'batches'"):
        pipeline().connect("source", "blur.batchs")


def test_connect_twice_is_refused() -> None:
    with pytest.raises(GraphError, match=r"the edge exists already \(got source.batches -> blur.batches\)"):
        pipeline().connect("source", "blur")


def test_connect_unknown_route_suggests_the_nearest() -> None:
    with pytest.raises(GraphError, match=r"there is no such route .*did you mean 'one-to-all'"):
        pipeline().connect("source", "compute", route="one-to-al")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "Worker", "9th", "a.b", "a-b", "a" * 65, "a\n"])
def test_names_malformed_are_refused(name: str) -> None:
    with pytest.raises(
        GraphError, match="the name of a role, state element or operator is a lower-case letter followed by at most 63"
    ):
        LogicalGraph(name="g").with_role(name)


def test_names_of_64_characters_are_accepted() -> None:
    assert LogicalGraph(name="g").with_role("a" * 64).roles[0].name == "a" * 64


def test_names_given_twice_are_refused() -> None:
    graph = pipeline()
    with pytest.raises(GraphError, match="another role has that name already"):
        graph.with_role("worker")
    with pytest.raises(GraphError, match="another state element has that name already"):
        graph.with_state("model", Model(), role="worker")
    with pytest.raises(GraphError, match="another operator has that name already"):
        graph.with_operator("blur", Blur(), role="worker")


@pytest.mark.parametrize("size", [0, -1, "some", 1.5])
def test_role_size_impossible_is_refused(size: object) -> None:
    with pytest.raises(GraphError, match="the size of role 'worker' is a number of nodes from 1, 'rest' or 'all'"):
        LogicalGraph(name="g").with_role("worker", size)  # type: ignore[arg-type]


def test_role_unknown_suggests_the_nearest() -> None:
    with pytest.raises(GraphError, match=r"there is no such role .*did you mean 'worker'"):
        pipeline().with_operator("b", Blur(), role="workers")


def test_bind_unknown_state_is_refused() -> None:
    with pytest.raises(GraphError, match=r"bind names no state the operator declares .*did you mean 'model'"):
        pipeline().with_operator("c", Compute(), role="worker", bind={"modle": "model"})


def test_operator_class_inside_a_function_is_refused_with_its_line() -> None:
    class Local(Operator):
        batches = In(Batch)

    with pytest.raises(GraphError) as caught:
        pipeline().with_operator("local", Local(), role="worker")
    assert caught.value.where == here(-5)
    assert "operator class Local is defined inside a function" in str(caught.value)


@pytest.mark.parametrize(("operator", "hook"), [(Misspelt(), "process"), (NeverMerges(), "merge")])
def test_operator_without_a_method_that_it_needs_is_refused_with_its_line(operator: Operator, hook: str) -> None:
    with pytest.raises(GraphError) as caught:
        pipeline().with_operator("lacks", operator, role="worker")
    assert caught.value.what == f"operator class {type(operator).__name__} does not define {hook}"
    assert caught.value.where == f"{__file__}:{inspect.getsourcelines(type(operator))[1]}"


def test_reported_output_of_arrays_is_refused() -> None:
    with pytest.raises(GraphError) as caught:
        pipeline().with_operator("r", ReportsArrays(), role="worker")
    assert str(caught.value).startswith(
        "output ReportsArrays.gradients is reported, but Gradient has fields that are not bool, int, float, str or "
        f"None: values at {__file__}:"
    )


def test_json_round_trip_is_equal() -> None:
    graph = exchange()
    assert LogicalGraph.model_validate_json(graph.model_dump_json()) == graph


def test_canonical_json_ignores_where_and_nothing_else() -> None:
    graph = exchange()
    moved = graph.model_copy(
        update={
            "operators": tuple(o.model_copy(update={"where": "/elsewhere.py:1"}) for o in graph.operators),
            "elements": tuple(e.model_copy(update={"where": "/elsewhere.py:2"}) for e in graph.elements),
        }
    )
    assert canonical_json(moved) == canonical_json(graph)
    assert "where" not in canonical_json(graph)
    assert canonical_json(graph.model_copy(update={"name": "other"})) != canonical_json(graph)


def test_canonical_json_small_graph_is_this_text() -> None:
    assert canonical_json(LogicalGraph(name="g").with_role("worker", 2)) == (
        '{"edges":[],"elements":[],"name":"g","operators":[],"roles":[{"name":"worker","size":2}],"tensor_scale":1}'
    )


def test_reported_output_of_scalars_is_accepted() -> None:
    graph = pipeline().with_operator("r", ReportsScalars(), role="worker")
    assert graph.operator("r").outputs[0].reported
