from __future__ import annotations

import json
import math

import pytest
from compare_records import comparison, outcomes, record

from ako_jobs.compare.table import Figures, Spread, cells, document, figures, markdown, remarks, rows

LATE = ((3.0, 1.0, 0.5), (6.0, 2.0, 0.9))
NEVER = ((2.0, 1.0, 0.5), (10.0, 5.0, 0.6))


def test_figures_of_a_record_are_those_of_its_validations_and_its_workers() -> None:
    found = figures(record(), target=0.8)
    assert found == Figures(
        accuracy=0.75,
        best=0.8,
        target_s=4.0,
        target_epochs=2.0,
        epoch_s=2.0,
        computing=0.3,  # 4 s and 2 s of two times 10 s
        waiting=0.3,
        sent_nbytes=1_200_000,
        sending_rate=200_000,  # 6 MB from three nodes in 10 s
        staleness=1.5,
        compression=None,
    )
    assert found.rest == pytest.approx(0.4)


def test_figures_of_two_compute_tasks_count_each_tasks_time() -> None:
    assert figures(record(tasks=2), target=None).computing == 0.15


def test_figures_of_a_run_without_validations_are_what_is_left() -> None:
    found = figures(record(()), target=0.8)
    assert (found.accuracy, found.target_s, found.epoch_s, found.sent_nbytes) == (None, None, None, 6_000_000)


def test_figures_of_a_run_that_was_not_validated_are_of_its_epochs_all_the_same() -> None:
    found = figures({**record(()), "reports": [{"time_s": 4.0, "epoch": 2.0}, {"time_s": 10.0, "epoch": 5.0}]}, None)
    assert (found.accuracy, found.best, found.epoch_s, found.sent_nbytes) == (None, None, 2.0, 1_200_000)


def test_spread_what_was_never_reached_counts_as_longer_than_anything() -> None:
    assert Spread.of([4.0, 6.0, None]) == Spread(6.0, 4.0, math.inf)
    assert Spread.of([4.0, None, None]) == Spread(math.inf, 4.0, math.inf)
    assert Spread.of([1.0, 2.0]) == Spread(1.5, 1.0, 2.0)
    assert Spread.of([]) is None


def test_rows_hold_medians_ranges_and_how_many_reached_the_target() -> None:
    compared = comparison()
    # In the order of the runs: both variants with seed 0, then with seed 1, then with seed 2.
    first, second = rows(
        compared, outcomes(compared, record(LATE), record(), record(), record(NEVER), record(NEVER), record(NEVER))
    )
    assert (first.finished, first.reached) == (3, 2)
    assert first.target_s == Spread(6.0, 4.0, math.inf)
    assert first.target_epochs == Spread(2.0, 2.0, math.inf)
    assert first.accuracy == Spread(0.75, 0.6, 0.9)
    assert first.best == Spread(0.8, 0.6, 0.9)
    assert (second.finished, second.reached) == (3, 1)
    assert second.target_s == Spread(math.inf, 4.0, math.inf)
    assert (first.speedup, second.speedup) == (1.0, None)


def test_rows_speedup_is_the_ratio_to_the_first_row() -> None:
    compared = comparison(seeds=1)
    first, second = rows(compared, outcomes(compared, record(LATE), record()))
    assert (first.speedup, second.speedup) == (1.0, 1.5)
    compared = comparison(seeds=1, target=None)
    first, second = rows(compared, outcomes(compared, record(LATE), record()))
    # Of epochs, which take 10 s / 2 and 10 s / 5.
    assert (first.speedup, second.speedup) == (1.0, 2.5)
    assert first.reached is None


def test_rows_runs_that_failed_are_counted_and_told_and_count_for_nothing_else() -> None:
    compared = comparison(seeds=2)
    ended = outcomes(compared, record(), "out of memory", "nobody answers", None)
    first, second = rows(compared, ended)
    assert (first.runs, first.finished, first.failed) == (2, 1, 1)
    assert first.target_s == Spread(4.0, 4.0, 4.0)
    assert (second.finished, second.failed, second.target_s, second.computing) == (0, 1, None, None)
    missing, failed = remarks(compared, ended)
    assert missing == "missing: 1 of 4 runs; the same command goes on with them"
    assert failed == "2 of 4 runs failed:\n\n- b, seed 0: out of memory\n- a, seed 1: nobody answers"


def test_markdown_has_a_line_for_each_row_and_failures_below() -> None:
    compared = comparison(seeds=2)
    ended = outcomes(compared, record(LATE), "out of memory", record(NEVER), None)
    assert markdown(compared, rows(compared, ended), ended) == (
        "| VARIANT | RUNS | ACCURACY, % | BEST, % | s TO 0.8 | EPOCHS TO IT | SPEED-UP | s/EPOCH "
        "| COMPUTE/WAIT/REST, % | MB/EPOCH | Mbit/s/NODE | STALENESS |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| a | 2 of 2 | 75.00 (60.00 to 90.00) | 75.00 (60.00 to 90.00) "
        "| never (6.00 to never); 1 of 2 reached it | never (2.00 to never) "
        "|  | 3.50 (2.00 to 5.00) | 30/30/40 | 2.1 | 1.6 | 1.5 |\n"
        "| b | 0 of 2, 1 failed |  |  |  |  |  |  |  |  |  |  |\n"
        "\n"
        "missing: 1 of 4 runs; the same command goes on with them\n"
        "\n"
        "1 of 4 runs failed:\n"
        "\n"
        "- b, seed 0: out of memory\n"
    )


def test_cells_of_a_sweep_have_a_column_for_its_key() -> None:
    compared = comparison(seeds=1, target=None, sweep={"nodes": [4, 123]})
    headings, body = cells(compared, rows(compared, outcomes(compared, *[record()] * 4)))
    assert headings[:4] == ("VARIANT", "NODES", "RUNS", "ACCURACY, %")
    assert [line[:3] for line in body] == [
        ("a", "4", "1 of 1"),
        ("b", "4", "1 of 1"),
        ("a", "123", "1 of 1"),
        ("b", "123", "1 of 1"),
    ]


def test_cells_of_coded_runs_have_a_column_for_what_codes_save() -> None:
    compared = comparison(seeds=2)
    coded = (record(compression=200.0), record(), record(compression=300.0), record())
    headings, body = cells(compared, rows(compared, outcomes(compared, *coded)))
    assert headings[-1] == "COMPRESSION"
    assert [line[-1] for line in body] == ["250", ""]


def test_document_what_was_never_reached_is_null() -> None:
    compared = comparison(seeds=1)
    ended = outcomes(compared, record(NEVER), "out of memory")
    text = json.dumps(document(compared, rows(compared, ended), ended), allow_nan=False)
    found = json.loads(text)
    assert found["rows"][0]["target_s"] == {"median": None, "least": None, "most": None}
    assert found["rows"][0]["reached"] == 0
    assert found["failures"] == [{"run": "b, seed 0", "reason": "out of memory"}]
    assert found["missing"] == 0
    assert found["comparison"]["target"] == 0.8
