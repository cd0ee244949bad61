"""What every network must do, alone and below links: a public suite of checks to run against an implementation.

    @pytest.mark.parametrize("check", NETWORK_CHECKS + PROTOCOL_CHECKS + LINK_CHECKS)
    def test_my_network(check):
        run_check(check, lambda: Subject.of(MyNetwork()))

`LINK_CHECKS` hold for networks that lose connections too; the others need one that keeps them.
A check raises AssertionError, or whatever error the network should not have raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import numpy as np

from dataflow.errors import WireError
from dataflow.testing.linked_nodes import (
    Check,
    Node,
    Numbered,
    Subject,
    assert_delivered,
    closed,
    connected,
    numbered,
    run_check,
)
from dataflow.transport.base import Connection, ConnectionLostError
from dataflow.transport.codec import encode, encode_end
from dataflow.transport.frames import MAX_PACKET_NBYTES, WIRE_VERSION, only_frame, pack_control, parse
from dataflow.transport.generated import data_pb2
from dataflow.transport.link_options import LinkOptions

__all__ = ["LINK_CHECKS", "NETWORK_CHECKS", "PROTOCOL_CHECKS", "Check", "Subject", "run_check"]

# Networks alone


async def check_packets_arrive_in_order_both_ways(subject: Subject) -> None:
    """Packets of all sizes come back from an echo, equal and in order, while more are being written."""

    async def echo(connection: Connection) -> None:
        while True:
            await connection.write(await connection.read())

    rng = np.random.default_rng(3)
    sizes = [1, MAX_PACKET_NBYTES, *(int(size) for size in rng.integers(1, 50_000, 60))]
    packets = [rng.bytes(size) for size in sizes]
    address = await subject.at(0).listen(echo)
    connection = await subject.at(1).dial(address)

    async def write() -> None:
        for packet in packets:
            await connection.write(packet)

    writing = asyncio.ensure_future(write())
    try:
        for packet in packets:
            assert await connection.read() == packet
    finally:
        await writing
        await connection.close()


async def check_dial_where_nobody_listens_is_lost(subject: Subject) -> None:
    """Dialling an address that is no longer listened at raises ConnectionLostError."""

    async def accept(connection: Connection) -> None:
        await connection.read()

    address = await subject.at(0).listen(accept)
    await subject.close()
    await _raises(ConnectionLostError, subject.at(1).dial(address), "")


async def check_close_is_seen_by_the_other_side(subject: Subject) -> None:
    """Whoever closes or stops serving, pending and later calls of both sides raise ConnectionLostError."""
    ended = asyncio.Event()

    async def accept(connection: Connection) -> None:
        command = await connection.read()
        if command == b"return":
            return
        try:
            if command == b"close":
                await connection.close()
            await connection.read()
        finally:
            ended.set()

    address = await subject.at(0).listen(accept)
    for command in (b"return", b"close", b"wait"):
        ended.clear()
        connection = await subject.at(1).dial(address)
        await connection.write(command)
        reading = asyncio.ensure_future(connection.read())
        if command == b"wait":
            await asyncio.sleep(0.01)
            await connection.close()
            await ended.wait()
        await _raises(ConnectionLostError, reading, "")
        await _raises(ConnectionLostError, connection.read(), "")
        await _raises(ConnectionLostError, connection.write(b"more"), "")
        await connection.close()
        await connection.close()


# Links, against a hand-written other end


async def check_handshake_refuses_another_wire_version(subject: Subject) -> None:
    """A Hello of another wire version is answered with both versions."""
    node = Node(subject, 0)
    refused = await _greet(subject, await node.links.listen(), _hello(wire_version=WIRE_VERSION + 1))
    assert refused.reason == f"wire version is {WIRE_VERSION} at node 0, {WIRE_VERSION + 1} at node 1"
    assert not refused.retry
    await closed([node])


async def check_garbage_in_place_of_a_hello_is_refused(subject: Subject) -> None:
    """Garbage costs its connection only."""
    node = Node(subject, 0)
    refused = await _greet(subject, await node.links.listen(), b"GET / HTTP/1.1\r\n\r\n")
    assert refused.reason
    assert node.lost == []
    await closed([node])


async def check_gap_in_the_sequence_loses_the_link(subject: Subject) -> None:
    """A missing frame is refused and reported, duplicates are dropped, and the source may not come back."""
    node = Node(subject, 0)
    address = await node.links.listen()
    connection = await subject.at(1).dial(address)
    await connection.write(_hello())
    header, _ = only_frame(await connection.read())
    assert header.kind == data_pb2.KIND_WELCOME
    (first,) = encode(Numbered(0, np.zeros(1)), edge=0, sequence=1)
    await connection.write(first + first + encode_end(edge=0, sequence=3))
    await node.until(lambda: bool(node.lost))
    assert len(node.messages[1, 0]) == 1
    assert node.lost == [(1, "frame 2 of node 1 is missing (got 3)")]
    assert node.links.statistics()[1].duplicate_frames == 1
    await connection.close()
    refused = await _greet(subject, address, _hello())
    assert refused.reason == "its link was given up: frame 2 of node 1 is missing (got 3)"
    await closed([node])


async def check_restarted_receiver_is_reported_not_resumed(subject: Subject) -> None:
    """A peer that answers as another incarnation after a reconnection loses the link."""
    incarnations = iter((0, 1))

    async def accept(connection: Connection) -> None:
        await connection.read()
        welcome = data_pb2.Welcome(incarnation=next(incarnations))
        await connection.write(pack_control(data_pb2.KIND_WELCOME, welcome))
        await connection.read()

    node = Node(subject, 0)
    await node.links.connect({1: await subject.at(1).listen(accept)})
    node.links.send(1, 0, Numbered(0, np.zeros(1)))
    await node.until(lambda: bool(node.lost))
    assert node.lost == [(1, "node 1 was restarted: incarnation 0 became 1")]
    node.links.send(1, 0, Numbered(1, np.zeros(1)))
    assert node.links.statistics()[1].discarded_messages == 1
    await _raises(WireError, node.links.drain(), "1 frames to node 1 are lost: node 1 was restarted")
    await closed([node])


# Links between nodes


async def check_messages_arrive_once_in_order_and_intact(subject: Subject) -> None:
    """Two nodes stream to each other over several edges within a small credit, which adds up to the byte."""
    edges, window_nbytes = 5, 20_000
    nodes = [Node(subject, 0, edges=edges), Node(subject, 1, edges=edges)]
    for node in nodes:
        for edge in range(edges):
            node.links.grant(1 - node.number, edge, window_nbytes)
    await connected(nodes)
    sent = {(node, edge): numbered(60, seed=10 * node + edge) for node in (0, 1) for edge in range(edges)}
    streams = [nodes[node].stream(1 - node, edge, messages) for (node, edge), messages in sent.items()]
    await asyncio.gather(*streams)
    for node in nodes:
        await node.links.drain()
        await node.until(lambda node=node: list(node.credits.values()) == [window_nbytes] * edges)  # type: ignore[misc]
    for (source, edge), messages in sent.items():
        assert_delivered(nodes[1 - source].messages[source, edge], messages)
    assert [node.lost for node in nodes] == [[], []]
    assert nodes[0].links.statistics()[1].sent_messages == nodes[1].links.statistics()[0].received_messages == 300
    await closed(nodes)


async def check_messages_of_one_peer_arrive_in_the_order_sent(subject: Subject) -> None:
    """Order holds over all edges of a link, not only within each."""
    nodes = [Node(subject, 0, edges=7), Node(subject, 1, edges=7)]
    await connected(nodes)
    edges = [int(edge) for edge in np.random.default_rng(5).integers(0, 7, 500)]
    for number, edge in enumerate(edges):
        nodes[0].links.send(1, edge, Numbered(number, np.zeros(3)))
    await nodes[0].links.drain()
    assert nodes[1].order == [(0, edge) for edge in edges]
    await closed(nodes)


async def check_large_messages_arrive_whole(subject: Subject) -> None:
    """Messages of many frames arrive intact between small ones."""
    nodes = [Node(subject, 0), Node(subject, 1)]
    await connected(nodes)
    rng = np.random.default_rng(1)
    sent = [Numbered(n, rng.integers(0, 256, size, np.uint8)) for n, size in enumerate((3, 5 << 20, 0, 1 << 20, 7))]
    for message in sent:
        nodes[0].links.send(1, 0, message)
    nodes[0].links.send_end(1, 0)
    await nodes[0].links.drain()
    assert_delivered(nodes[1].messages[0, 0], sent)
    await closed(nodes)


async def check_many_nodes_stream_to_one(subject: Subject) -> None:
    """Links of several sources do not disturb each other."""
    nodes = [Node(subject, number) for number in range(5)]
    addresses = [await node.links.listen() for node in nodes]
    sent = {node.number: numbered(40, seed=node.number) for node in nodes[1:]}
    for source, messages in sent.items():
        await nodes[source].links.connect({0: addresses[0]})
        for message in messages:
            nodes[source].links.send(0, 0, message)
        nodes[source].links.send_end(0, 0)
    for source, messages in sent.items():
        await nodes[source].links.drain()
        assert_delivered(nodes[0].messages[source, 0], messages)
    await closed(nodes)


async def check_handshake_names_what_differs(subject: Subject) -> None:
    """Another job, plan or node is refused with both values, naming the node."""
    cases: tuple[tuple[dict[str, Any], int, str], ...] = (
        ({"job": "other"}, 0, "job is 'job' at node 0, 'other' at node 1"),
        ({"plan_hash": "feed"}, 0, "plan hash is 'hash' at node 0, 'feed' at node 1"),
        ({}, 7, "target node is 0 at node 0, 7 at node 1"),
    )
    target = Node(subject, 0)
    address = await target.links.listen()
    for settings, peer, reason in cases:
        source = Node(subject, 1, **settings)
        expected = f"cannot connect to node {peer}: refused: {reason} at {address}"
        await _raises(WireError, source.links.connect({peer: address}), expected)
        assert source.lost == [(peer, f"refused: {reason}")]
        await closed([source])
    assert target.lost == []
    await closed([target])


async def check_peer_that_is_gone_is_reported(subject: Subject) -> None:
    """After `patience_s` without the peer the link is lost: reported once, with what was not delivered."""
    options = LinkOptions(patience_s=0.3, first_backoff_s=0.001, max_backoff_s=0.02)
    nodes = [Node(subject, 0, options=options), Node(subject, 1)]
    addresses = await connected(nodes)
    await nodes[1].links.close()
    nodes[0].links.send(1, 0, Numbered(0, np.zeros(1)))
    await nodes[0].until(lambda: bool(nodes[0].lost))
    ((peer, reason),) = nodes[0].lost
    assert peer == 1
    assert reason.startswith("no connection for 0.3 s")
    await _raises(WireError, nodes[0].links.drain(), "1 frames to node 1 are lost")
    await _raises(WireError, nodes[0].links.connect({1: addresses[1]}), "cannot connect to node 1: no connection for")
    await closed(nodes)


async def check_restarted_sender_waits_for_the_membership(subject: Subject) -> None:
    """A source that comes back is reported and refused until the membership names it; the old one is fenced."""
    target, first = Node(subject, 0), Node(subject, 1)
    address = (await connected([target, first]))[0]
    first.links.send(0, 0, Numbered(0, np.zeros(1)))
    await first.links.drain()
    await first.links.close()
    second = Node(subject, 1, incarnation=1)
    connecting = asyncio.ensure_future(second.links.connect({0: address}))
    reason = "node 1 comes as incarnation 1, but incarnation 0 is the member"
    await target.until(lambda: (1, reason) in target.lost)
    target.links.set_membership(1, {0: 0, 1: 1})
    target.links.grant(1, 0, 77)
    await connecting
    second.links.send(0, 0, Numbered(1, np.zeros(1)))
    await second.links.drain()
    got = [message.number for message in target.messages[1, 0] if isinstance(message, Numbered)]
    assert got == [0, 1]
    await second.until(lambda: second.credits[0, 0] >= 77)
    late = Node(subject, 1)
    await _raises(WireError, late.links.connect({0: address}), "incarnation 0, but incarnation 1 is the member")
    await closed([target, second, late])


async def check_node_that_left_is_dropped(subject: Subject) -> None:
    """A node that the membership leaves out is neither sent to nor listened to."""
    nodes = [Node(subject, 0), Node(subject, 1)]
    addresses = await connected(nodes)
    nodes[0].links.set_membership(1, {0: 0})
    nodes[0].links.set_membership(1, {0: 0, 1: 0})  # not newer: changes nothing
    nodes[0].links.send(1, 0, Numbered(0, np.zeros(1)))
    await nodes[0].links.drain()
    assert nodes[0].links.statistics()[1].sent_messages == 0
    await nodes[1].until(lambda: bool(nodes[1].lost))
    assert nodes[1].lost == [(0, "refused: node 1 is not a member as of epoch 1")]
    await _raises(WireError, nodes[1].links.connect({0: addresses[0]}), "node 1 is not a member as of epoch 1")
    assert nodes[0].lost == []
    await closed(nodes)


NETWORK_CHECKS: tuple[Check, ...] = (
    check_packets_arrive_in_order_both_ways,
    check_dial_where_nobody_listens_is_lost,
    check_close_is_seen_by_the_other_side,
)
PROTOCOL_CHECKS: tuple[Check, ...] = (
    check_handshake_refuses_another_wire_version,
    check_garbage_in_place_of_a_hello_is_refused,
    check_gap_in_the_sequence_loses_the_link,
    check_restarted_receiver_is_reported_not_resumed,
)
LINK_CHECKS: tuple[Check, ...] = (
    check_messages_arrive_once_in_order_and_intact,
    check_messages_of_one_peer_arrive_in_the_order_sent,
    check_large_messages_arrive_whole,
    check_many_nodes_stream_to_one,
    check_handshake_names_what_differs,
    check_peer_that_is_gone_is_reported,
    check_restarted_sender_waits_for_the_membership,
    check_node_that_left_is_dropped,
)


def _hello(**fields: Any) -> bytes:
    values: dict[str, Any] = {"wire_version": WIRE_VERSION, "job": "job", "plan_hash": "hash", "source": 1, "target": 0}
    return pack_control(data_pb2.KIND_HELLO, data_pb2.Hello(**(values | fields)))


async def _greet(subject: Subject, address: str, packet: bytes) -> data_pb2.Refused:
    """Send `packet` as the first of a connection; returns the refusal that it must earn."""
    connection = await subject.at(1).dial(address)
    await connection.write(packet)
    header, payload = only_frame(await connection.read())
    assert header.kind == data_pb2.KIND_REFUSED
    refused = data_pb2.Refused()
    parse(payload, refused)
    await connection.close()
    return refused


async def _raises(kind: type[Exception], awaitable: Awaitable[object], part: str) -> None:
    try:
        await awaitable
    except kind as error:
        assert part in str(error), f"{part!r} is not in {error}"  # noqa: PT017
    else:
        what = f"{kind.__name__} was not raised"
        raise AssertionError(what)
