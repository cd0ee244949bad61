"""What tests of real processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clusters import NURSERY


@pytest.fixture(scope="session", autouse=True)
def nursery() -> Iterator[None]:
    """Begin before any test has changed the environment."""
    with NURSERY:
        NURSERY.begin()
        yield
