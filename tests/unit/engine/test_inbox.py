"""Inboxes: order, keys, latest, room, whose messages wait."""

from collections import defaultdict

import pytest
from engine_rig import Num, Piece
from hypothesis import given
from hypothesis import strategies as st

from dataflow.engine.inbox import Delivery, Inbox
from dataflow.errors import OperatorError
from dataflow.graph.specs import InputSpec
from dataflow.plan.physical import StreamId


def _inbox(key: str | None = None, latest: tuple[str, ...] = (), capacity: int = 2) -> Inbox:
    names = ("inp", "other")
    return Inbox(InputSpec(name=name, type="x:Num", capacity=capacity, key=key, latest=latest) for name in names)


def _num(n: int, to: int = 0, port: str = "inp", source: int | None = None) -> Delivery:
    return Delivery(port, Num(n, to=to), None if source is None else StreamId(0, source, 0), 1)


def _pop(inbox: Inbox, shut: tuple[int, ...] = ()) -> int | None:
    delivery = inbox.first(lambda key: key not in shut)
    if delivery is None:
        return None
    inbox.take(delivery)
    assert isinstance(delivery.message, Num)
    return delivery.message.n


def test_unkeyed_inbox_is_first_in_first_out_over_its_ports() -> None:
    inbox = _inbox()
    for n in range(4):
        inbox.push(_num(n, port="inp" if n % 2 else "other"))
    assert [_pop(inbox) for _ in range(5)] == [0, 1, 2, 3, None]
    assert inbox.size == 0


def test_room_is_counted_by_port() -> None:
    inbox = _inbox(capacity=2)
    inbox.push(_num(0))
    inbox.push(_num(1, port="other"))
    assert inbox.room("inp")
    inbox.push(_num(2))
    assert (inbox.room("inp"), inbox.room("other")) == (False, True)
    _pop(inbox)
    assert inbox.room("inp")


def test_keys_are_served_in_turn_and_a_shut_one_holds_back_nobody() -> None:
    inbox = _inbox(key="to")
    for n, to in enumerate((1, 1, 1, 2, 2, 3)):
        inbox.push(_num(n, to=to))
    assert [_pop(inbox) for _ in range(4)] == [0, 3, 5, 1]
    assert [_pop(inbox, shut=(1,)) for _ in range(2)] == [4, None]
    assert _pop(inbox) == 2


def test_latest_takes_the_place_of_the_one_it_replaces() -> None:
    inbox = _inbox(latest=("to",))
    assert inbox.push(_num(0, to=1)) is None
    assert inbox.push(_num(1, to=2)) is None
    replaced = inbox.push(_num(2, to=1))
    assert replaced is not None
    assert replaced.message == Num(0, to=1)
    assert inbox.push(_num(3, to=1, port="other")) is None
    assert inbox.size == 3
    assert inbox.room("inp")
    assert [_pop(inbox) for _ in range(4)] == [2, 1, 3, None]


def test_messages_of_a_node_are_held_until_they_are_taken() -> None:
    inbox = _inbox(key="to")
    inbox.push(_num(0, to=1, source=7))
    inbox.push(_num(1, to=2, source=8))
    assert inbox.holds(7)
    assert [delivery.message for delivery in inbox.of_node(8)] == [Num(1, to=2)]
    assert _pop(inbox) == 0
    assert not inbox.holds(7)
    assert inbox.holds(8)


def test_replaced_message_is_not_held() -> None:
    inbox = _inbox(latest=("to",))
    inbox.push(_num(0, source=7))
    inbox.push(_num(1, source=8))
    assert not inbox.holds(7)
    assert inbox.holds(8)


def test_inbox_by_step_gives_the_lowest_step_first_in_order_of_arrival() -> None:
    inbox = Inbox([InputSpec(name="inp", type="x:Piece", capacity=8)], by_step=True)
    pieces = [Piece(2, 0, 2, 0.0), Piece(1, 1, 2, 0.0), Piece(1, 0, 2, 0.0)]
    for piece in pieces:
        inbox.push(Delivery("inp", piece))
    first = inbox.lowest_step()
    assert first is not None
    assert first.message is pieces[1]
    inbox.take(first)
    second = inbox.of_step(1)
    assert second is not None
    assert second.message is pieces[2]
    inbox.take(second)
    assert inbox.of_step(1) is None
    assert inbox.size == 1


def test_message_without_the_keys_field_is_refused() -> None:
    with pytest.raises(OperatorError, match="port 'inp' has no field 'missing'"):
        _inbox(key="missing").push(_num(0))


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60))
def test_every_key_is_first_in_first_out_and_nothing_is_lost(pushes: list[tuple[int, bool]]) -> None:
    inbox = _inbox(key="to")
    expected: dict[int, list[int]] = defaultdict(list)
    got: dict[int, list[int]] = defaultdict(list)

    def pop() -> None:
        delivery = inbox.first(lambda _: True)
        if delivery is not None:
            inbox.take(delivery)
            assert isinstance(delivery.message, Num)
            got[delivery.message.to].append(delivery.message.n)

    for n, (to, then_pop) in enumerate(pushes):
        inbox.push(_num(n, to=to))
        expected[to].append(n)
        if then_pop:
            pop()
    while inbox.size:
        pop()
    assert got == expected
