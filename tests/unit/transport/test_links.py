"""What links do besides delivering: bounds, batching, callbacks that raise, backoff."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dataflow.errors import WireError
from dataflow.message import HEADER_NBYTES, Message
from dataflow.testing.linked_nodes import OPTIONS, Node, Numbered, Subject, closed, connected, run_check
from dataflow.transport.base import Connection
from dataflow.transport.codec import encode
from dataflow.transport.faulty import CutAfter, FaultyNetwork
from dataflow.transport.frames import only_frame, pack_control, parse
from dataflow.transport.generated import data_pb2
from dataflow.transport.link_options import LinkOptions
from dataflow.transport.memory import MemoryNetwork
from dataflow.transport.peers import Identity, Peers, Refusal, hello, refused


@dataclass(frozen=True, slots=True)
class Special(Numbered):
    """A subtype of the edge's type."""


def run(body: Callable[[Subject], Any]) -> None:
    run_check(body, lambda: Subject.of(MemoryNetwork()))


def test_send_beyond_the_queue_bound_raises_and_sends_nothing() -> None:
    async def body(subject: Subject) -> None:
        nodes = [Node(subject, 0, options=LinkOptions(max_queued_nbytes=10_000)), Node(subject, 1)]
        await connected(nodes)
        nodes[0].links.send(1, 0, Numbered(0, np.zeros(1_000)))
        with pytest.raises(WireError, match="more than 10000 bytes to node 1 wait for their acknowledgement"):
            nodes[0].links.send(1, 0, Numbered(1, np.zeros(1_000)))
        await nodes[0].links.drain()
        nodes[0].links.send(1, 0, Numbered(2, np.zeros(1_000)))
        await nodes[0].links.drain()
        got = [message.number for message in nodes[1].messages[0, 0] if isinstance(message, Numbered)]
        assert got == [0, 2]
        await closed(nodes)

    run(body)


def test_send_of_another_type_edge_or_peer_raises() -> None:
    async def body(subject: Subject) -> None:
        nodes = [Node(subject, 0), Node(subject, 1)]
        await connected(nodes)
        cases: list[tuple[int, int, Message, str]] = [
            (1, 0, Special(0, np.zeros(1)), "edge 0 of node 0 carries Numbered, not Special"),
            (1, 5, Numbered(0, np.zeros(1)), "edge 5 of node 0 carries nothing, not Numbered"),
            (2, 0, Numbered(0, np.zeros(1)), "node 0 has no link to node 2"),
        ]
        for peer, edge, message, what in cases:
            with pytest.raises(WireError, match=what):
                nodes[0].links.send(peer, edge, message)
        await closed(nodes)

    run(body)


def test_small_messages_share_packets_and_acknowledgements() -> None:
    async def body(subject: Subject) -> None:
        nodes = [Node(subject, 0), Node(subject, 1)]
        await connected(nodes)
        before = nodes[0].links.statistics()[1].received_nbytes
        for number in range(1_000):
            nodes[0].links.send(1, 0, Numbered(number, np.zeros(2)))
        await nodes[0].links.drain()
        await nodes[0].until(lambda: nodes[0].credits[1, 0] == 1_000 * (HEADER_NBYTES + 16))
        after = nodes[0].links.statistics()[1]
        assert after.sent_frames == 1_000
        assert after.received_nbytes - before < 1_000  # of acknowledgements: a few frames of 64 bytes or less
        await closed(nodes)

    run(body)


@pytest.mark.parametrize("enough", ["the end of an edge", "many bytes", "many frames"])
def test_acknowledgements_that_somebody_may_wait_for_are_not_held_back(enough: str) -> None:
    async def body(subject: Subject) -> None:
        options = LinkOptions(ack_delay_s=3600.0, few_delay_s=3600.0, ack_frames=3, ack_nbytes=10_000)
        nodes = [Node(subject, number, options=options) for number in (0, 1)]
        await connected(nodes)
        nodes[0].links.send(1, 0, Numbered(0, np.zeros(1_250 if enough == "many bytes" else 1)))
        if enough == "the end of an edge":
            nodes[0].links.send_end(1, 0)
        elif enough == "many frames":
            nodes[0].links.send(1, 0, Numbered(1, np.zeros(1)))
            nodes[0].links.send(1, 0, Numbered(2, np.zeros(1)))
        async with asyncio.timeout(60):
            await nodes[0].links.drain()
        await closed(nodes)

    run(body)


@pytest.mark.parametrize(("first", "then"), [(1, 125), (80, 80)])
def test_acknowledgements_of_few_bytes_wait_longer_than_those_of_many(first: int, then: int) -> None:
    """What is received is granted again, and counts once: twice 80 numbers of 8 bytes are many, once they are few."""

    async def body(subject: Subject) -> None:
        options = LinkOptions(ack_delay_s=0.01, few_delay_s=3600.0, few_nbytes=1_000)
        nodes = [Node(subject, number, options=options) for number in (0, 1)]
        await connected(nodes)
        nodes[0].links.send(1, 0, Numbered(0, np.zeros(first)))
        await nodes[1].until(lambda: len(nodes[1].messages) == 1)
        drained = asyncio.ensure_future(nodes[0].links.drain())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(drained), 0.2)
        nodes[0].links.send(1, 0, Numbered(1, np.zeros(then)))
        async with asyncio.timeout(60):
            await drained
        await closed(nodes)

    run(body)


def test_acknowledgement_says_how_long_it_was_held_back() -> None:
    @dataclass
    class Stands:
        at_s: float = 5.0

        def now(self) -> float:
            return self.at_s

        def wall(self) -> float:
            return 0.0

    async def body(subject: Subject) -> None:
        clock = Stands()
        nodes = [Node(subject, 1, clock=clock, options=LinkOptions(few_delay_s=0.01))]
        address = await nodes[0].links.listen()
        connection = await subject.at(0).dial(address)
        await connection.write(hello(Identity(0, "job", "hash", 0), 1, 0))
        await connection.read()
        for frame in encode(Numbered(0, np.zeros(1)), edge=0, sequence=1):
            await connection.write(frame)
        await nodes[0].until(lambda: bool(nodes[0].messages))
        clock.at_s += 0.25
        header, payload = only_frame(await connection.read())
        ack = data_pb2.Ack()
        parse(payload, ack)
        assert (header.kind, ack.received, ack.held_us) == (data_pb2.KIND_ACK, 1, 250_000)
        await connection.close()
        await closed(nodes)

    run(body)


@pytest.mark.parametrize("callback", ["on_message", "on_end", "on_credit"])
def test_callback_that_raises_is_shown_and_costs_the_link(callback: str) -> None:
    def fail(*_: object) -> None:
        what = "boom"
        raise ZeroDivisionError(what)

    async def body(subject: Subject) -> None:
        shown: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: shown.append(context))
        broken = 0 if callback == "on_credit" else 1
        nodes = [Node(subject, number, **({callback: fail} if number == broken else {})) for number in (0, 1)]
        await connected(nodes)
        nodes[0].links.send(1, 0, Numbered(0, np.zeros(1)))
        nodes[0].links.send_end(1, 0)
        await nodes[0].until(lambda: bool(nodes[0].lost))
        assert "boom" in nodes[0].lost[0][1]
        assert [type(context["exception"]) for context in shown] == [ZeroDivisionError]
        await closed(nodes)

    run(body)


def test_reconnections_back_off_with_jitter_until_progress() -> None:
    pauses: list[float] = []

    async def sleep(duration_s: float) -> None:
        pauses.append(duration_s)

    async def body(subject: Subject) -> None:
        options = LinkOptions(first_backoff_s=1.0, max_backoff_s=4.0)
        nodes = [Node(subject, 0, options=options, sleep=sleep), Node(subject, 1)]
        await nodes[0].links.connect({1: await nodes[1].links.listen()})
        nodes[0].links.send(1, 0, Numbered(0, np.zeros(1)))
        await nodes[0].links.drain()
        await closed(nodes)

    faults = tuple(CutAfter(frames) for frames in (1, 1, 2, 3, 1))
    run_check(body, lambda: Subject.of(FaultyNetwork(MemoryNetwork(), faults, np.random.default_rng(0))))
    assert len(pauses) == 5
    for pause_s, mean_s in zip(pauses, (2.0, 4.0, 4.0, 4.0, 4.0), strict=True):
        assert 0.5 * mean_s <= pause_s <= 1.5 * mean_s
    assert len(set(pauses)) == 5


def test_patience_is_measured_on_the_injected_clock() -> None:
    class Clock:
        now_s = 0.0

        def now(self) -> float:
            return self.now_s

        def wall(self) -> float:
            return self.now_s

        def sleep(self, duration_s: float) -> None:
            raise NotImplementedError

    clock = Clock()

    async def sleep(_: float) -> None:
        clock.now_s += 1.0

    async def body(subject: Subject) -> None:
        node = Node(subject, 0, options=LinkOptions(patience_s=30.0), clock=clock, sleep=sleep)
        with pytest.raises(WireError, match=r"node 3: no connection for 30.0 s: nobody listens at memory:9"):
            await node.links.connect({3: "memory:9"})
        await closed([node])

    run(body)
    assert clock.now_s == 30.0


class Clock:
    """Goes on by a second whenever somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s

    async def sleep(self, _duration_s: float) -> None:
        self.now_s += 1.0


def test_link_that_nobody_waits_for_is_reported_when_it_cannot_be_made() -> None:
    async def body(subject: Subject) -> None:
        clock = Clock()
        node = Node(subject, 0, options=LinkOptions(patience_s=3.0), clock=clock, sleep=clock.sleep)
        node.links.open({3: "memory:9"})
        await node.until(lambda: bool(node.lost))
        assert node.lost == [(3, "no connection for 3.0 s: nobody listens at memory:9")]
        await closed([node])

    run(body)


@pytest.mark.parametrize(("talks_s", "lost_s"), [(0.0, 2.0), (5.0, 6.0), (100.0, 10.0)])
def test_peer_that_is_heard_is_given_longer_as_the_way_to_it_is_crowded_and_not_for_ever(
    talks_s: float, lost_s: float
) -> None:
    async def body(subject: Subject) -> None:
        clock, peer = Clock(), Node(subject, 1)

        async def sleep(_duration_s: float) -> None:
            clock.now_s += 1.0
            if clock.now_s < talks_s:
                peer.links.send(0, 0, Numbered(int(clock.now_s), np.zeros(1)))
                await node.until(lambda: len(node.messages[1, 0]) == clock.now_s)

        options = LinkOptions(patience_s=2.0, hearing_s=10.0)
        node = Node(subject, 0, options=options, clock=clock, sleep=sleep)
        await peer.links.connect({0: await node.links.listen()})
        node.links.open({1: "memory:9"})
        await node.until(lambda: bool(node.lost))
        assert clock.now_s == lost_s
        await closed([node, peer])

    run(body)


def test_link_that_was_lost_is_not_made_anew_for_the_same_incarnation_as_messages_would_be_missing() -> None:
    async def body(subject: Subject) -> None:
        clock = Clock()
        node = Node(subject, 0, options=LinkOptions(patience_s=3.0), clock=clock, sleep=clock.sleep)
        peer = Node(subject, 1)
        node.links.set_membership(1, {0: 0, 1: 0})
        node.links.open({1: "memory:9"})
        await node.until(lambda: bool(node.lost))
        node.links.send(1, 0, Numbered(0, np.zeros(1)))
        address = await peer.links.listen()
        with pytest.raises(WireError, match="cannot connect to node 1: no connection for"):
            await node.links.connect({1: address})
        node.links.set_membership(2, {0: 0})
        node.links.set_membership(3, {0: 0, 1: 0})
        await node.links.connect({1: address})
        node.links.send(1, 0, Numbered(1, np.zeros(1)))
        await node.links.drain()
        assert [message.number for message in peer.messages[0, 0] if isinstance(message, Numbered)] == [1]
        await closed([node, peer])

    run(body)


def test_credit_of_a_peer_that_has_left_is_not_told_though_it_has_arrived_by_then() -> None:
    """It would count as another's that joins in its place, whose streams begin with credit of their own."""

    async def body(subject: Subject) -> None:
        node = Node(subject, 0)

        async def accept(connection: Connection) -> None:
            await connection.read()
            await connection.write(pack_control(data_pb2.KIND_WELCOME, data_pb2.Welcome(incarnation=0)))
            await connected
            ack = data_pb2.Ack(credits=[data_pb2.Credit(edge=0, granted_nbytes=77)])
            await connection.write(pack_control(data_pb2.KIND_ACK, ack))
            node.links.set_membership(1, {0: 0, 1: 1})
            told.set()
            await connection.read()

        told = asyncio.Event()
        connected = asyncio.ensure_future(node.links.connect({1: await subject.at(1).listen(accept)}))
        await told.wait()
        await closed([node])
        assert not node.credits

    run(body)


HEARD_NOTHING, SILENT = "n", "-"


@pytest.mark.parametrize(
    ("answers", "lost"),
    [
        ("n" * 9, ""),
        ("n" * 11, "no connection for 10.0 s: refused: node 0 is not a member yet"),
        ("nnn-nnn-nn", ""),
        ("nnn-nnn-nnnnn", "no connection for 10.0 s: refused: node 0 is not a member yet"),
        ("nnn--", "no connection for 2.0 s: "),
    ],
)
def test_peer_that_has_yet_to_hear_of_a_newcomer_is_given_longer_than_one_that_does_not_answer(
    answers: str, lost: str
) -> None:
    async def body(subject: Subject) -> None:
        clock, left = Clock(), list(answers)

        async def accept(connection: Connection) -> None:
            await connection.read()
            answer = left.pop(0) if left else ""
            if answer == SILENT:
                return
            if answer == HEARD_NOTHING:
                await connection.write(refused(Refusal("node 0 is not a member yet", retry=True)))
            else:
                welcome = data_pb2.Welcome(incarnation=0)
                await connection.write(pack_control(data_pb2.KIND_WELCOME, welcome))
            await connection.read()

        options = LinkOptions(patience_s=2.0, hearing_s=10.0)
        node = Node(subject, 0, options=options, clock=clock, sleep=clock.sleep)
        connecting = node.links.connect({1: await subject.at(1).listen(accept)})
        if lost:
            with pytest.raises(WireError, match=lost):
                await connecting
        else:
            await connecting
        assert bool(node.lost) == bool(lost)
        await closed([node])

    run(body)


def test_error_that_nobody_expects_of_a_network_costs_the_link_and_is_shown() -> None:
    class Broken(MemoryNetwork):
        async def dial(self, address: str) -> Connection:
            raise OSError(24, f"Too many open files for {address}")

    async def body(subject: Subject) -> None:
        shown: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: shown.append(context["message"]))
        node = Node(subject, 0)
        with pytest.raises(WireError, match=r"cannot connect to node 1: .*Too many open files"):
            await node.links.connect({1: "memory:1"})
        assert [peer for peer, _ in node.lost] == [1]
        assert len(shown) == 1
        await closed([node])

    run_check(body, lambda: Subject.of(Broken()))


def test_close_while_connecting_ends_the_attempt() -> None:
    async def body(subject: Subject) -> None:
        node = Node(subject, 0, options=OPTIONS)
        connecting = asyncio.ensure_future(node.links.connect({1: "memory:9"}))
        await asyncio.sleep(0.01)
        await closed([node])
        with pytest.raises(WireError, match="cannot connect to node 1: closed"):
            await connecting

    run(body)


def test_statistics_count_both_directions_until_they_were_asked_for() -> None:
    async def body(subject: Subject) -> None:
        nodes = [Node(subject, 0), Node(subject, 1)]
        await connected(nodes)
        nodes[0].links.send(1, 0, Numbered(0, np.zeros(100)))
        nodes[0].links.send_end(1, 0)
        await nodes[0].links.drain()
        sent, received = nodes[0].links.statistics()[1], nodes[1].links.statistics()[0]
        assert (sent.sent_messages, sent.sent_frames, sent.resent_frames, sent.reconnections) == (1, 2, 0, 0)
        assert (received.received_messages, received.received_frames, received.duplicate_frames) == (1, 2, 0)
        assert sent.sent_nbytes == received.received_nbytes
        assert sent.received_nbytes == received.sent_nbytes
        nodes[0].links.send(1, 0, Numbered(1, np.zeros(100)))
        await nodes[0].links.drain()
        assert (sent.sent_messages, nodes[0].links.statistics()[1].sent_messages) == (1, 2)
        await closed(nodes)

    run(body)


def test_peers_meet_each_incarnation_as_the_membership_says() -> None:
    peers = Peers()
    assert peers.meet(1, 4, epoch=0) is None
    assert peers.meet(1, 4, epoch=0) is None
    assert peers.meet(1, 3, epoch=9) == Refusal("node 1 comes as incarnation 3, but incarnation 4 is the member")
    assert peers.meet(1, 5, epoch=0) == Refusal(
        "node 1 comes as incarnation 5, but incarnation 4 is the member", retry=True
    )
    assert peers.update(2, {1: 5, 2: 0}) == {1}
    assert peers.update(2, {1: 6}) == frozenset()
    assert peers.meet(1, 5, epoch=0) is None
    assert peers.meet(3, 0, epoch=2) == Refusal("node 3 is not a member as of epoch 2")
    assert peers.meet(3, 0, epoch=3) == Refusal("node 3 is not a member as of epoch 2", retry=True)
    assert peers.update(3, {2: 0}) == {1}
    assert peers.meet(1, 5, epoch=3) == Refusal("node 1 is not a member as of epoch 3")
