"""What a job process has to say while its agent reads nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from dataflow.runtime import backlog
from dataflow.runtime.backlog import Backlog
from dataflow.runtime.frames import pack_frame, read_frame


def play(scene: Callable[[Backlog, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
    async def whole() -> None:
        ours, theirs = socket.socketpair()
        reader, other = await asyncio.open_connection(sock=ours)
        _, writer = await asyncio.open_connection(sock=theirs)
        await scene(Backlog(writer), reader, other)
        for each in (writer, other):
            each.close()

    asyncio.run(whole())


async def heard(reader: asyncio.StreamReader, count: int) -> list[bytes]:
    frames = [await read_frame(reader) for _ in range(count)]
    return [frame for frame in frames if frame is not None]


def test_newest_statistics_and_reports_wait_for_an_agent_that_reads_nothing_and_all_that_must_arrive(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backlog, "WAITING_NBYTES", 3 * len(pack_frame(b"report 0")))

    async def scene(waiting: Backlog, reader: asyncio.StreamReader, agent: asyncio.StreamWriter) -> None:
        waiting.add(pack_frame(b"a file"))
        for number in range(10):
            waiting.add(pack_frame(b"report %d" % number), "report")
            waiting.add(pack_frame(b"statistics %d" % number), "statistics")
        waiting.add(pack_frame(b"ended"))
        said = await heard(reader, 6)
        assert said == [b"statistics 9", b"a file", b"report 7", b"report 8", b"report 9", b"ended"]
        await waiting.close()

    play(scene)
    assert capsys.readouterr().out == "[7 reports left out: the agent could not pass them on]\n"


def test_record_ends_where_more_of_it_would_wait_than_may_and_does_not_go_on_behind_the_gap(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backlog, "RECORD_NBYTES", 2 * len(pack_frame(b"chunk 0")))

    async def scene(waiting: Backlog, reader: asyncio.StreamReader, agent: asyncio.StreamWriter) -> None:
        for number in range(4):
            waiting.add(pack_frame(b"chunk %d" % number), "record")
            waiting.add(pack_frame(b"file %d" % number))
        assert await heard(reader, 6) == [b"chunk 0", b"file 0", b"chunk 1", b"file 1", b"file 2", b"file 3"]
        await waiting.emptied()
        waiting.add(pack_frame(b"chunk 4"), "record")
        waiting.add(pack_frame(b"ended"))
        assert await heard(reader, 1) == [b"ended"]
        await waiting.close()

    play(scene)
    assert capsys.readouterr().out == f"the record of this node ends here: {2 * 11} bytes of it wait for the master\n"


def test_record_that_the_agent_reads_goes_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "RECORD_NBYTES", len(pack_frame(b"chunk 0")))

    async def scene(waiting: Backlog, reader: asyncio.StreamReader, agent: asyncio.StreamWriter) -> None:
        for number in range(4):
            waiting.add(pack_frame(b"chunk %d" % number), "record")
            assert await heard(reader, 1) == [b"chunk %d" % number]
        await waiting.close()

    play(scene)


def test_all_is_said_before_it_is_closed_and_in_order() -> None:
    async def scene(waiting: Backlog, reader: asyncio.StreamReader, agent: asyncio.StreamWriter) -> None:
        frames = [bytes([number]) * (1 << 20) for number in range(8)]
        for frame in frames:
            waiting.add(pack_frame(frame))
        closing = asyncio.create_task(waiting.close())
        assert await heard(reader, 8) == frames
        await closing

    play(scene)


def test_nothing_waits_for_an_agent_that_is_gone() -> None:
    async def scene(waiting: Backlog, reader: asyncio.StreamReader, agent: asyncio.StreamWriter) -> None:
        waiting.add(pack_frame(bytes(8 << 20)))
        closing = asyncio.create_task(waiting.close())
        await reader.readexactly(1)
        agent.transport.abort()
        await closing

    play(scene)
