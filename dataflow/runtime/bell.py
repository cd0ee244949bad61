"""Waking those who wait for news, on one event loop."""

from __future__ import annotations

import asyncio


class Bell:
    """Wakes everybody who waits for news, any number of times."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake all who hold a ticket."""
        self._event.set()
        self._event = asyncio.Event()

    def ticket(self) -> asyncio.Event:
        """Take it before looking, then wait for it: no news is missed in between."""
        return self._event
