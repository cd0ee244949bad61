from __future__ import annotations

from dataflow.observe.condition import Condition, MeasuredJob, condition, conditions, group
from dataflow.reports import LinkStatistics, NodeStatistics, ProcessorTimes, SampleStatistics


def test_conditions_are_of_the_time_between_the_oldest_and_the_newest_statistics() -> None:
    before = NodeStatistics(
        0,
        steps=100,
        busy_s={"compute": 6.0},
        waiting_s=1.0,
        running_s=10.0,
        compute_tasks=2,
        processor=ProcessorTimes(8.0, 6.0, 1.0),
        links_busy_s=1.0,
        links={1: LinkStatistics(1000, 5, 1.0, 1.0)},
    )
    after = NodeStatistics(
        0,
        steps=180,
        busy_s={"compute": 10.0},
        waiting_s=2.0,
        samples={
            "partition.p": SampleStatistics(3, 9.0, 4.0, 2.0),
            "partition.every": SampleStatistics(3, 9.0, 4.0, 4.0),
            "partition.predicted_nbytes_s": SampleStatistics(3, 9.0, 4.0, 125.0),
            "compute.loss_p": SampleStatistics(1, 7.0, 7.0, 7.0),
            "send.compression_ratio": SampleStatistics(2, 500.0, 300.0, 200.0),
            "load.normalised_gap": SampleStatistics(1, 0.125, 0.125, 0.125),
            "load.gap": SampleStatistics(1, 0.5, 0.5, 0.5),
            "load.lag": SampleStatistics(2, 7.0, 4.0, 3.0),
        },
        running_s=14.0,
        compute_tasks=2,
        processor=ProcessorTimes(14.0, 10.0, 2.0),
        links_busy_s=3.0,
        links={1: LinkStatistics(1400, 9, 3.0, 2.0), 2: LinkStatistics(200, 1, 0.5, 0.5)},
    )
    assert conditions(MeasuredJob("1", "ako", ("left",), {0: [before, after]})) == [
        Condition(
            name="left",
            seconds=4.0,
            gradients_per_s=20.0,
            computing=0.5,
            blocked=0.25,
            idle=0.25,
            cpu=1.5,
            sent_nbytes_s=150.0,
            goodput_nbytes_s=300.0,
            p=2.0,
            every=4.0,
            predicted_nbytes_s=125.0,
            compression=200.0,
            lag=3.0,
            gap=0.5,
            normalised_gap=0.125,
        )
    ]


def test_condition_of_a_node_that_told_once_is_since_its_start() -> None:
    told = NodeStatistics(1, steps=30, busy_s={"compute": 1.0}, running_s=2.0)
    job = MeasuredJob("1", "ako", (), {0: [NodeStatistics(0)], 1: [told]})
    assert conditions(job) == [
        Condition(name="node-1", seconds=2.0, gradients_per_s=15.0, computing=0.5, blocked=0.0, idle=0.5)
    ]


def test_condition_of_a_node_without_peers_has_no_rate_of_sending() -> None:
    told = NodeStatistics(0, steps=30, running_s=2.0, links_busy_s=0.0)
    assert condition("node-0", NodeStatistics(0), told).sent_nbytes_s is None


def test_condition_counts_what_was_poisoned_on_either_side_and_is_silent_without() -> None:
    samples = {
        "compute.poisoned_gradients": SampleStatistics(2, 2.0, 1.0, 1.0),
        "apply.poisoned_fragments": SampleStatistics(3, 3.0, 1.0, 1.0),
        "apply.rejected_fragments": SampleStatistics(7, 28.0, 7.0, 7.0),
    }
    told = NodeStatistics(0, samples=samples, running_s=2.0)
    assert condition("node-0", NodeStatistics(0), told).poisoned == 5
    assert condition("node-0", NodeStatistics(0), NodeStatistics(0)).poisoned is None


def test_group_keeps_the_order_of_each_node() -> None:
    one, two, three = NodeStatistics(1, steps=1), NodeStatistics(0, steps=2), NodeStatistics(1, steps=3)
    assert list(group([one, two, three]).items()) == [(0, [two]), (1, [one, three])]
