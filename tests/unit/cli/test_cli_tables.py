"""Tables on standard output."""

from __future__ import annotations

import time

import pytest
from rich.console import Console
from rich.table import Table

from dataflow.cli.common import print_table
from dataflow.errors import printable

COLUMNS = ("ID", "NAME", "REASON")


def test_table_is_as_wide_as_its_cells_and_no_cell_is_wrapped_or_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("a", None, "stopped by épochs 漢字"), ("x" * 300, 2, "[b]two"), ("c", "\x1b[1m", "a\nb")]
    table = Table(*COLUMNS, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*("" if cell is None else printable(str(cell)) for cell in row))
    Console(width=10_000, markup=False, highlight=False, emoji=False).print(table)
    expected = capsys.readouterr().out
    print_table(COLUMNS, rows)
    assert capsys.readouterr().out == expected
    assert expected.count("\n") == 4
    assert "\x1b" not in expected


@pytest.mark.parametrize(("width", "lines"), [(40, 2), (20, 3)])
def test_only_a_terminal_that_is_too_narrow_wraps_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, lines: int
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(("A", "LONG"), [("x", "some words that are long")])
    assert capsys.readouterr().out.count("\n") == lines


def test_terminal_that_is_too_narrow_shows_ids_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "30")
    print_table(COLUMNS, [("5f0c9a1be2d4", "parameter_server", "stopped by epochs")])
    assert "5f0c9a1be2d4" in capsys.readouterr().out


def test_list_of_many_jobs_is_shown_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    begun_s = time.process_time()
    print_table(COLUMNS, [("5f0c9a1be2d4", "ako", "stopped by epochs")] * 20_000)
    assert time.process_time() - begun_s < 4.0  # tenths of a second; 10 s and more if each line is laid out by rich
    assert capsys.readouterr().out.count("\n") == 20_001
