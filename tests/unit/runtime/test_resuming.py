"""What a node is sent to go on from: read aside, and let go of however it ends."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing

import pytest

from dataflow.runtime.folders import Pieces
from dataflow.runtime.resuming import read_aside


class File:
    """A file of pieces, of which reading one may be held up."""

    def __init__(self, *pieces: bytes, held_at: int | None = None) -> None:
        self.closed, self.at_it, self.go_on = False, threading.Event(), threading.Event()
        self._pieces, self._held_at = pieces, held_at

    def read(self) -> Pieces:
        try:
            for number, piece in enumerate(self._pieces):
                if number == self._held_at:
                    self.at_it.set()
                    self.go_on.wait()
                yield piece
        finally:
            self.closed = True


async def all_of(file: File) -> list[bytes]:
    async with aclosing(read_aside(file.read())) as pieces:
        return [piece async for piece in pieces]


def test_read_aside_gives_every_piece_and_closes_the_file() -> None:
    file = File(b"a", b"b", b"c")
    assert asyncio.run(all_of(file)) == [b"a", b"b", b"c"]
    assert file.closed


def test_read_aside_closes_a_file_of_which_no_more_is_wanted() -> None:
    async def first(file: File) -> bytes:
        async with aclosing(read_aside(file.read())) as pieces:
            return await anext(pieces)

    file = File(b"a", b"b")
    assert asyncio.run(first(file)) == b"a"
    assert file.closed


def test_read_aside_that_is_cancelled_while_a_piece_is_read_closes_the_file_behind_it() -> None:
    async def cancelled(file: File) -> None:
        reading = asyncio.create_task(all_of(file))
        await asyncio.to_thread(file.at_it.wait)
        reading.cancel()
        await asyncio.sleep(0)
        assert not file.closed  # the thread is at it
        file.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await reading

    file = File(b"a", b"b", held_at=1)
    asyncio.run(cancelled(file))
    assert file.closed


def test_read_aside_passes_on_what_reading_raises() -> None:
    def broken() -> Pieces:
        yield b"a"
        what = "the disk is gone"
        raise OSError(what)

    async def read() -> None:
        async for _ in read_aside(broken()):
            pass

    with pytest.raises(OSError, match="the disk is gone"):
        asyncio.run(read())
