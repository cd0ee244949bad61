from __future__ import annotations

from dataclasses import replace

from dataflow.observe.series import MOST_POINTS, Point, Series
from dataflow.reports import NodeStatistics, SampleStatistics


def told(node: int, steps: int) -> NodeStatistics:
    return NodeStatistics(
        node=node,
        steps=steps,
        busy_s={"compute": 0.5 * steps, "network": 9.0},
        waiting_s=0.25 * steps,
        sent_nbytes={3: 10 * steps, 4: steps},
        samples={
            "compute.staleness": SampleStatistics(steps, 2.0 * steps, 9.0, 1.0),
            "divergence.rms": SampleStatistics(2, 0.5 * steps, 9.0, 1.0),
            "load.lag": SampleStatistics(steps, 3.0 * steps, 9.0, 1.0),
            "load.gap": SampleStatistics(steps, 0.25 * steps, 9.0, 1.0),
            "load.normalised_gap": SampleStatistics(steps, 5.0, 9.0, 1.0),
            "compute.other": SampleStatistics(1, 5.0, 5.0, 5.0),
        },
    )


def test_series_point_is_what_all_nodes_had_done_when_one_tells_again() -> None:
    series = Series()
    series.add(1.0, told(0, 2))
    series.add(1.5, told(1, 4))
    series.add(2.0, told(0, 6))
    assert series.points == [
        Point(
            time_s=1.5,
            gradients=6,
            computing_s=3.0,
            waiting_s=1.5,
            sent_nbytes=66,
            stale_gradients=6,
            staleness=12.0,
            gaps=4,
            gap=3.0,
            gapped_gradients=6,
            gradient_gap=1.5,
            lagged_gradients=6,
            lag=18.0,
            normalised_gradients=6,
            normalised_gap=10.0,
        )
    ]
    series.close()
    assert [(point.time_s, point.gradients) for point in series.points] == [(1.5, 6), (2.0, 10)]
    series.close()
    assert len(series.points) == 2


def test_series_goes_on_from_what_nodes_had_done_before_they_were_started_again() -> None:
    series = Series()
    series.add(1.0, told(0, 6))
    series.add(2.0, replace(told(0, 1), incarnation=1))
    series.add(3.0, replace(told(0, 2), incarnation=1))
    series.newest.begin_again()  # incarnations are counted from 0 again
    series.add(4.0, told(0, 1))
    series.close()
    assert [point.gradients for point in series.points] == [6, 7, 8, 9]
    assert [point.sent_nbytes for point in series.points] == [66, 77, 88, 99]


def test_series_of_too_many_points_keeps_every_other_one_and_the_last() -> None:
    series = Series()
    for number in range(1, 10 * MOST_POINTS + 1):
        series.add(float(number), told(0, number))
    series.close()
    assert MOST_POINTS / 2 < len(series.points) <= MOST_POINTS
    assert series.points[-1].time_s == 10 * MOST_POINTS
    assert all(point.gradients == point.time_s for point in series.points)


def test_series_of_any_length_has_points_equally_far_apart_from_the_start() -> None:
    """Of 5,120 points each 16th is kept: 512 were halved at the 513th, 1,025th, 2,049th and 4,097th."""
    series = Series()
    for number in range(1, 10 * MOST_POINTS + 4):
        series.add(float(number), told(0, number))
    series.close()
    assert [point.time_s for point in series.points] == [*range(16, 10 * MOST_POINTS + 1, 16), 10 * MOST_POINTS + 3]
