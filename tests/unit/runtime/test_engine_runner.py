"""Who is at the engine, and on which thread what it wants done is done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import cast

from dataflow.clock import SystemClock
from dataflow.engine.events import (
    Command,
    Ended,
    Event,
    Failed,
    Outcome,
    RunTask,
    SendEnd,
    Started,
    StopAsked,
    Task,
    TaskFinished,
)
from dataflow.engine.node_engine import NodeEngine
from dataflow.plan.physical import NodePlan, StreamId
from dataflow.runtime.engine_runner import IN_A_ROW, EngineRunner

NODE = NodePlan(index=0, name="node-0", roles=("worker",), compute_tasks=1, network_tasks=1)


class Scripted:
    """Stands in for an engine: answers events by a function, and notes the events and the threads they came on."""

    def __init__(self, answer: Callable[[Event], list[Command]]) -> None:
        self._answer = answer
        self.events: list[Event] = []
        self.threads: list[str] = []
        self._inside = threading.Lock()

    def handle(self, event: Event, now: float) -> list[Command]:
        del now
        assert self._inside.acquire(blocking=False), "two threads are at the engine"
        self.events.append(event)
        self.threads.append(threading.current_thread().name)
        commands = self._answer(event)
        self._inside.release()
        return commands


def task(number: int, *, chain: str = "chain", work: Callable[[], None] = lambda: None) -> Task:
    def run() -> Outcome:
        work()
        return Outcome()

    return Task(chain, str(number), "compute", run)


class Slow(SystemClock):
    """A clock on which every task takes a second, so that none is short."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now(self) -> float:
        self._now_s += 1.0
        return self._now_s


class Still(SystemClock):
    """A clock on which no task takes any time, so that all of a kind that has run before are short."""

    def now(self) -> float:
        return 0.0


async def run(engine: Scripted, clock: SystemClock, meanwhile: Callable[[EngineRunner], None]) -> list[Command]:
    """Feed `Started` and wait for `Ended` or `Failed`; the commands carried out, all of them on the loop."""
    done = asyncio.Event()
    commands: list[Command] = []

    def carry_out(command: Command) -> None:
        assert threading.current_thread() is threading.main_thread()
        commands.append(command)
        if isinstance(command, Ended | Failed):
            done.set()

    runner = EngineRunner(cast("NodeEngine", engine), NODE, clock=clock, carry_out=carry_out, progress=lambda: None)
    runner.feed(Started())
    meanwhile(runner)
    await asyncio.wait_for(done.wait(), 30)
    runner.close()
    return commands


def test_a_thread_that_ends_a_task_takes_it_to_the_engine_and_goes_on_with_the_next() -> None:
    def answer(event: Event) -> list[Command]:
        number = int(event.task.role) + 1 if isinstance(event, TaskFinished) else 0
        return [RunTask(task(number))] if number < 100 else [Ended()]

    engine = Scripted(answer)
    assert asyncio.run(run(engine, Slow(), lambda _runner: None)) == [Ended()]
    assert engine.threads == ["MainThread", *["compute-0"] * 100]
    assert [event.task.role for event in engine.events if isinstance(event, TaskFinished)] == list(map(str, range(100)))


def test_commands_are_carried_out_on_the_loop_in_the_order_in_which_they_were_given() -> None:
    def stream(number: int) -> SendEnd:
        return SendEnd(StreamId(number, 0, 1))

    def answer(event: Event) -> list[Command]:
        number = int(event.task.role) + 1 if isinstance(event, TaskFinished) else 0
        more: Command = RunTask(task(number)) if number < 50 else Ended()
        return [stream(2 * number), more, stream(2 * number + 1)] if number < 50 else [more]

    assert asyncio.run(run(Scripted(answer), Slow(), lambda _runner: None)) == [
        *(stream(number) for number in range(100)),
        Ended(),
    ]


def test_an_event_of_the_loop_waits_until_the_thread_at_the_engine_is_through() -> None:
    at_engine, fed = threading.Event(), threading.Event()

    def answer(event: Event) -> list[Command]:
        if isinstance(event, Started):
            return [RunTask(task(0))]
        if isinstance(event, TaskFinished):
            at_engine.set()
            assert fed.wait(30)
            return []
        return [Ended()]

    def meanwhile(runner: EngineRunner) -> None:
        assert at_engine.wait(30)
        runner.feed(StopAsked())  # returns at once, though the thread is at the engine
        fed.set()

    engine = Scripted(answer)
    assert asyncio.run(run(engine, Slow(), meanwhile)) == [Ended()]
    assert [type(event) for event in engine.events] == [Started, TaskFinished, StopAsked]
    assert engine.threads == ["MainThread", "compute-0", "compute-0"]


def test_a_thread_for_which_a_task_waits_leaves_the_engine_to_another_thread() -> None:
    """A short task and a long one follow from one event: the thread takes the long one, another the short one."""
    ran: dict[str, str] = {}

    def note(chain: str) -> Callable[[], None]:
        return lambda: ran.update({chain: threading.current_thread().name})

    def answer(event: Event) -> list[Command]:
        if isinstance(event, Started):
            return [RunTask(task(0, chain="short"))]
        assert isinstance(event, TaskFinished)
        if (event.task.chain, event.task.role) == ("short", "0") and not ran:
            return [
                RunTask(task(0, chain="short", work=note("short"))),
                RunTask(task(0, chain="long", work=note("long"))),
            ]
        return [Ended()] if len(ran) == 2 and len(engine.events) == 4 else []

    engine = Scripted(answer)
    assert asyncio.run(run(engine, Still(), lambda _runner: None)) == [Ended()]
    assert ran == {"short": "engine", "long": "compute-0"}


def test_short_tasks_that_follow_from_one_another_leave_the_loop_time_for_other_things() -> None:
    """Events of the loop are followed by `IN_A_ROW` short tasks in a turn of the loop at most."""
    on_loop: list[int] = []

    def answer(event: Event) -> list[Command]:
        if isinstance(event, Started):
            return [RunTask(task(0))]
        if isinstance(event, TaskFinished) and len(engine.events) == 2:
            return []
        return [RunTask(task(0))] if len(engine.events) < 4 * IN_A_ROW else [Ended()]

    engine = Scripted(answer)

    def turn() -> None:
        if len(engine.events) == 2:
            runner_of[0].feed(StopAsked())
        on_loop.append(engine.threads.count("MainThread"))
        if len(engine.events) < 4 * IN_A_ROW:
            asyncio.get_running_loop().call_soon(turn)

    def begin(runner: EngineRunner) -> None:
        runner_of.append(runner)
        turn()

    runner_of: list[EngineRunner] = []
    asyncio.run(run(engine, Still(), begin))
    assert engine.threads == ["MainThread", "compute-0", *["MainThread"] * (4 * IN_A_ROW - 2)]
    assert max(after - before for before, after in pairwise(on_loop)) <= IN_A_ROW


def test_an_exception_in_the_engine_fails_the_node_and_nothing_follows() -> None:
    def answer(event: Event) -> list[Command]:
        if isinstance(event, Started):
            message = "out of order"
            raise RuntimeError(message)
        return [Ended()]

    engine = Scripted(answer)
    (failed,) = asyncio.run(run(engine, Slow(), lambda runner: runner.feed(StopAsked())))
    assert isinstance(failed, Failed)
    assert "the engine of node node-0 broke: RuntimeError('out of order')" in str(failed.error)
    assert [type(event) for event in engine.events] == [Started]
