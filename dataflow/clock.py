"""The clock: the only place that asks the operating system for the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time, injected into everything that needs it."""

    def now(self) -> float:
        """Seconds on a clock that never goes back; its zero means nothing."""

    def wall(self) -> float:
        """Seconds since 1970-01-01 UTC, for people to read."""

    def sleep(self, duration_s: float) -> None:
        """Return after `duration_s` seconds."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Seconds on the machine's monotonic clock."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since 1970-01-01 UTC."""
        return time.time()

    def sleep(self, duration_s: float) -> None:
        """Block the calling thread for `duration_s` seconds."""
        time.sleep(duration_s)
