from __future__ import annotations

from pathlib import Path

import pytest

from dataflow.runtime import process


@pytest.mark.parametrize(
    ("inherited", "asked"), [("0\n", "500"), ("-900\n", "500"), ("300\n", "800"), ("985\n", "1000")]
)
def test_process_ends_before_the_one_that_started_it_when_memory_runs_out(
    inherited: str, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "oom_score_adj"
    told.write_text(inherited)
    monkeypatch.setattr(process, "_OOM_SCORE_ADJ", told)
    process.first_when_memory_runs_out()
    assert told.read_text() == asked


def test_process_goes_on_where_it_may_not_ask_to_end_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_OOM_SCORE_ADJ", tmp_path / "none")
    process.first_when_memory_runs_out()
