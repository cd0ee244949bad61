"""What a master answers a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from dataflow.runtime import store
from dataflow.runtime.master_service import MasterService
from dataflow.transport.generated import control_pb2 as pb
from tests.unit.runtime.dispatching import World


def test_log_of_which_the_beginning_is_dropped_comes_in_order_and_goes_on_from_the_number_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_LOG_LINES", 1200)
    world = World(tmp_path)
    job = world.submit("operation")
    world.store.add_log_lines(job, [pb.LogLine(text=str(number)) for number in range(3000)])
    service = MasterService(world.dispatcher, world.store, "1", 1000)

    async def told(since: int) -> list[pb.LogsReply]:
        request = pb.LogsRequest(job=job, since=since)
        return [reply async for reply in service.Logs(request, cast("Any", None))]

    first, second = asyncio.run(told(0))
    assert [line.text for line in (*first.lines, *second.lines)] == [str(number) for number in range(1800, 3000)]
    assert asyncio.run(told(first.next)) == [second]
    assert asyncio.run(told(second.next)) == []
    assert asyncio.run(told(2**64 - 1)) == []


@pytest.mark.parametrize("host", ["", "\x1b[2J10.0.0.1", "a b", "x" * 256])
def test_agent_whose_host_is_no_address_is_refused(tmp_path: Path, host: str) -> None:
    world = World(tmp_path)
    service = MasterService(world.dispatcher, world.store, "1", 1000)

    class Refusing:
        async def abort(self, _code: object, details: str) -> None:
            raise PermissionError(details)

    async def introduce() -> None:
        async def says() -> AsyncIterator[pb.AgentMessage]:
            yield pb.AgentMessage(hello=pb.Hello(name="a", host=host, version="1"))

        async for _ in service.Attach(says(), cast("Any", Refusing())):
            pass

    with pytest.raises(PermissionError, match="an agent introduced itself badly"):
        asyncio.run(introduce())


def test_client_is_told_of_a_job_that_is_removed_before_it_has_all_that_it_asked_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    service = MasterService(world.dispatcher, world.store, "1", 1000)

    class Refusing:
        async def abort(self, _code: object, details: str) -> None:
            raise PermissionError(details)

    async def begin(asked: AsyncIterator[Any], job: str) -> None:
        """Take one message, and the others only once the job is gone."""
        await anext(asked)
        world.store.remove(job)
        with pytest.raises(PermissionError, match="there is no such job"):
            async for _ in asked:
                pass

    for call, request in (
        (service.Artifacts, pb.ArtifactsRequest),
        (service.Logs, pb.LogsRequest),
        (service.Watch, pb.WatchRequest),
    ):
        job = world.submit(str(request))
        world.store.add_log_lines(job, [pb.LogLine(text="line")] * 2000)
        for name in ("a", "b"):
            world.store.write_artifact(job, 0, pb.ArtifactChunk(name=name, data=b"x", last=True))
        del world.dispatcher._runs[job]  # it is over
        asyncio.run(begin(cast("Any", call)(request(job=job), Refusing()), job))
