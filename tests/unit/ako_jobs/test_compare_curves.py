from __future__ import annotations

import numpy as np
from compare_records import record

from ako_jobs.compare.curves import accuracies, rates, traffic


def test_accuracies_are_those_of_the_validations() -> None:
    found = accuracies(record())
    assert found.time_s.tolist() == [2.0, 4.0, 10.0]
    assert found.epochs.tolist() == [1.0, 2.0, 5.0]
    assert found.accuracy.tolist() == [0.5, 0.8, 0.75]


def test_rates_are_what_counters_grow_by_in_stretches_of_equal_length() -> None:
    """Three points at 2, 6 and 10 s make three stretches that end at 10/3, 20/3 and 10 s."""
    found = rates(record())
    np.testing.assert_allclose(found.time_s, [5 / 3, 5, 25 / 3])
    # 1.2 MB until second 2, then 4.8 MB in 4 s, of which 4/3 s are in the first stretch; from three nodes.
    np.testing.assert_allclose(found.sending * 3 * 10 / 3, [2_800_000, 3_200_000, 0], atol=1e-6)
    # 3 s of computing until second 2, none until 6, then 3 s in 4 s, of which 2/3 s are in the second stretch.
    np.testing.assert_allclose(found.utilisation, np.array([3.0, 0.5, 2.5]) / 10)
    # 8 of 4 gradients in the first stretch, 1.5 of 6 gradients after second 6.
    np.testing.assert_allclose(found.staleness, [2.0, 0.25, 0.25])
    # 0.5 once in the first stretch, 0.25 in two measurements after second 6.
    np.testing.assert_allclose(found.gap, [0.5, 0.125, 0.125])


def test_rates_gap_of_gradients_is_the_mean_of_those_measured_in_a_stretch() -> None:
    told = record()
    for point, (count, total) in zip(told["series"], ((2, 1.0), (2, 1.0), (4, 4.0)), strict=True):
        point.update(gapped_gradients=count, gradient_gap=total)
        point.update(lagged_gradients=count, lag=2 * total, normalised_gradients=count, normalised_gap=3 * total)
    np.testing.assert_allclose(rates(told).gradient_gap, [0.5, 1.5, 1.5])
    np.testing.assert_allclose(rates(told).lag, [1, 3, 3])
    np.testing.assert_allclose(rates(told).normalised_gap, [1.5, 4.5, 4.5])


def test_rates_staleness_where_no_gradient_was_made_is_unknown() -> None:
    still = record()
    still["series"][2].update(stale_gradients=4, staleness=8.0)
    assert np.isnan(rates(still).staleness[1:]).all()


def test_rates_of_a_run_that_told_nothing_are_empty() -> None:
    silent = {**record(), "series": []}
    assert len(rates(silent).time_s) == len(rates(silent).sending) == len(rates(silent).gap) == 0


def test_rates_gap_of_a_record_without_any_is_unknown() -> None:
    older = record()
    for each in older["series"]:
        del each["gaps"], each["gap"]
    assert np.isnan(rates(older).gap).all()


def test_traffic_is_the_mean_over_runs_by_sender_and_receiver() -> None:
    other = {**record(), "links": [{"source": 0, "target": 2, "sent_nbytes": 3_000_000}]}
    assert traffic([record(), other]).tolist() == [[0, 0, 2e6], [0, 0, 0], [2.5e6, 0, 0]]


def test_traffic_counts_nodes_that_have_told_nothing_since_they_were_started_again() -> None:
    silent = record()
    del silent["nodes"][2]
    assert traffic([silent]).tolist() == [[0, 0, 1e6], [0, 0, 0], [5e6, 0, 0]]
    assert traffic([{**silent, "links": []}]).tolist() == [[0, 0], [0, 0]]
