from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.reports import LinkStatistics
from dataflow.testing.linked_nodes import Node, Numbered, Subject, closed, connected, run_check
from dataflow.transport.busy_links import BusyLinks
from dataflow.transport.memory import MemoryNetwork
from tests.unit.transport.test_link_meter import ManualClock


class Busy:
    """A node's links at a clock that is set by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.links = BusyLinks(self.clock)

    def after(
        self, seconds: float, waited_s: dict[int, float], any_s: float, counted_s: dict[int, float]
    ) -> tuple[dict[int, float], float]:
        """Busy seconds of each link and of any, after some more seconds."""
        self.clock.sleep(seconds)
        measured = {peer: LinkStatistics(100, 1, busy_s, 0.5) for peer, busy_s in waited_s.items()}
        links, busy_s = self.links.add(measured, any_s, counted_s)
        assert all((link.nbytes, link.messages, link.delay_s) == (100, 1, 0.5) for link in links.values())
        return {peer: link.busy_s for peer, link in links.items()}, busy_s


def test_links_that_no_kernel_counts_are_busy_while_something_waits_for_acknowledgements() -> None:
    busy = Busy()
    assert busy.after(1.0, {1: 0.5, 2: 0.75}, 0.875, {}) == ({1: 0.5, 2: 0.75}, 0.875)
    assert busy.after(1.0, {1: 1.5, 2: 0.75}, 1.875, {}) == ({1: 1.5, 2: 0.75}, 1.875)


def test_acknowledgements_that_are_late_make_no_link_busy_that_the_kernel_counts() -> None:
    busy = Busy()
    assert busy.after(1.0, {1: 1.0}, 1.0, {1: 0.125}) == ({1: 0.125}, 0.125)
    assert busy.after(1.0, {1: 2.0}, 2.0, {1: 0.25}) == ({1: 0.25}, 0.25)


@pytest.mark.parametrize(
    ("counted_s", "any_s"),
    [([0.5, 0.5], 0.75), ([0.0, 1.0], 1.0), ([0.25, 0.0], 0.25), ([1.25, 0.5], 1.0), ([0.25, 0.5, 0.25, 0.5], 0.8125)],
)
def test_any_link_is_busy_as_if_the_three_busiest_were_by_chance(counted_s: list[float], any_s: float) -> None:
    waited_s = dict.fromkeys(range(len(counted_s)), 1.0)
    assert Busy().after(1.0, waited_s, 1.0, dict(enumerate(counted_s)))[1] == any_s


def test_link_that_is_not_counted_is_busy_as_its_acknowledgements_say_beside_others_that_are() -> None:
    assert Busy().after(2.0, {1: 2.0, 2: 0.5}, 2.0, {1: 1.0}) == ({1: 1.0, 2: 0.5}, 1.25)
    assert Busy().after(2.0, {1: 2.0, 2: 1.5}, 2.0, {1: 1.0}) == ({1: 1.0, 2: 1.5}, 1.75)


def test_new_connection_to_a_peer_adds_what_is_counted_of_it() -> None:
    busy = Busy()
    busy.after(50.0, {1: 45.0, 2: 45.0}, 45.0, {1: 40.0, 2: 40.0})
    assert busy.after(0.5, {1: 45.5, 2: 45.5}, 45.5, {1: 0.125, 2: 40.25}) == ({1: 40.125, 2: 40.25}, 48.3125)
    assert busy.after(0.5, {1: 46.0, 2: 46.0}, 46.0, {1: 0.25, 2: 40.25}) == ({1: 40.25, 2: 40.25}, 48.4375)


def test_end_of_the_older_of_two_connections_to_a_peer_adds_no_more_than_the_while() -> None:
    busy = Busy()
    busy.after(50.0, {1: 45.0}, 45.0, {1: 40.0})
    assert busy.after(0.5, {1: 45.0}, 45.0, {1: 30.0})[0] == {1: 40.5}


def test_peer_that_is_reached_no_more_and_waits_for_nothing_is_not_busy() -> None:
    busy = Busy()
    busy.after(1.0, {1: 0.5, 2: 0.5}, 0.5, {1: 0.25, 2: 0.25})
    assert busy.after(1.0, {1: 0.5, 2: 1.5}, 1.5, {2: 0.75})[0] == {1: 0.25, 2: 0.75}


@given(st.lists(st.tuples(*[st.floats(0.0, 1.0)] * 4, st.booleans(), st.booleans()), min_size=1, max_size=20))
def test_busy_seconds_never_become_less_and_any_is_busy_while_one_is(
    whiles: list[tuple[float, float, float, float, bool, bool]],
) -> None:
    busy, waited, counted, told = Busy(), [0.0, 0.0], [0.0, 0.0], ({0: 0.0, 1: 0.0}, 0.0)
    for number, (*more, counts, anew) in enumerate(whiles, start=1):
        counted[0] = 0.0 if anew else counted[0]
        waited = [total + each for total, each in zip(waited, more[:2], strict=True)]
        counted = [total + each for total, each in zip(counted, more[2:], strict=True)]
        by_peer = dict(enumerate(counted)) if counts else {}
        before, told = told, busy.after(1.0, dict(enumerate(waited)), max(waited), by_peer)
        assert told[1] >= before[1]
        assert all(told[0][peer] >= before[0][peer] for peer in (0, 1))
        if all(each[4] for each in whiles[:number]):
            assert max(told[0].values()) - 1e-9 <= told[1] <= number + 1e-9


class Counting(MemoryNetwork):
    """A network whose kernel counts a quarter of a second for each address."""

    def busy_s(self, addresses: Collection[str]) -> dict[str, float]:
        return dict.fromkeys(addresses, 0.25)


def test_links_are_busy_for_as_long_as_their_network_counts() -> None:
    async def body(subject: Subject) -> None:
        clock = ManualClock()
        nodes = [Node(subject, 0, clock=clock), Node(subject, 1)]
        await connected(nodes)
        nodes[0].links.send(1, 0, Numbered(0, np.zeros(10)))
        clock.sleep(1.0)  # nothing was written yet: the loop has not run
        links, busy_s = nodes[0].links.carried()
        assert (links[1].busy_s, busy_s) == (0.25, 0.25)
        await closed(nodes)

    run_check(body, lambda: Subject.of(Counting()))
