"""Servers in the foreground: run until Ctrl-C, SIGTERM or SIGHUP."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine


def serve_until_signal(work: Coroutine[None, None, None]) -> None:
    """Run `work`; SIGINT, SIGTERM and SIGHUP end it in order, the last unless it is ignored, as under ``nohup``."""
    asyncio.run(_until_signal(work))


async def _until_signal(work: Coroutine[None, None, None]) -> None:
    running = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    hangup = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    for number in (signal.SIGINT, signal.SIGTERM, *hangup):
        loop.add_signal_handler(number, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running
