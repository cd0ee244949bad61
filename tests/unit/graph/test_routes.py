from __future__ import annotations

import pytest

from dataflow.errors import OperatorError
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route, receivers
from dataflow.message import Message
from dataflow.operators_api import Emissions, Operator
from dataflow.ports import In, Out


class Send(Operator):
    sends = True
    inp = In(Message)
    out = Out(Message)

    def process(self, message: Message) -> Emissions:
        yield self.out(message)


class Receive(Operator):
    receives = True
    inp = In(Message)

    def process(self, _message: Message) -> Emissions:
        yield from ()


def test_one_to_all_is_every_member() -> None:
    assert receivers(Route.ONE_TO_ALL, [4, 2, 7], to=None, key=None, credit={}) == (4, 2, 7)


def test_all_to_one_is_the_member_of_rank_0() -> None:
    assert receivers(Route.ALL_TO_ONE, [4, 2, 7], to=None, key=None, credit={2: 9}) == (4,)


def test_first_to_all_is_every_member_and_only_the_first_sends() -> None:
    assert receivers(Route.FIRST_TO_ALL, [4, 2, 7], to=None, key=None, credit={}) == (4, 2, 7)
    members = {"worker": (4, 2, 7), "server": (1, 3)}
    graph = LogicalGraph(name="first").with_role("worker").with_role("server", 2)
    graph = graph.with_operator("send", Send(), role="worker").with_operator("receive", Receive(), role="server")
    for route, expected in (
        (Route.FIRST_TO_ALL, ((4,), (1, 3))),
        (Route.ALL_TO_ONE, ((4, 2, 7), (1,))),
        (Route.ONE_TO_ALL, ((4, 2, 7), (1, 3))),
    ):
        (edge,) = graph.connect("send", "receive", route=route).edges
        assert graph.ends(edge, members) == expected


def test_one_to_any_is_the_member_with_the_most_credit() -> None:
    assert receivers(Route.ONE_TO_ANY, [4, 2, 7], to=None, key=None, credit={4: 1, 7: 5}) == (7,)


def test_one_to_any_among_equals_is_the_lowest_number() -> None:
    assert receivers(Route.ONE_TO_ANY, [4, 2, 7], to=None, key=None, credit={4: 5, 2: 5, 7: 1}) == (2,)


@pytest.mark.parametrize(("key", "owner"), [(0, 4), (1, 2), (2, 7), (3, 4), (11, 7)])
def test_by_owner_is_the_rank_of_number_mod_size(key: int, owner: int) -> None:
    assert receivers(Route.BY_OWNER, [4, 2, 7], to=None, key=key, credit={}) == (owner,)


def test_by_owner_without_a_number_raises() -> None:
    with pytest.raises(OperatorError, match="has no partition number; name its field as key"):
        receivers(Route.BY_OWNER, [4], to=None, key=None, credit={})


def test_by_destination_is_the_node_named() -> None:
    assert receivers(Route.BY_DESTINATION, [4, 2], to=2, key=None, credit={}) == (2,)


def test_by_destination_of_a_node_that_is_no_member_is_nobody() -> None:
    assert receivers(Route.BY_DESTINATION, [4, 2], to=3, key=None, credit={}) == ()


def test_by_destination_without_a_node_raises() -> None:
    with pytest.raises(OperatorError, match=r"names no node; yield port\(message, to=node\)"):
        receivers(Route.BY_DESTINATION, [4], to=None, key=None, credit={})


@pytest.mark.parametrize("route", list(Route))
def test_routes_without_members_reach_nobody(route: Route) -> None:
    assert receivers(route, [], to=1, key=1, credit={}) == ()
