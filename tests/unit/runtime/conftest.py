"""Databases that tests open are closed with them: from Python 3.13 on SQLite complains of those that nobody closes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dataflow.runtime.database import Database


@pytest.fixture(autouse=True)
def _databases_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    opened: list[Database] = []
    make = Database.__init__

    def noted(database: Database, *args: Any) -> None:
        make(database, *args)
        opened.append(database)

    monkeypatch.setattr(Database, "__init__", noted)
    yield
    for database in opened:
        database.close()
