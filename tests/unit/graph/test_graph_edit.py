from __future__ import annotations

import inspect

import pytest
from graph_samples import (
    Blur,
    Compute,
    GreyScale,
    Join,
    Model,
    Receive,
    Scale,
    Send,
    Source,
    Split,
    edges,
    exchange,
    pipeline,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.errors import GraphError
from dataflow.graph.checks import check
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_insert_after_splices_behind_the_port() -> None:
    graph = pipeline().insert_after("source", Blur(radius=2), name="soften")
    assert edges(graph) == {
        "source.batches -> soften.batches",
        "soften.blurred -> blur.batches",
        "blur.blurred -> compute.batches",
    }
    assert graph.operator("soften").params == '{"radius":2}'


def test_insert_after_leaves_the_original_unchanged() -> None:
    graph = pipeline()
    before = graph.model_dump_json()
    graph.insert_after("source", GreyScale())
    assert graph.model_dump_json() == before


def test_insert_after_default_name_is_the_class_in_snake_case() -> None:
    assert pipeline().insert_after("source", GreyScale()).operators[-1].id == "grey_scale"


def test_insert_after_takes_the_role_and_line_of_the_call() -> None:
    graph = pipeline().insert_after("source", GreyScale())
    added = graph.operator("grey_scale")
    assert (added.role, added.where) == ("worker", f"{__file__}:{line() - 2}")


def test_insert_after_port_with_two_targets_feeds_both() -> None:
    graph = pipeline().with_operator("second", Blur(), role="worker").connect("source", "second")
    graph = graph.insert_after("source", GreyScale())
    assert edges(graph) == {
        "source.batches -> grey_scale.batches",
        "grey_scale.grey -> blur.batches",
        "grey_scale.grey -> second.batches",
        "blur.blurred -> compute.batches",
    }
    assert len(graph.edges) == 4


def test_insert_before_port_with_two_sources_takes_both() -> None:
    graph = pipeline().with_operator("second", Source(), role="worker").connect("second", "blur")
    graph = graph.insert_before("blur", GreyScale())
    assert edges(graph) == {
        "source.batches -> grey_scale.batches",
        "second.batches -> grey_scale.batches",
        "grey_scale.grey -> blur.batches",
        "blur.blurred -> compute.batches",
    }
    assert len(graph.edges) == 4


def test_insert_before_a_sending_operator_stays_on_the_node() -> None:
    graph = exchange().insert_before("send", Scale())
    assert {"compute.gradients -> scale.gradients", "scale.scaled -> send.gradients"} <= edges(graph)
    assert [edge.name for edge in graph.edges if edge.route] == ["send.sent -> receive.arrived"]
    check(graph)


def test_insert_after_a_receiving_operator_stays_on_the_node() -> None:
    graph = exchange().insert_after("receive", Scale())
    assert {"receive.gradients -> scale.gradients", "scale.scaled -> apply.gradients"} <= edges(graph)
    check(graph)


@pytest.mark.parametrize(("method", "place"), [("insert_after", "send"), ("insert_before", "receive")])
def test_insert_on_a_stream_is_refused_with_the_places_that_fit(method: str, place: str) -> None:
    with pytest.raises(GraphError) as caught:
        getattr(exchange(), method)(place, Scale())
    assert str(caught.value) == (
        "the edge send.sent -> receive.arrived crosses nodes: nothing fits between sending and receiving "
        f"at {__file__}:{line() - 3}; use insert_before('send', ...) or insert_after('receive', ...)"
    )


def test_insert_where_nothing_is_connected_is_refused() -> None:
    with pytest.raises(GraphError, match=r"nothing is connected there \(got compute.gradients\)"):
        pipeline().insert_after("compute.gradients", Scale())


@pytest.mark.parametrize(
    ("operator", "ports"), [(Source(), "0 inputs and 1 outputs"), (Join(), "2 inputs and 1 outputs")]
)
def test_insert_operator_with_other_ports_is_refused(operator: Source | Join, ports: str) -> None:
    with pytest.raises(GraphError, match=f"{type(operator).__name__} has {ports}"):
        pipeline().insert_after("source", operator)


def test_insert_under_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(GraphError, match=r"another operator has that name already \(got blur\)"):
        pipeline().insert_after("source", Blur())


def test_replace_keeps_place_and_edges() -> None:
    old = pipeline()
    graph = old.replace("blur", Blur(radius=7))
    assert [operator.id for operator in graph.operators] == ["source", "blur", "compute"]
    assert graph.operator("blur").params == '{"radius":7}'
    assert old.operator("blur").params == '{"radius":1}'
    assert graph.edges == old.edges


def test_replace_binds_state() -> None:
    graph = pipeline().with_state("shadow", Model(), role="worker")
    graph = graph.replace("compute", Compute(), bind={"live": "shadow"})
    assert [use.element for use in graph.operator("compute").uses] == ["model", "shadow"]


def test_replace_without_a_port_in_use_is_refused_with_its_line() -> None:
    with pytest.raises(GraphError) as caught:
        pipeline().replace("blur", GreyScale())
    assert str(caught.value) == (
        f"there is no such output port of 'blur' (got blurred) at {__file__}:{line() - 2}; known: grey"
    )


def test_remove_joins_the_neighbours() -> None:
    old = pipeline()
    graph = old.remove("blur")
    assert [operator.id for operator in graph.operators] == ["source", "compute"]
    assert edges(graph) == {"source.batches -> compute.batches"}
    assert len(old.operators) == 3


def test_remove_at_an_end_takes_its_edges() -> None:
    assert edges(pipeline().remove("compute")) == {"source.batches -> blur.batches"}


def test_remove_undoes_insert() -> None:
    assert set(exchange().insert_before("send", Scale()).remove("scale").edges) == set(exchange().edges)


def test_remove_beside_a_stream_keeps_its_route() -> None:
    sender = exchange().insert_before("send", Send(), name="outer").remove("send")
    (edge,) = [edge for edge in sender.edges if edge.route]
    assert (edge.name, edge.route) == ("outer.sent -> receive.arrived", Route.ONE_TO_ALL)
    receiver = exchange().insert_after("receive", Receive(), name="inner").remove("receive")
    (edge,) = [edge for edge in receiver.edges if edge.route]
    assert (edge.name, edge.route) == ("send.sent -> inner.arrived", Route.ONE_TO_ALL)


def test_remove_beside_a_stream_keeps_loopback_and_key() -> None:
    graph = exchange().remove("apply").remove("receive").with_operator("owner", Receive(), role="worker")
    graph = graph.connect("send", "owner", route=Route.BY_OWNER, loopback=True, key="part")
    graph = graph.insert_before("send", Send(), name="outer").remove("send")
    (edge,) = [edge for edge in graph.edges if edge.route]
    assert (edge.source, edge.route, edge.loopback, edge.key) == ("outer", Route.BY_OWNER, True, "part")


def test_remove_between_two_streams_is_refused() -> None:
    graph = exchange().with_operator("relay", Send(), role="worker").with_operator("last", Receive(), role="worker")
    graph = graph.connect("send", "relay", route=Route.ONE_TO_ALL).connect("relay", "last", route=Route.ONE_TO_ANY)
    with pytest.raises(GraphError, match="an operator between two edges that cross nodes cannot be removed"):
        graph.remove("relay")


def test_remove_with_several_ports_in_use_is_refused() -> None:
    graph = pipeline().with_operator("split", Split(), role="worker")
    graph = graph.connect("source", "split").connect("split.left", "compute")
    with pytest.raises(GraphError, match="an operator with several ports cannot be removed from between others"):
        graph.remove("split")


def test_remove_with_an_edge_to_itself_drops_that_edge() -> None:
    graph = pipeline().connect("blur", "blur").remove("blur")
    assert edges(graph) == {"source.batches -> compute.batches"}


def test_remove_does_not_double_an_edge() -> None:
    graph = pipeline().connect("source", "compute").remove("blur")
    assert [edge.name for edge in graph.edges] == ["source.batches -> compute.batches"]


def linear(graph: LogicalGraph) -> list[str]:
    """Ids from the source on, along the local edges."""
    follows = {edge.source: edge.target for edge in graph.edges if edge.route is None}
    path = ["source"]
    while path[-1] in follows:
        path.append(follows[path[-1]])
    return path


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["after", "before", "replace", "remove"]), st.integers(0, 50)), max_size=12))
def test_edits_random_keep_a_linear_graph_valid(edits: list[tuple[str, int]]) -> None:
    graph, expected = pipeline(), ["source", "blur", "compute"]
    for number, (edit, choice) in enumerate(edits):
        middle = expected[1:-1]
        name = f"blur_{number}"
        if edit == "after":
            place = choice % (len(expected) - 1)
            graph = graph.insert_after(expected[place], Blur(), name=name)
            expected.insert(place + 1, name)
        elif edit == "before":
            place = 1 + choice % (len(expected) - 1)
            graph = graph.insert_before(expected[place], Blur(), name=name)
            expected.insert(place, name)
        elif middle:
            chosen = middle[choice % len(middle)]
            if edit == "replace":
                graph = graph.replace(chosen, Blur(radius=choice))
                assert graph.operator(chosen).params == f'{{"radius":{choice}}}'
            else:
                graph = graph.remove(chosen)
                expected.remove(chosen)
        check(graph)
        assert linear(graph) == expected
    assert LogicalGraph.model_validate_json(graph.model_dump_json()) == graph
