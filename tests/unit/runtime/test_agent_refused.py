"""An agent whose name another one has taken while it was away."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dataflow.errors import MasterError
from dataflow.runtime import agent
from dataflow.runtime.agent import AgentConfig, attach
from dataflow.transport.generated import control_pb2 as pb
from dataflow.transport.generated.control_pb2_grpc import MasterServicer, add_MasterServicer_to_server


class Taken(MasterServicer):
    """Takes an agent once, and refuses it from then on."""

    def __init__(self) -> None:
        self.asked = 0

    async def Attach(self, requests: Any, context: Any) -> AsyncIterator[pb.MasterMessage]:  # noqa: N802
        hello = await context.read()
        assert hello.hello.name == "a"
        self.asked += 1
        if self.asked > 1:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "a node of this name is attached already")
        yield pb.MasterMessage(welcome=pb.Welcome(version="1"))


def test_agent_that_is_refused_ends_after_a_while_and_says_why_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agent, "REFUSED_S", 1.0)
    complaints: list[dict[str, Any]] = []

    async def whole() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        server, master = grpc.aio.server(), Taken()
        add_MasterServicer_to_server(master, server)  # type: ignore[no-untyped-call]
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        with pytest.raises(MasterError, match="another node of this name"):
            await attach(AgentConfig(name="a", master=address, token="t", state_dir=tmp_path))
        await server.stop(None)
        gc.collect()
        await asyncio.sleep(0)
        return master.asked

    assert asyncio.run(whole()) > 2
    assert complaints == []
    assert len(capsys.readouterr().err.splitlines()) == 1
