from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_samples import ako, all_to_all, parameter_server

from dataflow.errors import PlanError
from dataflow.graph.logical import Edge, ElementSpec, InputSpec, LogicalGraph, OperatorSpec, OutputSpec, Role, UseSpec
from dataflow.graph.routes import Route
from dataflow.plan.compile import compile_graph
from dataflow.plan.physical import ChainPlan, NodePlan, PhysicalPlan
from dataflow.runtime.plan_wire import plan_from_proto, plan_to_proto
from dataflow.state import StateKind
from dataflow.transport.generated import plan_pb2

WORD = st.text(max_size=5)
MAYBE = st.none() | WORD
U32 = st.integers(0, 2**32 - 1)
POOL = st.sampled_from(["compute", "network"])
SIZE = U32 | st.sampled_from(["rest", "all"])


def tuples(model: type, **fields: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(st.builds(model, **fields), max_size=2).map(tuple)


GRAPHS = st.builds(
    LogicalGraph,
    name=WORD,
    roles=tuples(Role, name=WORD, size=SIZE),
    elements=tuples(
        ElementSpec,
        name=WORD,
        role=WORD,
        kind=st.sampled_from(StateKind),
        factory=WORD,
        params=WORD,
        rebuilt=st.booleans(),
        form=WORD,
        grows=st.booleans(),
        where=WORD,
    ),
    operators=tuples(
        OperatorSpec,
        id=WORD,
        role=WORD,
        kind=WORD,
        params=WORD,
        pool=POOL,
        source=st.booleans(),
        sends=st.booleans(),
        receives=st.booleans(),
        gather=st.booleans(),
        adjusts=st.booleans(),
        catches_up=st.booleans(),
        inputs=tuples(
            InputSpec, name=WORD, type=WORD, capacity=U32, key=MAYBE, latest=st.lists(WORD, max_size=2).map(tuple)
        ),
        outputs=tuples(OutputSpec, name=WORD, types=st.lists(WORD, max_size=2).map(tuple), reported=st.booleans()),
        uses=tuples(UseSpec, name=WORD, element=WORD, writes=st.booleans()),
        where=WORD,
    ),
    edges=tuples(
        Edge,
        source=WORD,
        output=WORD,
        target=WORD,
        input=WORD,
        route=st.none() | st.sampled_from(Route),
        loopback=st.booleans(),
        key=MAYBE,
    ),
)
PLANS = st.builds(
    PhysicalPlan,
    graph=GRAPHS,
    nodes=st.lists(
        st.tuples(WORD, st.lists(WORD, max_size=2).map(tuple), U32, U32),
        max_size=2,
    ).map(
        lambda nodes: tuple(
            NodePlan(index=index, name=name, roles=roles, compute_tasks=compute, network_tasks=network)
            for index, (name, roles, compute, network) in enumerate(nodes)
        )
    ),
    chains=tuples(ChainPlan, operators=st.lists(WORD, max_size=2).map(tuple), role=WORD, pool=POOL),
    window_nbytes=st.integers(0, 2**64 - 1),
    seed=st.integers(0, 2**64 - 1),
)


@settings(deadline=None)
@given(PLANS)
def test_round_trip_any_plan_is_equal(plan: PhysicalPlan) -> None:
    wire = plan_to_proto(plan).SerializeToString()
    back = plan_from_proto(plan_pb2.PhysicalPlan.FromString(wire))
    assert back == plan
    assert back.model_dump_json() == plan.model_dump_json()


@settings(deadline=None)
@given(PLANS)
def test_json_round_trip_any_plan_is_equal(plan: PhysicalPlan) -> None:
    assert PhysicalPlan.model_validate_json(plan.model_dump_json()) == plan


@pytest.mark.parametrize("graph", [ako(), all_to_all(), parameter_server()], ids=lambda graph: graph.name)
def test_round_trip_compiled_plan_keeps_digest_and_types(graph: LogicalGraph) -> None:
    plan = compile_graph(graph, 5, seed=2**64 - 1)
    back = plan_from_proto(plan_to_proto(plan))
    assert back == plan
    assert back.digest() == plan.digest()
    assert [type(edge.route) for edge in back.graph.edges] == [type(edge.route) for edge in plan.graph.edges]


def test_message_of_unset_options_leaves_them_unset() -> None:
    message = plan_to_proto(compile_graph(parameter_server(), 3))
    local, routed = message.graph.edges[0], next(edge for edge in message.graph.edges if edge.source == "send")
    assert (local.HasField("route"), local.HasField("key")) == (False, False)
    assert (routed.route, routed.key) == ("by-owner", "part")
    assert [(role.WhichOneof("size"), role.nodes, role.word) for role in message.graph.roles] == [
        ("word", 0, "rest"),
        ("nodes", 2, ""),
    ]


@pytest.mark.parametrize("seed", [2**64, -1])
def test_to_proto_number_that_does_not_fit_is_refused(seed: int) -> None:
    plan = compile_graph(ako(), 1).model_copy(update={"seed": seed})
    with pytest.raises(PlanError, match=r"the plan cannot be sent: .*seed"):
        plan_to_proto(plan)


def test_from_proto_too_many_nodes_is_refused() -> None:
    message = plan_to_proto(compile_graph(ako(), 1))
    message.nodes.extend([plan_pb2.NodePlan()] * 100_000)
    with pytest.raises(PlanError, match=r"at most 100000 nodes \(got 100001\)"):
        plan_from_proto(message)


def test_from_proto_too_many_operators_is_refused() -> None:
    message = plan_to_proto(compile_graph(ako(), 1))
    message.graph.operators.extend([plan_pb2.OperatorSpec()] * 10_000)
    with pytest.raises(PlanError, match=r"at most 10000 operators \(got 10007\)"):
        plan_from_proto(message)


def test_from_proto_unknown_words_are_refused() -> None:
    message = plan_to_proto(compile_graph(all_to_all(), 2))
    message.graph.edges[0].route = "everywhere"
    message.chains[0].pool = "disk"
    with pytest.raises(PlanError, match=r"not a plan: PhysicalPlan.graph.edges.0.route: must be .*got everywhere"):
        plan_from_proto(message)


def test_from_proto_role_without_size_is_refused() -> None:
    message = plan_to_proto(compile_graph(all_to_all(), 2))
    message.graph.roles[0].ClearField("size")
    with pytest.raises(PlanError, match=r"graph\.roles\.0\.size"):
        plan_from_proto(message)


def test_from_proto_empty_message_is_refused() -> None:
    with pytest.raises(PlanError, match="the plan received is not a plan"):
        plan_from_proto(plan_pb2.PhysicalPlan())


@pytest.mark.parametrize("said", [True, False, None])
def test_from_proto_operators_that_do_not_say_so_catch_up(said: bool | None) -> None:
    """As in graphs that were kept before operators said it."""
    message = plan_to_proto(compile_graph(ako(), 1))
    for operator in message.graph.operators:
        operator.ClearField("catches_up")
        if said is not None:
            operator.catches_up = said
    plan = plan_from_proto(message)
    assert {operator.catches_up for operator in plan.graph.operators} == {said is not False}
