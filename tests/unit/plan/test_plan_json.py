from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_samples import ako, all_to_all, parameter_server
from pydantic import ValidationError

from dataflow.errors import PlanError
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.graph.specs import Edge, ElementSpec, InputSpec, OperatorSpec, OutputSpec, Role, UseSpec
from dataflow.plan.compile import compile_graph
from dataflow.plan.physical import ChainPlan, NodePlan, PhysicalPlan
from dataflow.state import StateKind

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
    assert PhysicalPlan.model_validate_json(plan.model_dump_json()) == plan


@pytest.mark.parametrize("graph", [ako(), all_to_all(), parameter_server()], ids=lambda graph: graph.name)
def test_round_trip_compiled_plan_keeps_digest_and_types(graph: LogicalGraph) -> None:
    plan = compile_graph(graph, 5, seed=2**64 - 1)
    back = PhysicalPlan.model_validate_json(plan.model_dump_json())
    assert back == plan
    assert back.digest() == plan.digest()
    assert [type(edge.route) for edge in back.graph.edges] == [type(edge.route) for edge in plan.graph.edges]


def read(data: dict[str, Any]) -> PhysicalPlan:
    return PhysicalPlan.model_validate_json(json.dumps(data))


def data_of(graph: LogicalGraph) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(compile_graph(graph, 2).model_dump_json())
    return data


def test_read_too_many_nodes_is_refused() -> None:
    data = data_of(ako())
    data["nodes"] = [{"index": index, "name": "", "roles": []} for index in range(100_001)]
    with pytest.raises(PlanError, match=r"at most 100000 nodes \(got 100001\)"):
        read(data)


def test_read_nodes_out_of_order_is_refused() -> None:
    data = data_of(ako())
    data["nodes"].reverse()
    with pytest.raises(PlanError, match="not numbered from 0"):
        read(data)


def test_read_unknown_words_are_refused() -> None:
    data = data_of(all_to_all())
    data["graph"]["edges"][0]["route"] = "everywhere"
    data["chains"][0]["pool"] = "disk"
    with pytest.raises(ValidationError) as raised:
        read(data)
    assert [error["loc"] for error in raised.value.errors()] == [("graph", "edges", 0, "route"), ("chains", 0, "pool")]


@pytest.mark.parametrize("said", [True, False, None])
def test_read_operators_that_do_not_say_so_catch_up(said: bool | None) -> None:
    """As in graphs that were kept before operators said it."""
    data = data_of(ako())
    for operator in data["graph"]["operators"]:
        del operator["catches_up"]
        if said is not None:
            operator["catches_up"] = said
    assert {operator.catches_up for operator in read(data).graph.operators} == {said is not False}
