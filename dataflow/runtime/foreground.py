"""Servers in the foreground: run until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine


def serve_until_signal(work: Coroutine[None, None, None]) -> None:
    """Run `work`; SIGINT and SIGTERM end it in order."""
    asyncio.run(_until_signal(work))


async def _until_signal(work: Coroutine[None, None, None]) -> None:
    running = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running
