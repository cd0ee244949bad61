"""What a simulated node measures of itself, and when."""

from __future__ import annotations

from typing import Any

import pytest

from dataflow.graph.logical import LogicalGraph
from dataflow.operators_api import Emissions
from dataflow.plan.compile import compile_graph
from dataflow.reports import LinkRates, NodeStatistics, Rates
from dataflow.sim.meter import Meter
from operators.partition import Partition, RotationState
from tests.known_answers.integers import integer_job
from tests.known_answers.simulated import STEP_S, simulator


def meter() -> Meter:
    return Meter(compile_graph(integer_job(2), 3))


def test_meter_counts_what_has_arrived_and_the_time_in_which_anything_was_under_way() -> None:
    measures = meter()
    measures.sent(1, 0.5)
    measures.sent(1, 0.75)
    measures.sent(2, 1.0)
    measures.arrived(1, 100, 1.5)  # 1 s after it was sent
    measures.arrived(2, 300, 2.0)  # 1 s
    measures.arrived(1, 10, 2.25)  # 1.5 s
    measures.sent(2, 3.0)
    rates = measures.read(NodeStatistics(0, steps=8, waiting_s=0.5), 4.0)
    assert rates == Rates(
        seconds=4.0,
        steps=8,
        busy_s=1.75 + 1.0,
        blocked_s=0.5,
        links={1: LinkRates(110, 1.75, 1.25), 2: LinkRates(300, 1.0 + 1.0, 1.0)},
    )
    assert rates.goodput == pytest.approx(410 / 2.75)


def test_meter_goes_on_from_where_it_was_read() -> None:
    measures = meter()
    measures.sent(1, 0.5)
    measures.read(NodeStatistics(0, steps=3, waiting_s=1.0), 1.0)
    done = NodeStatistics(0, steps=5, waiting_s=1.25)
    assert measures.read(done, 2.0) == Rates(1.0, 2, busy_s=1.0, blocked_s=0.25, links={1: LinkRates(0, 1.0, 0.0)})
    measures.arrived(1, 7, 2.5)
    assert measures.read(done, 3.0) == Rates(1.0, busy_s=0.5, links={1: LinkRates(7, 0.5, 2.0)})


def test_meter_tells_computing_from_exchanging() -> None:
    measures = meter()
    measures.ran("compute", "compute", 4.0)
    measures.ran("accumulate", "network", 2.0)  # with or without peers
    measures.ran("send", "network", 1.0)
    measures.ran("receive", "network", 0.5)
    measures.exchanged(0.25)
    rates = measures.read(NodeStatistics(0), 8.0)
    assert (rates.compute_s, rates.exchange_s) == (4.0, 1.75)


class Noting(Partition):
    """Keeps what it is told on its rotation."""

    def on_rates(self, rates: Rates, rotation: RotationState) -> Emissions:
        NOTED.append(rates)
        yield from ()


NOTED: list[Rates] = []


@pytest.fixture(autouse=True)
def nothing_noted() -> None:
    NOTED.clear()


def noting(**job: Any) -> LogicalGraph:
    graph = integer_job(2, **job)
    layout = Partition.model_validate_json(graph.operator("partition").params).layout
    return graph.replace("partition", Noting(layout=layout))


def test_simulator_measures_again_and_again_and_everything_once() -> None:
    sim = simulator(noting(rounds=40, slack=4), 1, compute="constant", rates_s=0.1)
    run = sim.run()
    assert run.state == "FINISHED"
    # Each gradient takes a tenth of a step, and so does each of the tasks that follow from it.
    assert [round(rates.seconds, 9) for rates in NOTED] == [0.1] * len(NOTED)
    assert len(NOTED) == int(run.elapsed_s / 0.1)
    assert run.elapsed_s >= 40 * 0.1 * STEP_S


@pytest.mark.parametrize(("graph", "minds"), [(integer_job(2), False), (noting(), True)])
def test_simulator_measures_only_if_an_operator_minds(graph: LogicalGraph, minds: bool) -> None:
    sim = simulator(graph, 2, rates_s=0.001)
    sim.run()
    assert bool(sim._meters) == minds
    assert bool(NOTED) == minds


def test_simulator_measures_a_node_that_pauses_for_years_but_twice() -> None:
    """Not every half second of a lull in which nothing happens."""
    sim = simulator(noting(rounds=6, slack=1), 2, faults=("pause:1@0.002+1000000",), rates_s=0.5)
    run = sim.run()
    assert run.state == "FINISHED"
    assert run.elapsed_s > 1e6
    assert len(NOTED) <= 4


def test_simulator_of_nodes_that_are_cut_off_each_other_goes_on_with_one() -> None:
    run = simulator(noting(rounds=6, slack=1), 2, faults=("cut:0-1@0.002",), rates_s=0.5).run()
    assert run.state == "FINISHED"
    assert run.elapsed_s > 2
