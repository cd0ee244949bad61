"""Delivery stays exact while connections are cut hundreds of times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dataflow.testing.linked_nodes import (
    OPTIONS,
    Node,
    Subject,
    assert_delivered,
    closed,
    connected,
    numbered,
    run_check,
)
from dataflow.transport.base import Network
from dataflow.transport.faulty import CutAfter, Delay, FaultyNetwork
from dataflow.transport.grpc_connection import GrpcNetwork
from dataflow.transport.memory import MemoryNetwork

CUTS = 150

INNER: dict[str, Callable[[], Network]] = {"memory": MemoryNetwork, "grpc": GrpcNetwork}


@pytest.mark.parametrize("inner", INNER)
def test_streams_cut_hundreds_of_times_are_exact(inner: str) -> None:
    """Two networks at once: most of the time each waits until it connects again, or hears of what has arrived."""
    networks = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        cuts = (CutAfter(int(frames)) for frames in rng.integers(1, 12, CUTS))
        networks.append(FaultyNetwork(INNER[inner](), (*cuts, Delay(0.0, 0.0002)), rng))

    async def close() -> None:
        await asyncio.gather(*(network.close() for network in networks))

    async def check(_subject: Subject) -> None:
        await asyncio.gather(*(_is_exact(Subject.of(network), seed) for seed, network in enumerate(networks)))

    run_check(check, lambda: Subject(networks[0].at, close))


async def _is_exact(subject: Subject, seed: int) -> None:
    window_nbytes = 3_000
    options = replace(OPTIONS, few_delay_s=0.01)  # credit is for few bytes here
    nodes = [Node(subject, number, options=options) for number in (0, 1)]
    for node in nodes:
        node.links.grant(1 - node.number, 0, window_nbytes)
    await connected(nodes)
    sent = [numbered(500, seed=10 * seed + number, most=500) for number in (0, 1)]
    await asyncio.gather(*(nodes[number].stream(1 - number, 0, sent[number]) for number in (0, 1)))
    for node in nodes:
        await node.links.drain()
        await node.until(lambda node=node: node.credits[1 - node.number, 0] == window_nbytes)  # type: ignore[misc]
    for number in (0, 1):
        assert_delivered(nodes[1 - number].messages[number, 0], sent[number])
    statistics = [node.links.statistics()[1 - node.number] for node in nodes]
    assert sum(one.reconnections for one in statistics) > CUTS // 2  # the others were cut while greeting
    assert sum(one.resent_frames for one in statistics) > 0
    assert [one.received_messages for one in statistics] == [500, 500]
    await closed(nodes)


@pytest.mark.parametrize("inner", INNER)
def test_large_message_cut_between_its_parts_arrives_once(inner: str) -> None:
    async def check(subject: Subject) -> None:
        nodes = [Node(subject, 0), Node(subject, 1)]
        await connected(nodes)
        sent = numbered(4, seed=0, most=3 << 20)  # up to 12 parts each
        for message in sent:
            nodes[0].links.send(1, 0, message)
        nodes[0].links.send_end(1, 0)
        await nodes[0].links.drain()
        assert_delivered(nodes[1].messages[0, 0], sent)
        assert nodes[0].links.statistics()[1].reconnections > 0
        await closed(nodes)

    faults = tuple(CutAfter(frames) for frames in (4, 7, 5, 9, 3, 6))
    run_check(check, lambda: Subject.of(FaultyNetwork(INNER[inner](), faults, np.random.default_rng(0))))
