from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import pytest

from dataflow.observe.condition import MeasuredJob
from dataflow.observe.slow import Effort, Laggard, laggards, what_is_slow
from dataflow.reports import LinkStatistics, NodeStatistics

While = tuple[int, float]
"""Gradients made in a second, and the share of it in which the node was held back."""


def node(
    number: int, whiles: Sequence[While], links: dict[int, Sequence[tuple[int, float]]] | None = None
) -> list[NodeStatistics]:
    """What a node told at its start and after each of `whiles`; of `links`, (bytes, busy seconds) in each."""
    steps = list(accumulate((steps for steps, _ in whiles), initial=5))
    waiting = list(accumulate((blocked for _, blocked in whiles), initial=0.0))
    totals = {
        peer: list(
            zip(accumulate((n for n, _ in told), initial=0), accumulate((b for _, b in told), initial=0.0), strict=True)
        )
        for peer, told in (links or {}).items()
    }
    return [
        NodeStatistics(
            number,
            steps=steps[index],
            waiting_s=waiting[index],
            running_s=7.0 + index,
            links={peer: LinkStatistics(total[index][0], 1, total[index][1], 1.0) for peer, total in totals.items()},
        )
        for index in range(len(whiles) + 1)
    ]


def said(*nodes: list[NodeStatistics]) -> list[str]:
    names = tuple(f"node-{number}" for number in range(len(nodes)))
    return what_is_slow(MeasuredJob("1", "ako", names, dict(enumerate(nodes))))


FAST: list[While] = [(160, 0.0)] * 3


def test_nobody_is_slow_among_equals() -> None:
    assert said(*(node(number, [(160, 0.1), (150, 0.2), (155, 0.0)]) for number in range(4))) == []


def test_node_that_makes_fewer_gradients_than_the_others_is_named() -> None:
    nodes = [*(node(number, FAST) for number in range(3)), node(3, [(41, 0.0)] * 3)]
    assert said(*nodes) == ["node-3 is slow: it makes 41 gradients/s when nothing holds it back, the others 160"]


def test_node_whose_clock_stands_still_is_left_out() -> None:
    nodes = [*(node(number, FAST) for number in range(3)), node(3, [(41, 0.0)] * 3)]
    still = [NodeStatistics(4, steps=5)] * 4
    assert said(*nodes, still) == ["node-3 is slow: it makes 41 gradients/s when nothing holds it back, the others 160"]


def test_node_that_all_others_wait_for_is_named_although_all_make_as_many_gradients() -> None:
    nodes = [*(node(number, [(40, 0.75)] * 3) for number in range(3)), node(3, [(40, 0.0)] * 3)]
    assert said(*nodes) == [
        "node-3 is slow: it makes 40 gradients/s when nothing holds it back, the others 160; "
        "they were blocked 75% of the time"
    ]


def test_node_that_all_others_wait_for_nearly_all_the_time_is_named() -> None:
    nodes = [*(node(number, [(10, 0.98)] * 3) for number in range(2)), node(2, [(10, 0.0)] * 3)]
    assert said(*nodes) == [
        "node-2 is slow: it makes 10 gradients/s when nothing holds it back, the others 500; "
        "they were blocked 98% of the time"
    ]


def test_two_slow_nodes_are_both_named_the_slower_first() -> None:
    nodes = [node(0, [(50, 0.0)] * 3), *(node(number, FAST) for number in (1, 2, 3)), node(4, [(40, 0.0)] * 3)]
    (sentence,) = said(*nodes)
    assert sentence.startswith("node-4 is slow: it makes 40 gradients/s")
    assert sentence.endswith("the others 160; also slow: node-0 (50)")


def test_node_less_than_the_factor_behind_is_not_slow() -> None:
    assert said(node(0, FAST), node(1, FAST), node(2, [(107, 0.0)] * 3)) == []
    assert len(said(node(0, FAST), node(1, FAST), node(2, [(106, 0.0)] * 3))) == 1


def test_node_that_was_slow_but_has_recovered_is_not_slow() -> None:
    assert said(node(0, FAST), node(1, FAST), node(2, [(1, 0.0), (1, 0.0), (161, 0.0)])) == []


def test_node_that_has_not_told_often_enough_is_not_judged() -> None:
    assert said(node(0, FAST), node(1, FAST), node(2, FAST[:1])) == []


def test_node_that_stands_still_is_slow_and_one_held_back_all_the_time_is_not() -> None:
    (sentence,) = said(node(0, FAST), node(1, FAST), node(2, [(0, 0.0)] * 3))
    assert sentence.startswith("node-2 is slow: it makes 0 gradients/s")
    assert said(node(0, FAST), node(1, FAST), node(2, [(0, 1.0)] * 3)) == []


def test_few_gradients_make_nobody_slow() -> None:
    assert said(node(0, [(3, 0.0)] * 3), node(1, [(1, 0.0)] * 3)) == []
    assert len(said(node(0, [(4, 0.0)] * 3), node(1, [(1, 0.0)] * 3))) == 1


def test_node_that_makes_no_gradients_at_all_is_no_worker() -> None:
    server = [NodeStatistics(2, running_s=7.0 + index) for index in range(4)]
    assert said(node(0, FAST), node(1, FAST), server) == []


def test_job_of_one_node_has_no_slow_one() -> None:
    assert said(node(0, FAST)) == []


BUSY = [(11_000_000, 1.0)] * 3


def mesh(nodes: int, slow: dict[tuple[int, int], Sequence[tuple[int, float]]]) -> list[list[NodeStatistics]]:
    """Equal nodes whose links carry 11 MB/s, but for those in `slow`."""
    return [
        node(one, FAST, {two: slow.get((one, two), BUSY) for two in range(nodes) if two != one}) for one in range(nodes)
    ]


def test_no_link_is_slow_among_equals() -> None:
    assert said(*mesh(4, {})) == []


def test_link_that_carries_less_than_the_others_is_named() -> None:
    slow = [(1_100_000, 1.0)] * 3
    assert said(*mesh(4, {(0, 3): slow})) == ["the link node-0 -> node-3 carries 1.1 MB/s, the others 11"]


def test_link_on_which_nothing_arrives_is_slow() -> None:
    assert said(*mesh(3, {(2, 1): [(0, 1.0)] * 3})) == ["the link node-2 -> node-1 carries 0 MB/s, the others 11"]


def test_link_that_is_hardly_used_is_not_slow() -> None:
    assert said(*mesh(4, {(0, 3): [(10_000, 0.09)] * 3})) == []
    assert len(said(*mesh(4, {(0, 3): [(11_000, 0.11)] * 3}))) == 1
    assert said(*mesh(4, {(0, 3): [(0, 0.0)] * 3})) == []


def test_links_that_differ_by_chance_are_not_slow() -> None:
    assert said(*mesh(4, {(0, 3): [(4_500_000, 1.0)] * 3})) == []
    assert len(said(*mesh(4, {(0, 3): [(4_300_000, 1.0)] * 3}))) == 1


def test_links_from_and_to_a_node_are_named_together_though_they_are_half_of_all() -> None:
    links = [(node, other) for node in range(4) for other in range(4) if node != other and 3 in (node, other)]
    slow = {link: [(1_000_000 + 10_000 * number, 1.0)] * 3 for number, link in enumerate(links)}
    (sentence,) = said(*mesh(4, slow))
    assert sentence.startswith("the links from and to node-3 carry 1.0")
    assert sentence.endswith("MB/s, the others 11")


@pytest.mark.parametrize(
    ("links", "subject"),
    [
        ([(0, 3), (1, 3), (2, 3)], "the links to node-3 carry"),
        ([(3, 0), (3, 1), (3, 2)], "the links from node-3 carry"),
    ],
)
def test_links_of_one_node_that_are_all_slow_are_named_together(links: list[tuple[int, int]], subject: str) -> None:
    assert said(*mesh(4, dict.fromkeys(links, [(1_000_000, 1.0)] * 3))) == [f"{subject} 1 MB/s, the others 11"]


def test_links_that_carry_nothing_are_no_part_of_what_is_named_together() -> None:
    links = [(node, other) for node in range(4) for other in range(4) if node != other and 3 in (node, other)]
    slow = dict.fromkeys(links, [(1_000_000, 1.0)] * 3) | {(node, 4): [(0, 0.0)] * 3 for node in range(4)}
    (sentence,) = said(*mesh(5, slow)[:4])
    assert sentence == "the links from and to node-3 carry 1 MB/s, the others 11"


def test_slow_links_of_different_nodes_are_counted() -> None:
    slow = [(1_000_000, 1.0)] * 3
    assert said(*mesh(4, {(0, 1): [(500_000, 1.0)] * 3, (2, 3): slow})) == [
        "the link node-0 -> node-1 carries 0.5 MB/s, the others 11; also slow: 1 more"
    ]


def test_laggards_are_measured_against_the_median_without_themselves() -> None:
    efforts = {"a": [Effort(1.0, 1.0)], "b": [Effort(4.0, 2.0)], "c": [Effort(3.0, 1.0)], "d": [Effort(0.0, 0.0)]}
    assert laggards(efforts) == [Laggard("a", 1.0, 2.5)]
