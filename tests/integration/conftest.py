"""What tests of real processes share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clusters import NURSERY

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Begin before a test has changed the environment."""
    NURSERY.begin()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End before others look at the children of this process."""
    if nextitem is None or HERE not in nextitem.path.parents:
        NURSERY.close()
