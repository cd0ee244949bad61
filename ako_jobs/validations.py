"""The validations among what a run reported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def validations(reports: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The reports with an accuracy: as they were told, but the final one, of the model that is kept, is last.

    While the worker that adds validations up is away, others validate in turn, and their words overtake each other.
    """
    found = [report for report in reports if isinstance(report.get("accuracy"), int | float)]
    return sorted(found, key=lambda report: bool(report.get("final")))
