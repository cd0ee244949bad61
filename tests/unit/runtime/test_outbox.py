from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dataflow.runtime import outbox as outboxes
from dataflow.runtime.outbox import Outbox
from dataflow.transport.generated import control_pb2 as pb


def line(text: str, job: str = "j") -> pb.AgentMessage:
    return pb.AgentMessage(log_lines=pb.LogLines(job=job, lines=[pb.LogLine(text=text)]))


def ready() -> pb.AgentMessage:
    return said(pb.ProcessMessage(ready=pb.Ready()))


def chunk(data: bytes) -> pb.AgentMessage:
    return said(pb.ProcessMessage(artifact=pb.ArtifactChunk(name="f", data=data)))


def said(message: pb.ProcessMessage) -> pb.AgentMessage:
    return pb.AgentMessage(from_process=pb.FromProcess(job="j", message=message))


def what(message: pb.AgentMessage) -> str:
    lines = [each.text for each in message.log_lines.lines]
    return lines[0] if lines else message.from_process.message.WhichOneof("body") or str(message.WhichOneof("body"))


async def waits(work: Awaitable[object]) -> bool:
    """Whether something does not come to its end by itself."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0.01)
    done = task.done()
    task.cancel()
    return not done


def play(scene: Callable[[Outbox], Awaitable[None]]) -> None:
    async def whole() -> None:
        await scene(Outbox())

    asyncio.run(whole())


def test_what_the_master_has_not_acknowledged_is_sent_again_in_order_with_the_same_numbers() -> None:
    async def scene(outbox: Outbox) -> None:
        outbox.attached(0, 0, 0.0)
        for text in "abcd":
            await outbox.put(line(text))
        assert [what(await outbox.next(outbox.connection)) for _ in range(3)] == ["a", "b", "c"]
        outbox.kept(1, 1)
        outbox.detached()
        await outbox.put(line("e"))
        outbox.attached(2, 2, 0.0)  # it had kept one more than it could say
        again = [await outbox.next(outbox.connection) for _ in range(3)]
        assert [(what(each), each.number) for each in again] == [("c", 3), ("d", 4), ("e", 5)]
        assert await waits(outbox.next(outbox.connection))

    play(scene)


def test_while_the_master_is_away_the_oldest_reports_and_lines_are_dropped_counted_and_owned_up_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outboxes, "AWAY_MESSAGES", 2)

    async def scene(outbox: Outbox) -> None:
        for message in (line("1"), ready(), line("2", "k"), line("3"), line("4")):
            await outbox.put(message)
        outbox.attached(0, 0, 7.0)
        sent = [await outbox.next(outbox.connection) for _ in range(5)]
        assert [(what(each), each.number) for each in sent[:3]] == [("ready", 2), ("3", 4), ("4", 5)]
        text = "[1 reports and batches of log lines left out while the master was away]"
        assert [(each.log_lines.job, what(each)) for each in sent[3:]] == [("j", text), ("k", text)]
        assert await waits(outbox.next(outbox.connection))

    play(scene)


def test_files_wait_while_the_master_is_away_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "AWAY_NBYTES", 100)

    async def scene(outbox: Outbox) -> None:
        await outbox.put(chunk(bytes(100)))
        assert await waits(outbox.put(chunk(b"")))
        await outbox.put(ready())
        waiting = asyncio.create_task(outbox.put(chunk(b"more")))
        await asyncio.sleep(0)
        outbox.attached(0, 0, 0.0)
        await waiting
        assert [what(await outbox.next(outbox.connection)) for _ in range(3)] == ["artifact", "ready", "artifact"]

    play(scene)


def test_no_more_than_a_window_is_sent_without_an_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "UNACKNOWLEDGED", 2)
    monkeypatch.setattr(outboxes, "AT_ONCE", 1)

    async def scene(outbox: Outbox) -> None:
        outbox.attached(0, 0, 0.0)
        for text in "ab":
            await outbox.put(line(text))
            await outbox.next(outbox.connection)
        await outbox.put(line("c"))
        assert await waits(outbox.put(line("d")))
        assert await waits(outbox.next(outbox.connection))
        outbox.kept(1, 1)
        assert what(await outbox.next(outbox.connection)) == "c"

    play(scene)


def test_what_others_wait_for_is_kept_however_much_else_is_said_while_the_master_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outboxes, "AWAY_MESSAGES", 1)

    async def scene(outbox: Outbox) -> None:
        for number in range(3):
            for fields in (b'{"adjustment": %d, "stage": "settled"}', b'{"accuracy": %d}'):
                await outbox.put(said(pb.ProcessMessage(report=pb.OperatorReport(fields_json=fields % number))))
        outbox.attached(0, 0, 0.0)
        sent = [await outbox.next(outbox.connection) for _ in range(5)]
        told = [each.from_process.message.report.fields_json.split(b",")[0] for each in sent[:4]]
        assert told == [b'{"adjustment": 0', b'{"adjustment": 1', b'{"adjustment": 2', b'{"accuracy": 2}']
        assert what(sent[4]) == "[2 reports and batches of log lines left out while the master was away]"

    play(scene)


def test_of_what_a_master_has_heard_and_not_kept_the_next_is_told_what_must_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outboxes, "UNACKNOWLEDGED", 4)

    async def scene(outbox: Outbox) -> None:
        change = said(pb.ProcessMessage(report=pb.OperatorReport(fields_json=b'{"adjustment": 2, "stage": "ready"}')))
        plain = said(pb.ProcessMessage(report=pb.OperatorReport(fields_json=b"{}")))
        outbox.attached(0, 0, 0.0)
        for message in (line("1"), ready(), change, plain):
            await outbox.put(message)
            await outbox.next(outbox.connection)
        for text in "567":
            await outbox.put(line(text))
        outbox.kept(0, 3)
        assert [what(await outbox.next(outbox.connection)) for _ in range(1)] == ["5"]
        outbox.detached()

        outbox.attached(0, 5, 0.0)  # the same master, which has heard more than it could say
        assert [what(await outbox.next(outbox.connection)) for _ in range(2)] == ["6", "7"]
        outbox.detached()
        outbox.attached(0, 0, 0.0)
        again = [await outbox.next(outbox.connection) for _ in range(4)]
        assert [(each.number, what(each)) for each in again] == [(2, "ready"), (3, "report"), (6, "6"), (7, "7")]
        outbox.kept(7, 7)
        outbox.detached()
        assert await waits(outbox.next(outbox.connection))

    play(scene)


def test_connection_that_was_given_up_gets_nothing_more() -> None:
    async def scene(outbox: Outbox) -> None:
        outbox.attached(0, 0, 0.0)
        before = outbox.connection
        waiting = asyncio.create_task(outbox.next(before))
        await asyncio.sleep(0)
        outbox.detached()
        await outbox.put(ready())
        assert await waits(waiting)
        assert what(await outbox.next(outbox.connection)) == "ready"

    play(scene)


def test_of_what_passes_only_the_newest_is_said_and_nothing_after_a_break() -> None:
    async def scene(outbox: Outbox) -> None:
        outbox.attached(0, 0, 0.0)
        await outbox.put(line("a"))
        for beat in (1, 2):
            outbox.passing("beat", pb.AgentMessage(heartbeat=pb.Heartbeat(progress={"j": beat})))
        first = await outbox.next(outbox.connection)
        assert (dict(first.heartbeat.progress), first.number) == ({"j": 2}, 0)
        assert what(await outbox.next(outbox.connection)) == "a"
        outbox.passing("beat", pb.AgentMessage(heartbeat=pb.Heartbeat()))
        outbox.detached()
        outbox.attached(1, 1, 0.0)
        assert await waits(outbox.next(outbox.connection))

    play(scene)


def test_deployment_is_held_until_the_master_knows_of_its_end_and_is_never_taken_twice() -> None:
    async def scene(outbox: Outbox) -> None:
        held = pb.Held(job="j", operation_id="op", node=3)
        assert outbox.hold(held)
        assert not outbox.hold(held)
        outbox.attached(0, 0, 0.0)
        await outbox.exited("op", pb.AgentMessage(exited=pb.ProcessExited(job="j")))
        message = await outbox.next(outbox.connection)
        assert outbox.held() == [pb.Held(job="j", operation_id="op", node=3, exited=message.number)]
        outbox.kept(message.number, message.number)
        assert outbox.held() == []
        assert not outbox.hold(held)

    play(scene)
