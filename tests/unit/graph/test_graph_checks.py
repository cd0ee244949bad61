from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from graph_samples import Apply, Blur, Compute, Gradient, Join, Model, Receive, Scale, Send, Source, exchange, pipeline

from dataflow.errors import GraphError
from dataflow.graph.checks import Problem, check, problems
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.graph.specs import Edge, Role
from dataflow.ports import In, Out


def changed(graph: LogicalGraph, operator: str, **fields: Any) -> LogicalGraph:
    """The graph with fields of one operator changed, as JSON might have them."""
    operators = tuple(o.model_copy(update=fields) if o.id == operator else o for o in graph.operators)
    return graph.model_copy(update={"operators": operators})


def with_edge(graph: LogicalGraph, **fields: Any) -> LogicalGraph:
    """The graph with an edge that `connect` might have refused."""
    return graph.model_copy(update={"edges": (*graph.edges, Edge(**fields))})


def unplaced(graph: LogicalGraph) -> LogicalGraph:
    """The graph without `where`, so that problems can be written out."""
    operators = tuple(o.model_copy(update={"where": f"job.py:{n}"}) for n, o in enumerate(graph.operators, start=1))
    elements = tuple(e.model_copy(update={"where": f"job.py:{n}"}) for n, e in enumerate(graph.elements, start=91))
    return graph.model_copy(update={"operators": operators, "elements": elements})


def found(graph: LogicalGraph) -> list[str]:
    """The graph's problems as text. Operators stand on lines 1, 2, ... of job.py, state elements on 91, ..."""
    return [str(problem) for problem in problems(unplaced(graph))]


@pytest.mark.parametrize("build", [pipeline, exchange])
def test_check_sound_graph_passes(build: Callable[[], LogicalGraph]) -> None:
    assert problems(build()) == ()
    check(build())


def test_check_subtype_is_accepted_where_its_base_is() -> None:
    graph = changed(pipeline(), "blur", inputs=(pipeline().operator("blur").inputs[0],))
    grey = (
        graph.operator("source")
        .outputs[0]
        .model_copy(update={"types": ("m:GreyBatch", *graph.operator("source").outputs[0].types)})
    )
    assert found(changed(graph, "source", outputs=(grey,))) == []


def test_check_other_type_is_named_short_with_both_lines() -> None:
    graph = pipeline().with_operator("scale", Scale(), role="worker").connect("source", "scale")
    assert found(graph) == [
        "edge source.batches -> scale.gradients joins different types: source emits Batch, scale accepts Gradient "
        "at job.py:1, job.py:4; put an operator between them that takes Batch and emits Gradient"
    ]


def test_check_base_type_is_not_accepted_for_a_subtype() -> None:
    port = pipeline().operator("blur").inputs[0].model_copy(update={"type": "graph_samples:GreyBatch"})
    graph = changed(pipeline(), "blur", inputs=(port,))
    assert "source emits Batch, blur accepts GreyBatch" in found(graph)[0]


def test_check_types_of_the_same_short_name_are_named_in_full() -> None:
    port = pipeline().operator("blur").inputs[0].model_copy(update={"type": "other:Batch"})
    assert (
        "source emits graph_samples:Batch, blur accepts other:Batch"
        in found(changed(pipeline(), "blur", inputs=(port,)))[0]
    )


def test_check_unconnected_input_offers_outputs_of_its_type() -> None:
    graph = pipeline().with_operator("apply", Apply(), role="worker")
    assert found(graph)[0] == (
        "input apply.gradients (Gradient) is not connected at job.py:4; "
        "connect it; outputs of that type: compute.gradients"
    )


def test_check_one_of_two_inputs_unconnected_is_found() -> None:
    graph = pipeline().with_operator("join", Join(), role="worker").connect("source", "join.left")
    assert found(graph) == [
        "input join.right (Batch) is not connected at job.py:4; "
        "connect it; outputs of that type: source.batches, blur.blurred"
    ]


def test_check_unknown_state_suggests_the_nearest() -> None:
    graph = pipeline().with_operator("apply", Apply(), role="worker", bind={"model": "modle"})
    graph = graph.connect("compute.gradients", "apply")
    assert found(graph) == [
        "operator 'apply' writes state element 'modle', which the graph lacks at job.py:4; "
        "add it with with_state, or bind={'model': ...}; did you mean 'model'? known: model"
    ]


def test_check_state_of_another_role_is_found() -> None:
    graph = (
        exchange()
        .with_role("server", 1)
        .with_operator("remote", Receive(), role="server")
        .with_operator("store", Apply(), role="server")
        .connect("send", "remote", route=Route.ONE_TO_ALL)
        .connect("remote", "store")
    )
    assert found(graph) == [
        "operator 'store' of role 'server' writes state element 'model' of role 'worker': state is not shared across "
        "nodes at job.py:8, job.py:91; give role 'server' an element of its own, or send messages to 'worker'"
    ]


def test_check_roles_joined_without_a_route_are_found() -> None:
    graph = (
        pipeline()
        .with_role("server", 1)
        .with_operator("scale", Scale(), role="server")
        .connect("compute.gradients", "scale")
    )
    assert found(graph) == [
        "edge compute.gradients -> scale.gradients joins role 'worker' to role 'server' without a route "
        "at job.py:3, job.py:4; connect with route=, as in route=Route.ONE_TO_ALL"
    ]


@pytest.mark.parametrize(
    ("source", "target", "lack"),
    [
        (Scale(), Receive(), "'a' does not send"),
        (Send(), Scale(), "'b' does not receive"),
        (Scale(), Scale(), "'a' does not send and 'b' does not receive"),
    ],
)
def test_check_crossing_without_send_or_receive_is_found(source: Scale, target: Scale, lack: str) -> None:
    graph = (
        pipeline()
        .with_operator("a", source, role="worker")
        .with_operator("b", target, role="worker")
        .connect("compute.gradients", "a")
        .connect("a", "b", route=Route.ONE_TO_ALL)
    )
    (problem,) = found(graph)
    assert f"crosses nodes (one-to-all), but {lack} at job.py:4, job.py:5" in problem


def test_check_sends_without_a_route_is_found() -> None:
    graph = (
        pipeline()
        .with_operator("send", Send(), role="worker")
        .with_operator("scale", Scale(), role="worker")
        .connect("compute.gradients", "send")
        .connect("send", "scale")
    )
    assert found(graph) == [
        "edge send.sent -> scale.gradients has no route, but 'send' sends at job.py:4, job.py:5; "
        "connect with route=, or use operators that stay on their node"
    ]


def test_check_receives_without_a_route_is_found() -> None:
    graph = pipeline().with_operator("receive", Receive(), role="worker").connect("compute.gradients", "receive")
    assert "edge compute.gradients -> receive.arrived has no route, but 'receive' receives" in found(graph)[0]


class Both(Send):
    kept = Out(Gradient)


class Either(Receive):
    mine = In(Gradient)


def test_check_ports_of_their_own_may_stay_on_the_node() -> None:
    graph = (
        pipeline()
        .with_operator("send", Both(), role="worker")
        .with_operator("receive", Either(), role="worker")
        .connect("compute.gradients", "send")
        .connect("send.sent", "receive.arrived", route=Route.ONE_TO_ALL)
        .connect("send.kept", "receive.mine")
    )
    assert found(graph) == []
    same = graph.with_operator("scale", Scale(), role="worker").connect("send.sent", "scale")
    assert ["has no route, but 'send' sends" in problem for problem in found(same)] == [True]
    same = graph.connect("compute.gradients", "receive.arrived")
    assert ["has no route, but 'receive' receives" in problem for problem in found(same)] == [True]


def test_check_sends_to_nowhere_is_found() -> None:
    graph = pipeline().with_operator("send", Send(), role="worker").connect("compute.gradients", "send")
    assert found(graph) == [
        "operator 'send' sends, but no edge leaves it at job.py:4; "
        "connect it to a receiving operator with route=, or remove it"
    ]


def stream(**route: Any) -> LogicalGraph:
    """The exchange whose one stream has this route."""
    graph = exchange()
    edges = tuple(edge.model_copy(update=route) if edge.route else edge for edge in graph.edges)
    return graph.model_copy(update={"edges": edges})


def test_check_by_owner_without_key_is_found() -> None:
    assert found(stream(route=Route.BY_OWNER, loopback=True)) == [
        "by-owner edge send.sent -> receive.arrived has no key at job.py:4, job.py:5; "
        "name the message's field that holds the partition number: key=..."
    ]


def test_check_key_of_another_route_is_found() -> None:
    assert found(stream(key="part")) == [
        "edge send.sent -> receive.arrived has key 'part', but is not by-owner at job.py:4, job.py:5; "
        "drop the key, or connect with route=Route.BY_OWNER"
    ]


@pytest.mark.parametrize("route", [{"route": Route.BY_OWNER, "key": "part"}, {"route": Route.ALL_TO_ONE}])
def test_check_owner_that_may_be_the_sender_needs_loopback(route: dict[str, Any]) -> None:
    assert found(stream(**route)) == [
        f"{route['route']} edge send.sent -> receive.arrived leaves out its sender, which may be the one to receive "
        "at job.py:4, job.py:5; connect with loopback=True"
    ]
    assert found(stream(**route, loopback=True)) == []


def test_check_owner_in_a_disjoint_role_needs_no_loopback() -> None:
    graph = stream(route=Route.BY_OWNER, key="part")
    graph = changed(changed(graph, "receive", role="server"), "apply", role="server", uses=())
    graph = graph.model_copy(update={"roles": (Role(name="worker", size="rest"), Role(name="server", size=2))})
    assert found(graph) == []
    colocated = graph.model_copy(update={"roles": (Role(name="worker", size="all"), Role(name="server", size=2))})
    assert "connect with loopback=True" in found(colocated)[0]


def test_check_loopback_without_route_is_found() -> None:
    graph = pipeline().with_operator("scale", Scale(), role="worker")
    graph = graph.connect("compute.gradients", "scale", loopback=True)
    assert "edge compute.gradients -> scale.gradients loops back without a route" in found(graph)[0]


def test_check_two_edges_between_the_same_ports_are_found_once() -> None:
    graph = exchange().connect("send", "receive", route=Route.ONE_TO_ANY)
    assert found(graph) == [
        "several edges send.sent -> receive.arrived at job.py:4, job.py:5; connect the two ports once"
    ]


def test_check_without_source_is_one_problem() -> None:
    graph = pipeline().remove("source").remove("blur").remove("compute").with_operator("j", Join(), role="worker")
    assert found(graph)[-1] == ("the graph has no source: nothing would ever run; add an operator with source = True")


def test_check_operators_no_source_leads_to_are_named() -> None:
    graph = (
        pipeline()
        .with_operator("scale", Scale(), role="worker")
        .with_operator("apply", Apply(), role="worker")
        .connect("scale", "apply")
    )
    assert found(graph)[1] == (
        "no source leads to scale, apply at job.py:4, job.py:5; "
        "connect from a source (source), or remove what is not used"
    )


def test_check_role_without_operators_is_found() -> None:
    assert found(pipeline().with_role("server", 1)) == [
        "role 'server' has no operators; add one with with_operator, or drop the role"
    ]


def test_check_graph_without_roles_is_found() -> None:
    assert found(LogicalGraph(name="empty"))[0] == "the graph has no roles; begin with with_role"


def test_check_role_sizes_from_json_are_checked() -> None:
    roles = (Role(name="worker", size=0), Role(name="server", size="rest"), Role(name="spare", size="rest"))
    texts = found(pipeline().model_copy(update={"roles": roles}))
    assert texts[0] == "role 'worker' has size 0; give it at least one node, 'rest' or 'all'"
    assert texts[-1] == "roles server, spare all take the rest of the nodes; leave 'rest' to one of them"


def test_check_local_cycle_is_named_from_its_first_operator() -> None:
    graph = (
        pipeline()
        .with_operator("join", Join(), role="worker")
        .with_operator("again", Blur(), role="worker")
        .connect("source", "join.left")
        .connect("join", "again")
        .connect("again", "join.right")
    )
    assert found(graph) == [
        "the cycle join -> again -> join stays on its node: it would wait for itself at job.py:4, job.py:5; "
        "let it cross nodes by send and receive, or keep what goes round in a state element"
    ]


def test_check_operator_connected_to_itself_is_a_cycle() -> None:
    assert "the cycle blur -> blur stays on its node" in found(pipeline().connect("blur", "blur"))[0]


def test_check_cycles_that_share_no_operator_are_all_named() -> None:
    graph = pipeline().with_operator("join", Join(), role="worker").with_operator("again", Blur(), role="worker")
    graph = graph.connect("source", "join.left").connect("join", "again").connect("again", "join.right")
    graph = graph.connect("blur", "blur")
    assert [text.partition(" stays")[0] for text in found(graph) if "cycle" in text] == [
        "the cycle blur -> blur",
        "the cycle join -> again -> join",
    ]


def test_check_cycle_over_a_stream_is_accepted() -> None:
    graph = (
        exchange()
        .with_operator("mix", Scale(), role="worker")
        .connect("receive", "mix")
        .with_operator("reply", Send(), role="worker")
        .connect("mix", "reply")
        .connect("reply", "receive", route=Route.ONE_TO_ANY)
    )
    assert found(graph) == []


def test_check_gather_with_two_inputs_is_found() -> None:
    graph = changed(pipeline().with_operator("join", Join(), role="worker"), "join", gather=True)
    graph = graph.connect("source", "join.left").connect("blur", "join.right")
    assert found(graph) == [
        "gather operator 'join' has 2 input ports at job.py:4; "
        "a Gather has exactly one: the parts of a step arrive there"
    ]


def test_check_gather_of_messages_without_shards_is_found() -> None:
    graph = pipeline().with_operator("scale", Scale(), role="worker").connect("compute.gradients", "scale")
    assert found(changed(graph, "scale", gather=True)) == [
        "gather operator 'scale' is sent Gradient, which carries no shard number at job.py:3, job.py:4; "
        "derive Gradient from dataflow.message.Sharded"
    ]


def test_check_source_with_inputs_is_found() -> None:
    assert found(changed(pipeline(), "blur", source=True)) == [
        "source 'blur' has input ports (batches) at job.py:2; drop them, or the source = True"
    ]


def test_check_operator_without_inputs_that_is_no_source_is_found() -> None:
    graph = pipeline().with_operator("idle", Source(), role="worker")
    assert found(changed(graph, "idle", source=False))[0] == (
        "operator 'idle' has no input port at job.py:4; declare one, or source = True"
    )


def test_check_capacity_below_1_is_found() -> None:
    port = pipeline().operator("blur").inputs[0].model_copy(update={"capacity": 0})
    assert found(changed(pipeline(), "blur", inputs=(port,))) == [
        "input blur.batches has capacity 0 at job.py:2; give 1 or more"
    ]


def test_check_names_from_json_are_checked() -> None:
    graph = changed(pipeline(), "compute", id="Com pute")
    element = graph.elements[0]
    graph = graph.model_copy(update={"name": "", "elements": (element, element), "roles": (*graph.roles,) * 2})
    rule = "a lower-case letter followed by at most 63 lower-case letters, digits and _"
    assert found(graph) == [
        "the graph's name '' is not 1 to 100 printable characters",
        "2 roles are called 'worker'; give each a name of its own",
        "2 state elements are called 'model'; give each a name of its own",
        f"operator name 'Com pute' is not {rule}",
        "edge blur.blurred -> compute.batches names no operator with 'compute'; "
        "did you mean 'Com pute'? known: Com pute, blur, source",
    ]


def test_check_ports_given_twice_or_misnamed_are_found() -> None:
    port = pipeline().operator("blur").inputs[0]
    graph = changed(pipeline(), "blur", inputs=(port, port, port.model_copy(update={"name": "a b"})))
    assert found(graph) == [
        "'blur' has 2 input ports called 'batches' at job.py:2",
        "input port 'a b' of 'blur' is not a Python name at job.py:2",
    ]


def test_check_references_to_nothing_are_found() -> None:
    graph = changed(pipeline(), "blur", role="wrker")
    graph = with_edge(graph, source="source", output="batch", target="blur", input="batchs")
    assert found(graph) == [
        "operator 'blur' is of role 'wrker', which the graph lacks at job.py:2; did you mean 'worker'? known: worker",
        "edge source.batch -> blur.batchs names no output port of 'source' with 'batch' at job.py:1; "
        "did you mean 'batches'? known: batches",
        "edge source.batch -> blur.batchs names no input port of 'blur' with 'batchs' at job.py:2; "
        "did you mean 'batches'? known: batches",
    ]


def test_check_state_element_of_an_unknown_role_is_found() -> None:
    element = pipeline().elements[0].model_copy(update={"role": "nobody"})
    assert found(pipeline().model_copy(update={"elements": (element,)}))[0].startswith(
        "state element 'model' is of role 'nobody', which the graph lacks at job.py:91"
    )


def test_check_several_problems_are_all_in_one_error() -> None:
    graph = pipeline().with_role("server", 1).with_operator("send", Send(), role="worker")
    with pytest.raises(GraphError) as caught:
        check(unplaced(graph))
    assert str(caught.value) == (
        "graph 'pipeline' has 4 problems:\n"
        "  1. role 'server' has no operators; add one with with_operator, or drop the role\n"
        "  2. input send.gradients (Gradient) is not connected at job.py:4; "
        "connect it; outputs of that type: compute.gradients\n"
        "  3. operator 'send' sends, but no edge leaves it at job.py:4; "
        "connect it to a receiving operator with route=, or remove it\n"
        "  4. no source leads to send at job.py:4; connect from a source (source), or remove what is not used"
    )


def test_check_single_problem_keeps_its_line_and_fix() -> None:
    with pytest.raises(GraphError) as caught:
        check(pipeline().with_role("server", 1))
    assert str(caught.value) == (
        "graph 'pipeline': role 'server' has no operators; add one with with_operator, or drop the role"
    )


def test_check_names_the_line_of_the_test_that_added_the_operator() -> None:
    graph = pipeline().with_operator("apply", Apply(), role="worker")
    assert problems(graph)[0].where == graph.operator("apply").where
    assert problems(graph)[0].where.startswith(f"{__file__}:")


def test_check_other_element_of_the_same_role_is_accepted() -> None:
    graph = pipeline().with_state("shadow", Model(), role="worker")
    graph = graph.replace("compute", Compute(), bind={"model": "shadow", "live": "shadow"})
    assert found(graph) == []


def test_problem_is_frozen() -> None:
    problem = Problem("wrong", "job.py:1")
    with pytest.raises(FrozenInstanceError):
        problem.what = "right"  # type: ignore[misc]
    assert str(problem) == "wrong at job.py:1"


def test_check_many_problems_are_cut_at_100_and_offers_at_8() -> None:
    graph = pipeline()
    spares = tuple(graph.operator("blur").model_copy(update={"id": f"spare_{number}"}) for number in range(150))
    texts = found(graph.model_copy(update={"operators": (*graph.operators, *spares)}))
    assert len(texts) == 100
    assert texts[0] == (
        "input spare_0.batches (Batch) is not connected at job.py:4; connect it; outputs of that type: "
        "source.batches, blur.blurred, spare_1.blurred, spare_2.blurred, spare_3.blurred, spare_4.blurred, "
        "spare_5.blurred, spare_6.blurred, ..."
    )


@pytest.mark.parametrize("closed", [False, True])
def test_check_line_of_9000_operators_passes_in_linear_time(closed: bool) -> None:
    graph = pipeline().remove("compute").remove("blur")
    blur = pipeline().operator("blur")
    line = tuple(blur.model_copy(update={"id": f"blur_{number}"}) for number in range(9_000))
    edges = tuple(
        Edge(source=before.id, output=before.outputs[0].name, target=after.id, input="batches")
        for before, after in itertools.pairwise((*graph.operators, *line))
    )
    if closed:
        edges += (Edge(source=line[-1].id, output="blurred", target=line[0].id, input="batches"),)
    told = problems(graph.model_copy(update={"operators": (*graph.operators, *line), "edges": edges}))
    assert [problem.what.count("->") for problem in told] == [9_000] * closed
