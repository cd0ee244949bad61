from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from dataflow.engine.checkpoints import KeptFile, Member, describe
from dataflow.engine.events import Snapshot
from dataflow.engine.membership import Members
from dataflow.engine.resumption import EVERY_KIND, Resumption
from dataflow.errors import AuthError, BeginAnewError, OperatorError
from dataflow.operators_api import Artifact
from dataflow.reports import NodeStatistics, OperatorReport
from dataflow.runtime.frames import pack_frame, read_frame
from dataflow.runtime.job_relay import JobRelay, Report
from dataflow.runtime.trouble import LinkBroken, Paused
from dataflow.runtime.wire import CHUNK_NBYTES
from dataflow.transport.generated import control_pb2 as pb

DEPLOY = pb.ProcessCommand(deploy=pb.Deploy(node=1))
CONNECT = pb.ProcessCommand(connect=pb.Connect(addresses={0: "a:1", 1: "b:2"}, epoch=1, incarnations={0: 0, 1: 0}))
START = pb.ProcessCommand(start=pb.Start())
STOP = pb.ProcessCommand(stop=pb.Stop(reason="time"))


class FakeDriver:
    """A node that runs until it is stopped; `fails` maps a method's name to what it raises."""

    def __init__(self, report: Report, fails: Mapping[str, Exception]) -> None:
        self.report, self.fails, self.calls = report, fails, list[Any]()
        self.stopped = asyncio.Event()
        self.resumed: list[int] = []
        self.busy: asyncio.Event | None = None

    def called(self, name: str, *arguments: object) -> None:
        self.calls.append((name, *arguments) if arguments else name)
        if name in self.fails:
            raise self.fails[name]

    async def prepare(self, files: Sequence[bytes]) -> str:
        self.called("prepare", *files)
        return "b:2"

    @property
    def epoch(self) -> int:
        return 7

    async def connect(self, members: Members) -> None:
        self.called("connect", members)

    async def meet(self, members: Members) -> None:
        if self.busy is not None:
            await self.busy.wait()
        self.called("meet", members)

    def resume(self, pause: int) -> None:
        self.resumed.append(pause)
        if pause and self.busy is not None:
            self.busy.set()

    def start(self) -> None:
        self.called("start")
        self.report(OperatorReport("a.b", {"x": 1}))
        self.report(Artifact("empty", b""))
        self.report(Artifact("two", bytes(CHUNK_NBYTES + 1)))
        other = threading.Thread(target=self.report, args=(OperatorReport("a.b", {"x": 2}),))
        other.start()
        other.join()

    def leave(self) -> None:
        self.called("leave")

    def stop(self) -> None:
        self.called("stop")
        self.stopped.set()

    async def wait(self) -> NodeStatistics:
        await self.stopped.wait()
        self.called("wait")
        return NodeStatistics(1, steps=5)

    async def statistics(self) -> NodeStatistics:
        return NodeStatistics(1)

    async def close(self) -> None:
        self.called("close")


class Conversation:
    """The agent's side of a relay."""

    def __init__(self, fails: Mapping[str, Exception]) -> None:
        self.fails = fails
        self.driver: FakeDriver | None = None

    async def open(self) -> None:
        ours, theirs = socket.socketpair()
        self.reader, self.writer = await asyncio.open_connection(sock=ours)
        reader, writer = await asyncio.open_connection(sock=theirs)
        relay = JobRelay(reader, writer, self.make, lambda error: (f"{error}", "my_job.py:3"))
        self.relay = asyncio.create_task(relay.run())

    def make(self, deploy: pb.Deploy, report: Report) -> FakeDriver:
        assert deploy.node == 1
        self.driver = FakeDriver(report, self.fails)
        return self.driver

    def tell(self, *commands: pb.ProcessCommand) -> None:
        for command in commands:
            self.writer.write(pack_frame(command.SerializeToString()))

    async def hear(self) -> pb.ProcessMessage:
        frame = await read_frame(self.reader)
        assert frame is not None
        return pb.ProcessMessage.FromString(frame)

    async def leave(self) -> bool:
        self.writer.write_eof()
        while await read_frame(self.reader) is not None:
            pass
        return await self.close()

    async def close(self) -> bool:
        went_well = await self.relay
        self.writer.close()
        await self.writer.wait_closed()
        return went_well


def converse(talk: Callable[[Conversation], Any], fails: Mapping[str, Exception] | None = None) -> Any:
    async def whole() -> Any:
        conversation = Conversation(fails or {})
        await conversation.open()
        return await talk(conversation)

    return asyncio.run(whole())


def test_whole_life_of_a_node() -> None:
    async def talk(agent: Conversation) -> None:
        agent.tell(DEPLOY)
        assert (await agent.hear()).prepared.address == "b:2"
        agent.tell(CONNECT)
        assert (await agent.hear()).WhichOneof("body") == "ready"
        agent.tell(START)
        said = [await agent.hear() for _ in range(5)]
        assert [message.report.fields_json for message in (said[0], said[4])] == [b'{"x": 1}', b'{"x": 2}']
        chunks = [(m.artifact.name, len(m.artifact.data), m.artifact.last) for m in said[1:4]]
        assert chunks == [("empty", 0, True), ("two", CHUNK_NBYTES, False), ("two", 1, True)]
        agent.tell(STOP)
        assert (await agent.hear()).ended.statistics.steps == 5
        assert agent.driver is not None
        assert "close" not in agent.driver.calls, "peers may still be sending"
        assert await agent.leave()
        connect = ("connect", Members(1, {0: 0, 1: 0}, {0: "a:1", 1: "b:2"}))
        assert agent.driver.calls == ["prepare", connect, "start", "stop", "wait", "close"]

    converse(talk)


def test_later_memberships_are_met_trouble_is_told_and_the_end_names_the_newest() -> None:
    async def talk(agent: Conversation) -> None:
        agent.tell(DEPLOY, CONNECT, START)
        while (await agent.hear()).WhichOneof("body") != "report":
            pass
        assert agent.driver is not None
        agent.driver.report(LinkBroken(0, "down", 2))
        agent.driver.report(Paused(3))
        said = [await agent.hear() for _ in range(6)][-2:]
        assert said == [
            pb.ProcessMessage(link_broken=pb.LinkBroken(peer=0, reason="down", incarnation=2)),
            pb.ProcessMessage(paused=pb.Paused(number=3)),
        ]
        agent.tell(pb.ProcessCommand(connect=pb.Connect(addresses={1: "b:2"}, epoch=2, incarnations={1: 0})), STOP)
        assert (await agent.hear()).ended.epoch == 7
        assert ("meet", Members(2, {1: 0}, {1: "b:2"})) in agent.driver.calls
        await agent.leave()

    converse(talk)


def test_commands_wait_for_the_membership_that_was_told_before() -> None:
    async def talk(agent: Conversation) -> None:
        agent.tell(DEPLOY, CONNECT, START)
        while (await agent.hear()).WhichOneof("body") != "report":
            pass
        assert agent.driver is not None
        agent.driver.busy = asyncio.Event()
        members = pb.Connect(addresses={1: "b:2"}, epoch=2, incarnations={1: 0})
        agent.tell(pb.ProcessCommand(connect=members), pb.ProcessCommand(leave=pb.Leave()), STOP)
        while not agent.driver.resumed[1:]:
            await asyncio.sleep(0)
        assert agent.driver.calls[-1] == "start", "the membership has not been taken in yet"
        agent.driver.busy.set()
        assert [message async for message in until_end(agent)]
        assert agent.driver.calls[-4:] == [("meet", Members(2, {1: 0}, {1: "b:2"})), "leave", "stop", "wait"]
        await agent.leave()

    converse(talk)


def test_membership_that_cannot_be_taken_in_fails_the_node_and_is_told_once() -> None:
    async def talk(agent: Conversation) -> None:
        agent.tell(DEPLOY, CONNECT, START)
        agent.tell(pb.ProcessCommand(connect=pb.Connect(addresses={1: "b:2"}, epoch=2, incarnations={1: 0})), STOP)
        while (message := await agent.hear()).WhichOneof("body") != "failed":
            assert message.WhichOneof("body") != "ended"
        assert message.failed.text == "a peer refuses"
        assert not await agent.leave()

    converse(talk, {"meet": AuthError(what="a peer refuses")})


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("prepare", OperatorError(what="no data")),
        ("connect", AuthError(what="the token is wrong")),
        ("start", ValueError("anything")),
        ("wait", OperatorError(what="it raised")),
        ("wait", BeginAnewError(what="it is too late")),
    ],
)
def test_failure_is_told_and_the_process_stays_until_it_is_asked_to_leave(method: str, error: Exception) -> None:
    async def talk(agent: Conversation) -> None:
        agent.tell(DEPLOY, CONNECT, START)
        while (message := await agent.hear()).WhichOneof("body") != "failed":
            if message.WhichOneof("body") == "report":
                agent.tell(STOP)
        failed = message.failed
        assert (failed.text, failed.where) == (f"{error}", "my_job.py:3")
        assert failed.anew == isinstance(error, BeginAnewError)
        assert not await agent.leave()
        assert agent.driver is not None
        assert agent.driver.calls[-1] == "close"

    converse(talk, {method: error})


def test_answer_to_a_pause_is_read_while_the_driver_cannot_take_a_membership_in_for_that_pause() -> None:
    async def talk(agent: Conversation) -> None:
        agent.tell(DEPLOY, CONNECT, START)
        while (await agent.hear()).WhichOneof("body") != "report":
            pass
        assert agent.driver is not None
        agent.driver.busy = asyncio.Event()
        members = pb.Connect(addresses={1: "b:2"}, epoch=2, incarnations={1: 0})
        agent.tell(pb.ProcessCommand(connect=members))
        members.answers = 1
        agent.tell(pb.ProcessCommand(connect=members), STOP)
        async with asyncio.timeout(60):
            assert [message async for message in until_end(agent)]
        assert agent.driver.resumed == [0, 0, 1]
        await agent.leave()

    converse(talk)


def snapshot(number: int) -> Snapshot:
    values = {"replica/values": np.arange(CHUNK_NBYTES // 2, dtype=np.float32)}
    return Snapshot(1, "node-1", ("worker",), number, number, {"source": number}, values)


def test_snapshots_are_sent_one_at_a_time_and_before_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    async def talk(agent: Conversation) -> None:
        agent.tell(DEPLOY, CONNECT, START)
        while (await agent.hear()).WhichOneof("body") != "report":
            pass
        assert agent.driver is not None
        agent.driver.report(snapshot(5))
        agent.driver.report(snapshot(6))
        agent.tell(STOP)
        said = [message async for message in until_end(agent)]
        chunks = [message.checkpoint for message in said if message.WhichOneof("body") == "checkpoint"]
        assert {chunk.number for chunk in chunks} == {5}
        assert [chunk.last for chunk in chunks] == [False, False, True]
        data = b"".join(chunk.data for chunk in chunks)
        file = describe(data, "node-1", len(data), "")
        assert (file.member.node, file.member.steps, file.member.positions) == (1, 5, {"source": 5})
        assert await agent.leave()

    converse(talk)
    assert "checkpoint 6 is left out" in capsys.readouterr().out


def test_reports_that_an_agent_does_not_take_are_left_out_but_for_those_of_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dataflow.runtime.backlog.WAITING_NBYTES", 1 << 10)

    async def talk(agent: Conversation) -> None:
        agent.tell(DEPLOY, CONNECT, START)
        while (await agent.hear()).WhichOneof("body") != "report":
            pass
        assert agent.driver is not None
        agent.driver.report(OperatorReport("absorb.adjusted", {"adjustment": 2, "stage": "settled"}))
        for number in range(100):
            agent.driver.report(OperatorReport("a.b", {"number": number}))
        agent.tell(STOP)
        said = [message.report async for message in until_end(agent) if message.HasField("report")]
        fields = [json.loads(report.fields_json) for report in said]
        assert {"adjustment": 2, "stage": "settled"} in fields
        assert fields[-1] == {"number": 99}
        assert len(fields) < 50
        await agent.leave()

    converse(talk)
    assert "reports left out: the agent could not pass them on" in capsys.readouterr().out


async def until_end(agent: Conversation) -> AsyncIterator[pb.ProcessMessage]:
    while (message := await agent.hear()).WhichOneof("body") != "ended":
        yield message


RESUMES = pb.ProcessCommand(deploy=pb.Deploy(node=1, resumes=True))


def files_of(*contents: bytes) -> pb.ProcessCommand:
    files = [
        KeptFile(
            file=f"{index}",
            nbytes=len(content),
            sha256="",
            member=Member(node=index, name="", roles=(), steps=None, positions={}),
            tensors={},
        )
        for index, content in enumerate(contents)
    ]
    how = Resumption(files=tuple(files), own=False, divided=False, whole=True, kinds=EVERY_KIND, steps={}, positions={})
    return pb.ProcessCommand(state=pb.StateChunk(resumption_json=how.model_dump_json().encode()))


def state(data: bytes = b"", failure: str = "") -> pb.ProcessCommand:
    return pb.ProcessCommand(state=pb.StateChunk(data=data, failure=failure))


def test_files_to_go_on_from_are_put_together_before_the_node_is_prepared() -> None:
    async def talk(agent: Conversation) -> None:
        agent.tell(RESUMES, files_of(b"one", b"", b"three"), state(b"onet"), state(b"hree"))
        assert (await agent.hear()).prepared.address == "b:2"
        assert agent.driver is not None
        assert agent.driver.calls == [("prepare", b"one", b"", b"three")]
        await agent.leave()

    converse(talk)


def test_files_of_a_master_that_begins_again_are_put_together_anew_and_once() -> None:
    async def talk(agent: Conversation) -> None:
        agent.tell(RESUMES, files_of(b"one", b"three"), state(b"onet"))
        agent.tell(files_of(b"four", b"two"), state(b"fourt"), state(b"wo"), files_of(b"late"), state(b"late"))
        assert (await agent.hear()).prepared.address == "b:2"
        assert agent.driver is not None
        assert agent.driver.calls == [("prepare", b"four", b"two")]
        await agent.leave()

    converse(talk)


def test_files_that_the_master_cannot_read_fail_the_node() -> None:
    async def talk(agent: Conversation) -> None:
        agent.tell(RESUMES, files_of(b"one"), state(b"o"), state(failure="input/output error"))
        failed = (await agent.hear()).failed
        assert (failed.text, failed.checkpoint) == ("input/output error", True)
        await agent.leave()

    converse(talk)


def test_stop_before_the_start_makes_the_process_leave() -> None:
    async def talk(agent: Conversation) -> None:
        agent.tell(DEPLOY)
        await agent.hear()
        agent.tell(STOP)
        assert await agent.close()
        assert agent.driver is not None
        assert agent.driver.calls == ["prepare", "close"]

    converse(talk)


def test_agent_that_goes_before_it_deploys_is_no_failure() -> None:
    async def talk(agent: Conversation) -> None:
        assert await agent.leave()
        assert agent.driver is None

    converse(talk)


def test_agent_that_goes_while_the_node_runs_closes_it() -> None:
    async def talk(agent: Conversation) -> None:
        agent.tell(DEPLOY, CONNECT, START)
        while (await agent.hear()).WhichOneof("body") != "report":
            pass
        await agent.leave()
        assert agent.driver is not None
        assert agent.driver.calls[-1] == "close"

    converse(talk)
