from __future__ import annotations

from dataflow.reports import (
    LinkRates,
    LinkStatistics,
    NodeStatistics,
    ProcessorTimes,
    Rates,
    SampleStatistics,
    rates_between,
    samples_named,
)

BEFORE = NodeStatistics(
    0,
    steps=10,
    running_s=2.0,
    waiting_s=0.5,
    processor=ProcessorTimes(1.0, 0.5, 0.25),
    links_busy_s=0.25,
    links={1: LinkStatistics(1000, 4, 0.25, 1.0)},
)
AFTER = NodeStatistics(
    0,
    steps=16,
    running_s=2.5,
    waiting_s=0.625,
    processor=ProcessorTimes(1.5, 0.75, 0.375),
    links_busy_s=0.5,
    links={1: LinkStatistics(1600, 6, 0.5, 1.5), 2: LinkStatistics(busy_s=0.25)},
)


def test_rates_between_two_statistics_are_their_differences() -> None:
    assert rates_between(BEFORE, AFTER) == Rates(
        seconds=0.5,
        steps=6,
        compute_s=0.25,
        exchange_s=0.125,
        busy_s=0.25,
        blocked_s=0.125,
        links={1: LinkRates(600, 0.25, 0.25), 2: LinkRates(0, 0.25, 0.0)},
    )
    assert rates_between(BEFORE, AFTER).goodput == 2400.0


def test_rates_of_a_node_that_measures_nothing_are_what_its_engine_counted() -> None:
    found = rates_between(NodeStatistics(0), NodeStatistics(0, steps=3, running_s=1.5, waiting_s=0.5))
    assert found == Rates(seconds=1.5, steps=3, blocked_s=0.5)


def test_idle_time_is_what_neither_computes_nor_waits() -> None:
    node = NodeStatistics(0, busy_s={"compute": 3.0, "network": 9.0}, waiting_s=1.0, running_s=4.0, compute_tasks=2)
    assert (node.computing_s, node.idle_s) == (3.0, 1.5)


def test_idle_time_of_a_node_that_computes_while_it_waits_is_none() -> None:
    assert NodeStatistics(0, busy_s={"compute": 3.0}, waiting_s=2.0, running_s=4.0).idle_s == 0.0


def test_samples_named_are_those_behind_the_last_dot_of_all_nodes() -> None:
    one, two, three, nine = (SampleStatistics(1, value, value, value) for value in (1.0, 2.0, 3.0, 9.0))
    statistics = [
        NodeStatistics(0, samples={"apply.staleness": two, "apply.max_staleness": nine}),
        NodeStatistics(1, samples={"serve.staleness": three, "serve.lag": one}),
    ]
    assert samples_named(statistics, "staleness") == [two, three]
    assert samples_named(statistics, "staleness", "lag") == [two, three, one]
