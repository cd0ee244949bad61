"""The files of a comparison that has been run: the table as Markdown and JSON, and pictures."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ako_jobs.compare.comparison import Comparison
from ako_jobs.compare.runs import Outcomes
from ako_jobs.compare.table import Row, document, markdown

NO_PICTURES = (
    "no pictures: matplotlib is not installed; pip install 'ako-dataflow[plots]' and give the same command again, "
    "which draws them from the runs that are there"
)


def write_report(comparison: Comparison, table: Sequence[Row], outcomes: Outcomes, out: Path) -> list[Path]:
    """Write ``table.md``, ``table.json`` and, if matplotlib is installed, the pictures in ``plots``.

    Args:
        comparison: what was compared.
        table: its rows.
        outcomes: of its runs.
        out: the comparison's folder.

    Returns:
        The pictures; none without matplotlib, and none if no run has finished.
    """
    (out / "table.md").write_text(markdown(comparison, table, outcomes))
    text = json.dumps(document(comparison, table, outcomes), indent=2, allow_nan=False)
    (out / "table.json").write_text(text + "\n")
    if not can_draw():
        return []
    plots: Any = importlib.import_module("ako_jobs.compare.plots")
    drawn: list[Path] = plots.draw(comparison, table, outcomes, out / "plots")
    return drawn


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None
