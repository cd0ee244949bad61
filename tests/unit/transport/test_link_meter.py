from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dataflow.errors import WireError
from dataflow.reports import LinkStatistics
from dataflow.testing.conformance import Node, Numbered, Subject, closed, connected, run_check
from dataflow.transport.faulty import CutAfter, FaultyNetwork
from dataflow.transport.link_meter import LinkMeter, Stopwatch
from dataflow.transport.link_options import LinkOptions
from dataflow.transport.memory import MemoryNetwork


class ManualClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def now(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


def test_meter_of_overlapping_messages_adds_delays_and_counts_busy_time_once() -> None:
    clock = ManualClock()
    meter = LinkMeter(clock, Stopwatch(clock))
    meter.handed(1)
    clock.sleep(1.0)
    meter.handed(3)
    clock.sleep(1.0)
    meter.acknowledged(2, 50)  # the first message, and one frame of the second
    assert meter.statistics() == LinkStatistics(nbytes=50, messages=1, busy_s=2.0, delay_s=2.0)
    clock.sleep(2.0)
    meter.acknowledged(3, 10)
    clock.sleep(5.0)
    assert meter.statistics() == LinkStatistics(nbytes=60, messages=2, busy_s=4.0, delay_s=5.0)
    assert meter.statistics().goodput == 15.0
    assert meter.statistics().mean_delay_s == 2.5


def test_meter_does_not_count_the_time_that_the_peer_kept_an_acknowledgement() -> None:
    clock = ManualClock()
    node = Stopwatch(clock)
    meter, other = LinkMeter(clock, node), LinkMeter(clock, node)
    meter.handed(1)
    other.handed(1)
    clock.sleep(3.0)
    meter.acknowledged(1, 10, held_s=1.0)
    other.acknowledged(1, 10, held_s=2.0)
    assert meter.statistics() == LinkStatistics(nbytes=10, messages=1, busy_s=2.0, delay_s=2.0)
    assert other.statistics() == LinkStatistics(nbytes=10, messages=1, busy_s=1.0, delay_s=1.0)
    assert node.total_s() == 2.0
    meter.handed(2)
    clock.sleep(1.0)
    meter.acknowledged(2, 10, held_s=5.0)  # a peer whose clock is wrong
    assert meter.statistics() == LinkStatistics(nbytes=20, messages=2, busy_s=2.0, delay_s=2.0)


def test_meter_while_nothing_is_acknowledged_grows_busy() -> None:
    clock = ManualClock()
    meter = LinkMeter(clock, Stopwatch(clock))
    meter.handed(1)
    clock.sleep(3.0)
    assert meter.statistics() == LinkStatistics(busy_s=3.0)
    assert meter.statistics().goodput == 0.0
    assert meter.statistics().mean_delay_s == 0.0


def test_meter_of_a_link_given_up_stops_and_begins_anew() -> None:
    clock = ManualClock()
    meter = LinkMeter(clock, Stopwatch(clock))
    meter.handed(7)
    clock.sleep(1.0)
    meter.given_up()
    meter.given_up()
    clock.sleep(1.0)
    meter.handed(1)  # of the link that replaces it
    clock.sleep(1.0)
    meter.acknowledged(1, 5)
    assert meter.statistics() == LinkStatistics(nbytes=5, messages=1, busy_s=2.0, delay_s=1.0)


def test_stopwatch_of_two_links_is_the_union_of_their_busy_times() -> None:
    clock = ManualClock()
    node = Stopwatch(clock)
    one, two = LinkMeter(clock, node), LinkMeter(clock, node)
    one.handed(1)
    clock.sleep(2.0)
    two.handed(1)
    clock.sleep(1.0)
    one.acknowledged(1, 1)
    clock.sleep(4.0)
    assert node.total_s() == 7.0  # still running
    two.acknowledged(1, 1)
    clock.sleep(8.0)
    two.handed(2)
    clock.sleep(0.5)
    two.acknowledged(2, 1)
    assert node.total_s() == 7.5
    assert (one.statistics().busy_s, two.statistics().busy_s) == (3.0, 5.5)


def run(body: Callable[[Subject], Any], network: Callable[[], Subject] = lambda: Subject.of(MemoryNetwork())) -> None:
    run_check(body, network)


def test_deliveries_of_links_tell_what_each_peer_acknowledged() -> None:
    async def body(subject: Subject) -> None:
        clock = ManualClock()
        nodes = [Node(subject, number, clock=clock) for number in range(3)]
        await connected(nodes)
        for number in range(10):
            nodes[0].links.send(1, 0, Numbered(number, np.zeros(1_000)))
        clock.sleep(0.5)  # nothing was written yet: the loop has not run
        assert nodes[0].links.deliveries()[1] == LinkStatistics(busy_s=0.5)
        assert nodes[0].links.busy_s() == 0.5
        await nodes[0].links.drain()
        clock.sleep(4.0)
        found = nodes[0].links.deliveries()
        assert (found[1].messages, found[1].busy_s, found[1].delay_s) == (10, 0.5, 5.0)
        assert 80_000 < found[1].nbytes < 82_000
        assert found[2] == LinkStatistics()
        assert nodes[0].links.busy_s() == 0.5
        await closed(nodes)

    run(body)


def test_deliveries_over_a_connection_that_breaks_count_every_message_once() -> None:
    async def body(subject: Subject) -> None:
        nodes = [Node(subject, 0, options=LinkOptions(first_backoff_s=0.001, max_backoff_s=0.002)), Node(subject, 1)]
        await connected(nodes)
        for number in range(100):
            nodes[0].links.send(1, 0, Numbered(number, np.zeros(10)))
            await asyncio.sleep(0)
        await nodes[0].links.drain()
        found = nodes[0].links.deliveries()[1]
        assert found.messages == 100
        assert 8_000 < found.nbytes < 20_000
        await closed(nodes)

    run(body, lambda: Subject.of(FaultyNetwork(MemoryNetwork(), (CutAfter(3), CutAfter(20)), np.random.default_rng(0))))


def test_deliveries_of_a_lost_link_stop_being_busy() -> None:
    async def body(subject: Subject) -> None:
        clock = ManualClock()
        nodes = [Node(subject, 0, clock=clock), Node(subject, 1)]
        await connected(nodes)
        nodes[0].links.send(1, 0, Numbered(0, np.zeros(10)))
        clock.sleep(1.0)
        nodes[0].links.set_membership(1, {0: 0})
        clock.sleep(1.0)
        assert nodes[0].links.deliveries()[1] == LinkStatistics(busy_s=1.0)
        assert nodes[0].links.busy_s() == 1.0
        with pytest.raises(WireError, match="no link to node 1"):
            nodes[0].links.send(1, 0, Numbered(1, np.zeros(10)))
        await closed(nodes)

    run(body)
