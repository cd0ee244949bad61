"""What an agent is told while the master's disk is full."""

from __future__ import annotations

import asyncio

from dataflow.runtime.agent_session import AgentSession
from dataflow.transport.generated import control_pb2 as pb


def connect(epoch: int) -> pb.MasterMessage:
    return pb.MasterMessage(job="a", connect=pb.Connect(epoch=epoch))


def test_membership_of_a_job_that_begins_again_is_held_back_while_it_is_not_on_the_disk() -> None:
    on_disk = True
    session = AgentSession(pb.Hello(name="a", life="x"), 0.0, 0, lambda: on_disk)

    async def whole() -> None:
        nonlocal on_disk
        for message in (connect(5), pb.MasterMessage(job="a", deploy=pb.Deploy(start=1)), connect(1)):
            session.send(message)
            assert await session.next() == message
        on_disk = False
        session.send(connect(1))
        assert await session.next() == connect(1)  # as it was told before
        session.send(connect(2))
        session.end()
        assert await session.next() is None

    asyncio.run(whole())
