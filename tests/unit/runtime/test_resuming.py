"""What a node is sent to go on from: read aside, and let go of however it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest

from dataflow.clock import SystemClock
from dataflow.engine.checkpoints import encode
from dataflow.engine.events import Snapshot
from dataflow.engine.resumption import EVERY_KIND
from dataflow.graph.logical import LogicalGraph
from dataflow.plan.job import JobSpec, Resume
from dataflow.runtime.folders import LocalFolder, Pieces
from dataflow.runtime.resuming import keeping, read_aside, state_chunks
from dataflow.runtime.store import Store
from dataflow.transport.generated import control_pb2 as pb
from tests.unit.runtime.dispatching import Idle


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


def cut(data: bytes) -> bytes:
    return data[:100]


def cut_at_the_end(data: bytes) -> bytes:
    return data[:-1]


def longer(data: bytes) -> bytes:
    return data + data


def changed(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def sent(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> tuple[list[pb.StateChunk], bytes]:
    """What a node is sent of checkpoint 10, whose file was spoiled once it was chosen, and the file as it was."""
    graph = LogicalGraph(name="idle").with_role("worker").with_operator("source", Idle(), role="worker")
    spec = JobSpec(name="job", graph=graph, nodes=1)
    plan = spec.plan(("a",))
    kept = keeping(LocalFolder(tmp_path / "kept"), "job", spec, plan, SystemClock())(print)
    tensors = {"replica/values": np.ones(300_000, np.float32)}
    data = encode(Snapshot(0, "a", ("worker",), 10, 10, {}, tensors))
    kept.write(0, 10, data, last=True)
    file = tmp_path / "kept" / "000000010" / "node-0.safetensors"
    assert file.read_bytes() == data
    file.write_bytes(spoil(data))

    async def all_chunks() -> list[pb.StateChunk]:
        store = Store(tmp_path)
        resume = Resume(folder=str(tmp_path / "kept"), number=10)
        try:
            return [chunk async for chunk in state_chunks(store, resume, plan, 0, EVERY_KIND)]
        finally:
            store.close()

    return asyncio.run(all_chunks()), data


def test_node_is_sent_all_of_a_file_that_is_what_was_written(tmp_path: Path) -> None:
    chunks, data = sent(tmp_path, lambda data: data)
    assert b"".join(chunk.data for chunk in chunks) == data
    assert not any(chunk.failure for chunk in chunks)


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (cut, "a file of {whole} bytes has {found}"),
        (cut_at_the_end, "a file of {whole} bytes has {found}"),
        (longer, "a file of {whole} bytes has {found}"),
        (changed, "a file is not what was written"),
    ],
)
def test_node_is_told_which_checkpoint_broke_since_it_was_chosen_and_never_has_all_of_it(
    tmp_path: Path, spoil: Callable[[bytes], bytes], what: str
) -> None:
    chunks, data = sent(tmp_path, spoil)
    assert sum(len(chunk.data) for chunk in chunks) < len(data)
    place = tmp_path / "kept" / "000000010" / "node-0.safetensors"
    told = what.format(whole=len(data), found=len(spoil(data)))
    assert chunks[-1].failure == f"checkpoint 10 cannot be used: {told} at {place}"
