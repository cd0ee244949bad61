"""Credit of streams, and the routes of an edge."""

import numpy as np
import pytest
from engine_rig import Blob, Num
from hypothesis import given
from hypothesis import strategies as st

from dataflow.engine.events import SendEnd, SendMessage
from dataflow.engine.flow import LEAST_UNDER_WAY_NBYTES, Crossing, Sending, UnderWay
from dataflow.graph.routes import Route
from dataflow.graph.specs import Edge
from dataflow.message import HEADER_NBYTES as SIZE
from dataflow.plan.physical import StreamId
from dataflow.ports import Emission
from dataflow.reports import LinkRates

STREAM = StreamId(4, 0, 1)


def _crossing(
    route: Route, members: tuple[int, ...] = (0, 1, 2), *, window: int = SIZE, loopback: bool = False, key: str = ""
) -> Crossing:
    edge = Edge(source="a", output="out", target="b", input="inp", route=route, loopback=loopback, key=key or None)
    return Crossing(4, edge, 0, members, window)


def _targets(commands: list[Sending]) -> list[int]:
    return [command.stream.target for command in commands]


def test_stream_sends_while_credit_is_left_and_ends_behind_the_last_message() -> None:
    crossing = _crossing(Route.ONE_TO_ALL, (0, 1), window=SIZE + 1)
    for n in range(2):  # the second overdraws the credit
        assert crossing.send(Emission("out", Num(n))) == [SendMessage(STREAM, Num(n), SIZE)]
    assert crossing.send(Emission("out", Num(2))) == []
    assert crossing.close() == []
    assert not crossing.is_open()
    assert crossing.grant(1, SIZE - 1) == []
    assert not crossing.closed
    assert crossing.grant(1, 1) == [SendMessage(STREAM, Num(2), SIZE), SendEnd(STREAM)]
    assert crossing.closed
    assert crossing.grant(1, 2 * SIZE) == []


@given(
    window=st.integers(1, 3000),
    steps=st.lists(
        st.one_of(
            st.integers(0, 1500).map(lambda size: ("send", size)),
            st.just(("consume", 0)),
            st.integers(1, 4000).map(lambda size: ("limit", size)),
        )
    ),
)
def test_bytes_under_way_stay_within_window_and_limit_and_one_message(
    window: int, steps: list[tuple[str, int]]
) -> None:
    crossing, allowed = _crossing(Route.ONE_TO_ALL, (0, 1), window=window), window
    under_way: list[int] = []
    sent: list[int] = []
    offered: list[int] = []

    def take(commands: list[Sending]) -> None:
        for command in commands:
            assert isinstance(command, SendMessage)
            assert sum(under_way) < allowed  # the one that overdraws is the last
            under_way.append(command.nbytes)
            sent.append(command.nbytes)

    for what, size in steps:
        if what == "send":
            offered.append(SIZE + size)
            take(crossing.send(Emission("out", Blob(np.zeros(size, np.uint8)))))
        elif what == "limit":
            allowed = min(window, size)
            take(crossing.limit(1, size))
        elif under_way:
            take(crossing.grant(1, under_way.pop(0)))
        assert crossing.is_open() == (sum(under_way) < allowed and sent == offered)
        assert sent == offered or sum(under_way) >= allowed
        assert sent == offered[: len(sent)]
    while under_way:
        take(crossing.grant(1, under_way.pop(0)))
    assert sent == offered
    assert _targets(crossing.close()) == [1]
    assert crossing.closed


@pytest.mark.parametrize(
    ("route", "emission", "to"),
    [
        (Route.ONE_TO_ALL, Emission("out", Num(0)), [1, 2]),
        (Route.ONE_TO_ANY, Emission("out", Num(0)), [1]),
        (Route.BY_OWNER, Emission("out", Num(5)), [2]),
        (Route.BY_DESTINATION, Emission("out", Num(0), to=2), [2]),
        (Route.ALL_TO_ONE, Emission("out", Num(0)), [1]),
    ],
)
def test_route_picks_receivers_without_the_sender(route: Route, emission: Emission, to: list[int]) -> None:
    assert _targets(_crossing(route, key="n").send(emission)) == to


@pytest.mark.parametrize(
    ("route", "emission", "to"),
    [
        (Route.ONE_TO_ALL, Emission("out", Num(0)), [0, 1, 2]),
        (Route.ONE_TO_ANY, Emission("out", Num(0)), [0]),
        (Route.BY_OWNER, Emission("out", Num(4)), [1]),
        (Route.BY_DESTINATION, Emission("out", Num(0), to=0), [0]),
        (Route.ALL_TO_ONE, Emission("out", Num(0)), [0]),
    ],
)
def test_route_of_a_looping_edge_counts_the_sender_in(route: Route, emission: Emission, to: list[int]) -> None:
    assert _targets(_crossing(route, loopback=True, key="n").send(emission)) == to


def test_one_to_any_is_open_until_no_receiver_has_credit() -> None:
    crossing = _crossing(Route.ONE_TO_ANY)
    assert _targets(crossing.send(Emission("out", Num(0)))) == [1]
    assert crossing.is_open()
    assert _targets(crossing.send(Emission("out", Num(0)))) == [2]
    assert not crossing.is_open()
    crossing.grant(2, SIZE)
    assert crossing.is_open()
    crossing.drop(2)
    assert not crossing.is_open()
    crossing.drop(1)
    assert crossing.is_open()  # nobody is left: messages vanish
    assert crossing.send(Emission("out", Num(0))) == []


def test_by_destination_is_open_by_receiver() -> None:
    crossing = _crossing(Route.BY_DESTINATION)
    crossing.send(Emission("out", Num(0), to=1))
    assert (crossing.is_open(1), crossing.is_open(2), crossing.is_open(None)) == (False, True, False)
    assert not crossing.is_open(99)  # a key that is no receiver says nothing: all must be open
    crossing.drop(1)
    assert (crossing.is_open(1), crossing.is_open(None)) == (True, True)


def test_by_owner_is_open_by_partition() -> None:
    crossing = _crossing(Route.BY_OWNER, key="n", loopback=True)
    crossing.send(Emission("out", Num(4)))
    assert [crossing.is_open(partition) for partition in (0, 1, 2, 4, 7)] == [True, False, True, False, False]


def test_dropped_stream_sends_nothing_more_not_even_its_end() -> None:
    crossing = _crossing(Route.ONE_TO_ALL)
    crossing.send(Emission("out", Num(0)))
    crossing.send(Emission("out", Num(1)))
    crossing.drop(1)
    assert crossing.grant(1, 10 * SIZE) == []
    assert _targets(crossing.grant(2, SIZE)) == [2]
    assert _targets(crossing.send(Emission("out", Num(2)))) == []
    assert crossing.close() == []
    assert not crossing.closed
    assert [type(command) for command in crossing.grant(2, 9 * SIZE)] == [SendMessage, SendEnd]
    assert crossing.closed


@pytest.mark.parametrize(
    ("route", "key", "keys", "expected"),
    [
        (Route.BY_DESTINATION, "", {"to"}, True),
        (Route.BY_OWNER, "part", {"part"}, True),
        (Route.BY_OWNER, "part", {"to"}, False),
        (Route.ONE_TO_ALL, "", {"to"}, False),
    ],
)
def test_key_of_an_inbox_says_the_receiver_only_on_routes_by_it(
    route: Route, key: str, keys: set[str], *, expected: bool
) -> None:
    assert _crossing(route, key=key).goes_by(keys) is expected


def test_under_way_is_a_tenth_of_a_second_of_goodput_and_some_in_any_case() -> None:
    under_way = UnderWay()
    assert under_way.nbytes(1, LinkRates(nbytes=6_000_000, busy_s=0.5, delay_s=0.01)) == 1_200_000
    assert under_way.nbytes(2, LinkRates(nbytes=6_000, busy_s=0.5, delay_s=0.01)) == LEAST_UNDER_WAY_NBYTES


def test_under_way_grows_twofold_at_most_where_much_is_acknowledged_at_once() -> None:
    under_way = UnderWay()
    assert under_way.nbytes(1, LinkRates(nbytes=1_000_000, busy_s=0.25, delay_s=0.01)) == 400_000
    assert under_way.nbytes(1, LinkRates(nbytes=1_000_000, busy_s=0.005, delay_s=0.01)) == 800_000
    assert under_way.nbytes(1, LinkRates(nbytes=1_000_000, busy_s=0.005, delay_s=0.01)) == 1_600_000
    assert under_way.nbytes(1, LinkRates(nbytes=1_000_000, busy_s=0.25, delay_s=0.01)) == 400_000


def test_under_way_to_a_far_peer_is_more_than_what_credit_takes_to_come_back() -> None:
    """A stream that carries 3 MB/s with 0.75 MB under way must not be limited to less: it would carry less."""
    under_way = UnderWay()
    assert under_way.nbytes(1, LinkRates(nbytes=1_500_000, busy_s=0.5, delay_s=0.125)) == 1_125_000
    assert under_way.nbytes(1, LinkRates(nbytes=1_500_000, busy_s=0.5, delay_s=0.9)) == 1_125_000  # it queues
    assert under_way.nbytes(1, LinkRates(nbytes=1_500_000, busy_s=0.5, delay_s=0.02)) == 300_000  # it had queued before


def test_under_way_to_a_peer_that_has_joined_anew_goes_by_delays_of_its_own() -> None:
    under_way = UnderWay()
    assert under_way.nbytes(1, LinkRates(nbytes=1_500_000, busy_s=0.5, delay_s=0.001)) == 300_000
    under_way.forget(1)
    assert under_way.nbytes(1, LinkRates(nbytes=1_500_000, busy_s=0.5, delay_s=0.125)) == 1_125_000


def test_under_way_is_left_as_it_is_by_a_link_on_which_nothing_came_through() -> None:
    under_way = UnderWay()
    assert under_way.nbytes(1, LinkRates(nbytes=0, busy_s=0.5)) is None
    assert under_way.nbytes(1, LinkRates(nbytes=70_000, busy_s=0.5, delay_s=0.0)) is None  # of a first message, a part
    assert under_way.nbytes(1, LinkRates()) is None
