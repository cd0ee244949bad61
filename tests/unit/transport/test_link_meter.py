from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dataflow.reports import LinkStatistics
from dataflow.testing.linked_nodes import Node, Numbered, Subject, closed, connected, run_check
from dataflow.transport.faulty import CutAfter, FaultyNetwork
from dataflow.transport.link_meter import LinkMeters
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


HELD_S = 0.25
"""Peers hold acknowledgements back for so long at most."""


def test_meter_of_overlapping_messages_adds_delays_and_counts_busy_time_once() -> None:
    clock = ManualClock()
    meter = LinkMeters(clock, HELD_S).of(1)
    meter.handed(1)
    clock.sleep(1.0)
    meter.handed(3)
    clock.sleep(1.0)
    meter.acknowledged(2, 50, 0.0)  # the first message, and one frame of the second
    assert meter.statistics() == LinkStatistics(nbytes=50, messages=1, busy_s=2.0, delay_s=2.0)
    clock.sleep(2.0)
    meter.acknowledged(3, 10, 0.0)
    clock.sleep(5.0)
    assert meter.statistics() == LinkStatistics(nbytes=60, messages=2, busy_s=4.0, delay_s=5.0)
    assert meter.statistics().goodput == 15.0
    assert meter.statistics().mean_delay_s == 2.5


def test_meter_does_not_count_the_time_for_which_the_peer_held_the_acknowledgement() -> None:
    clock = ManualClock()
    meter = LinkMeters(clock, HELD_S).of(1)
    meter.handed(1)
    clock.sleep(0.125)  # it may have arrived long ago
    assert meter.statistics() == LinkStatistics()
    clock.sleep(0.125)
    meter.acknowledged(1, 50, 0.1875)
    assert meter.statistics() == LinkStatistics(nbytes=50, messages=1, busy_s=0.0625, delay_s=0.0625)


def test_meter_of_messages_acknowledged_together_takes_each_to_have_been_as_fast_as_the_last() -> None:
    clock = ManualClock()
    node = LinkMeters(clock, HELD_S)
    meter = node.of(1)
    for number in range(4):  # handed over at 0, 1/16, 2/16 and 3/16 s; each is there 1/64 s later
        meter.handed(number + 1)
        clock.sleep(0.0625)
    meter.acknowledged(4, 80, 0.0625 - 1 / 64)
    assert meter.statistics() == LinkStatistics(nbytes=80, messages=4, busy_s=4 / 64, delay_s=4 / 64)
    assert node.busy_s() == 4 / 64


def test_meter_of_messages_that_came_together_after_a_stall_counts_the_stall() -> None:
    clock = ManualClock()
    node = LinkMeters(clock, HELD_S)
    meter = node.of(1)
    meter.handed(1)
    clock.sleep(8.0)
    meter.handed(2)
    clock.sleep(0.125)
    meter.acknowledged(2, 20, 0.0)  # the first came in during the last quarter of a second, or it had been told before
    assert meter.statistics() == LinkStatistics(nbytes=20, messages=2, busy_s=8.0, delay_s=7.875 + 0.125)
    assert node.busy_s() == 8.0


def test_meter_while_nothing_is_acknowledged_grows_busy_but_for_what_may_be_held_back() -> None:
    clock = ManualClock()
    node = LinkMeters(clock, HELD_S)
    meter = node.of(1)
    meter.handed(1)
    clock.sleep(3.0)
    assert meter.statistics() == LinkStatistics(busy_s=2.75)
    assert node.busy_s() == 2.75
    assert meter.statistics().goodput == 0.0
    assert meter.statistics().mean_delay_s == 0.0


def test_meter_of_a_peer_that_acknowledges_too_late_takes_back_nothing_that_it_has_told() -> None:
    """Its event loop stood still for longer than acknowledgements are held back."""
    clock = ManualClock()
    node = LinkMeters(clock, HELD_S)
    meter = node.of(1)
    meter.handed(1)
    clock.sleep(8.0)
    assert (meter.statistics().busy_s, node.busy_s()) == (7.75, 7.75)
    meter.acknowledged(1, 20, 7.0)
    assert meter.statistics() == LinkStatistics(nbytes=20, messages=1, busy_s=7.75, delay_s=7.75)
    assert node.busy_s() == 7.75


def test_meters_keep_no_more_of_a_node_while_one_of_its_peers_is_silent() -> None:
    clock = ManualClock()
    node = LinkMeters(clock, HELD_S)
    silent, other = node.of(1), node.of(2)
    silent.handed(1)
    for number in range(3000):  # 2 ms each, in half of which something is on its way to the other peer
        other.handed(number + 1)
        clock.sleep(1 / 1024)
        other.acknowledged(number + 1, 10, 0.0)
        clock.sleep(1 / 1024)
    assert node.busy_s() == 6000 / 1024 - HELD_S
    assert len(node._spans) <= HELD_S / (2 / 1024)
    silent.acknowledged(1, 10, 0.0)
    assert node.busy_s() == 6000 / 1024


def test_meter_of_a_link_given_up_stops_and_begins_anew() -> None:
    clock = ManualClock()
    meter = LinkMeters(clock, HELD_S).of(1)
    meter.handed(7)
    clock.sleep(1.0)
    meter.given_up()
    meter.given_up()
    clock.sleep(1.0)
    meter.handed(1)  # of the link that replaces it
    clock.sleep(1.0)
    meter.acknowledged(1, 5, 0.0)
    assert meter.statistics() == LinkStatistics(nbytes=5, messages=1, busy_s=2.0, delay_s=1.0)


def test_node_is_busy_for_the_union_of_what_its_links_are() -> None:
    clock = ManualClock()
    node = LinkMeters(clock, HELD_S)
    node.of(1).handed(1)
    clock.sleep(2.0)
    node.of(2).handed(1)
    clock.sleep(1.0)
    node.of(1).acknowledged(1, 1, 0.0)
    clock.sleep(4.25)
    assert node.busy_s() == 7.0  # the second is under way, but for what may be held back
    node.of(2).acknowledged(1, 1, 0.125)
    clock.sleep(8.0)
    node.of(2).handed(2)
    clock.sleep(0.5)
    node.of(2).acknowledged(2, 1, 0.0)
    assert node.busy_s() == 7.625
    assert [link.busy_s for link in node.statistics().values()] == [3.0, 5.625]


def test_busy_times_of_many_links_at_random_are_those_of_their_messages_and_never_shrink() -> None:
    rng, clock = np.random.default_rng(5), ManualClock()
    clock.now_s = 0.0
    node = LinkMeters(clock, HELD_S)
    begun: dict[int, list[float]] = {peer: [] for peer in range(3)}
    numbers = dict.fromkeys(begun, 0)
    busy = np.zeros(60_000, dtype=bool)  # in milliseconds
    told = 0.0
    for at_ms in range(50_000):
        clock.now_s = at_ms / 1000
        for peer, under_way in begun.items():
            if rng.random() < 0.002:
                numbers[peer] += 1
                node.of(peer).handed(numbers[peer])
                under_way.append(at_ms)
            elif under_way and rng.random() < 0.003:
                busy[int(under_way[0]) : at_ms] = True
                under_way.clear()
                node.of(peer).acknowledged(numbers[peer], 1, 0.0)
        if rng.random() < 0.01:
            assert node.busy_s() >= told
            told = node.busy_s()
    for peer, under_way in begun.items():
        if under_way:
            busy[int(under_way[0]) : at_ms] = True
            node.of(peer).given_up()
    # Messages that were acknowledged together count from when each was handed over, less what may have been held back.
    assert 0.8 * busy.sum() < 1000 * node.busy_s() <= busy.sum() + 1e-6


def run(body: Callable[[Subject], Any], network: Callable[[], Subject] = lambda: Subject.of(MemoryNetwork())) -> None:
    run_check(body, network)


def test_deliveries_of_links_tell_what_each_peer_acknowledged() -> None:
    async def body(subject: Subject) -> None:
        clock = ManualClock()
        nodes = [Node(subject, 0, clock=clock), Node(subject, 1), Node(subject, 2)]
        await connected(nodes)
        for number in range(10):
            nodes[0].links.send(1, 0, Numbered(number, np.zeros(1_000)))
        clock.sleep(0.5)  # nothing was written yet: the loop has not run
        may_be_held_s = LinkOptions().longest_delay_s
        assert nodes[0].links.carried()[0][1].busy_s == pytest.approx(0.5 - may_be_held_s)
        assert nodes[0].links.carried()[1] == pytest.approx(0.5 - may_be_held_s)
        nodes[0].links.send_end(1, 0)  # acknowledged at once, and all before it
        await nodes[0].links.drain()
        clock.sleep(4.0)
        found = nodes[0].links.carried()[0]
        assert found[1].messages == 11
        assert (found[1].busy_s, found[1].delay_s) == pytest.approx((0.5 - may_be_held_s, 5.0 - 10 * may_be_held_s))
        assert 80_000 < found[1].nbytes < 82_000
        assert found[2] == LinkStatistics()
        assert nodes[0].links.carried()[1] == found[1].busy_s
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
        found = nodes[0].links.carried()[0][1]
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
        assert nodes[0].links.carried()[0][1] == LinkStatistics(busy_s=1.0)
        assert nodes[0].links.carried()[1] == 1.0
        nodes[0].links.send(1, 0, Numbered(1, np.zeros(10)))  # to nobody
        assert nodes[0].links.carried()[1] == 1.0
        await closed(nodes)

    run(body)
