"""What a job process has to say to its agent, in order, as fast as that reads.

An agent reads no further while it has as much as it may keep for a master that is away. Invariant: memory does not grow
with how long that takes: of statistics only the newest wait, and of reports no more than `WAITING_NBYTES`, the oldest
of which are left out and counted. The record of a run ends where more than `RECORD_NBYTES` of it would wait: what comes
behind a gap could not be replayed. All else must arrive, and is little: files are what a job makes of itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Final, Literal

WAITING_NBYTES: Final = 16 << 20
"""Bytes of reports that wait at most."""

RECORD_NBYTES: Final = 64 << 20
"""Bytes of the run's record that wait at most."""

Kind = Literal["must", "report", "statistics", "record"]


class Backlog:
    """What waits for one connection. Make it, and use it, on the event loop.

    Args:
        writer: frames are written here.
    """

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._waiting: deque[tuple[Kind, bytes]] = deque()
        self._statistics = b""
        self._nbytes: dict[Kind, int] = {"must": 0, "report": 0, "record": 0}
        self._left_out, self._record_ended = 0, False
        self._changed, self._emptied = asyncio.Event(), asyncio.Event()
        self._emptied.set()
        self._saying = asyncio.create_task(self._say())

    def add(self, frame: bytes, kind: Kind = "must") -> None:
        """Say something, after all that was added before."""
        if kind == "statistics":
            self._statistics = frame
        elif kind != "record" or self._is_recorded(len(frame)):
            self._waiting.append((kind, frame))
            self._count(kind, len(frame))
        while self._nbytes["report"] > WAITING_NBYTES:
            self._leave_out()
        self._emptied.clear()
        self._changed.set()

    async def emptied(self) -> None:
        """Return once nothing waits any more, or the connection is broken."""
        await self._emptied.wait()

    async def close(self) -> None:
        """Say all that waits, and then no more."""
        await self.emptied()
        self._saying.cancel()
        await asyncio.gather(self._saying, return_exceptions=True)

    async def _say(self) -> None:
        while True:
            while frame := self._next():
                if not self._writer.is_closing():
                    self._writer.write(frame)
                    with contextlib.suppress(OSError):
                        await self._writer.drain()
            if self._left_out:
                print(f"[{self._left_out} reports left out: the agent could not pass them on]", flush=True)
                self._left_out = 0
            self._emptied.set()
            self._changed.clear()
            await self._changed.wait()

    def _next(self) -> bytes:
        if self._statistics:
            frame, self._statistics = self._statistics, b""
            return frame
        if not self._waiting:
            return b""
        kind, frame = self._waiting.popleft()
        self._count(kind, -len(frame))
        return frame

    def _is_recorded(self, nbytes: int) -> bool:
        """Whether there is room for more of the record, and always was."""
        if not self._record_ended and self._nbytes["record"] + nbytes > RECORD_NBYTES:
            self._record_ended = True
            print(f"the record of this node ends here: {RECORD_NBYTES} bytes of it wait for the master", flush=True)
        return not self._record_ended

    def _leave_out(self) -> None:
        """Leave out the oldest report."""
        index = next(index for index, (kind, _) in enumerate(self._waiting) if kind == "report")
        kind, frame = self._waiting[index]
        del self._waiting[index]
        self._count(kind, -len(frame))
        self._left_out += 1

    def _count(self, kind: Kind, nbytes: int) -> None:
        self._nbytes[kind] += nbytes
