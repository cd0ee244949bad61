"""Who is at the engine, and on which thread what it wants done is done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import cast

import pytest

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
from dataflow.operators_api import Pool
from dataflow.plan.physical import NodePlan, StreamId
from dataflow.reports import NodeStatistics
from dataflow.runtime import pools
from dataflow.runtime.engine_runner import IN_A_ROW, EngineRunner
from dataflow.runtime.watchdog import TaskBoard

LEARNT = 7
"""Tasks that take no time before the next of their kind is taken to be short: 2 * 0.9 ** 7 is less than 1."""

NODE = NodePlan(index=0, name="node-0", roles=("worker",), compute_tasks=1, network_tasks=1)


class Scripted:
    """Stands in for an engine: answers events by a function, and notes the events and the threads they came on.

    Its statistics are how many tasks have finished; `asked` are the threads that read them.
    """

    def __init__(self, answer: Callable[[Event], list[Command]]) -> None:
        self._answer = answer
        self.events: list[Event] = []
        self.threads: list[str] = []
        self.asked: list[str] = []
        self._inside = threading.Lock()

    def handle(self, event: Event, now: float) -> list[Command]:
        del now
        with self._alone():
            self.events.append(event)
            self.threads.append(threading.current_thread().name)
            return self._answer(event)

    def statistics(self, now: float) -> NodeStatistics:
        del now
        with self._alone():
            self.asked.append(threading.current_thread().name)
            return NodeStatistics(0, tasks=self.finished())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        assert self._inside.acquire(blocking=False), "two threads are at the engine"
        try:
            yield
        finally:
            self._inside.release()

    def finished(self) -> int:
        return sum(isinstance(event, TaskFinished) for event in self.events)


def task(number: int, *, chain: str = "chain", pool: Pool = "compute", work: Callable[[], None] = lambda: None) -> Task:
    def run() -> Outcome:
        work()
        return Outcome()

    return Task(chain, str(number), pool, run)


class Slow(SystemClock):
    """A clock on which every task takes a second, so that none is short."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now(self) -> float:
        self._now_s += 1.0
        return self._now_s


class Still(SystemClock):
    """A clock on which no task takes any time, so that all of a kind but the first `LEARNT` are short."""

    def now(self) -> float:
        return 0.0


class Told(SystemClock):
    """A clock that stands still but for what it is told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s


def runner_of(
    engine: Scripted, clock: SystemClock, carry_out: Callable[[Command], None], cores: int = 2
) -> EngineRunner:
    return EngineRunner(
        cast("NodeEngine", engine), NODE, clock=clock, carry_out=carry_out, board=TaskBoard.unread(), cores=cores
    )


@pytest.fixture(autouse=True)
def worked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Processor seconds of all threads, which stand still but for what is added here: real ones differ."""
    seconds = [0.0]
    monkeypatch.setattr(pools, "thread_time", lambda: seconds[0])
    return seconds


async def threads_of(
    durations_s: Iterable[float], worked: list[float] | None = None, *, cores: int = 2, pool: Pool = "compute"
) -> list[str]:
    """Threads on which tasks of one kind run that wait so long, or compute, if `worked` is given; each has an event."""
    clock, threads, finished = Told(), list[str](), asyncio.Event()
    tasks = iter(durations_s)

    def answer(event: Event) -> list[Command]:
        if isinstance(event, TaskFinished):
            return [SendEnd(StreamId(0, 0, 1))]
        duration_s = next(tasks)

        def work() -> None:
            threads.append(threading.current_thread().name)
            clock.now_s += duration_s
            if worked is not None:
                worked[0] += duration_s

        return [RunTask(task(0, work=work, pool=pool))]

    runner = runner_of(Scripted(answer), clock, lambda _command: finished.set(), cores)
    for _ in durations_s:
        finished.clear()
        runner.feed(StopAsked())
        await asyncio.wait_for(finished.wait(), 30)
    runner.close()
    return threads


async def run(
    engine: Scripted, clock: SystemClock, meanwhile: Callable[[EngineRunner], None], cores: int = 2
) -> list[Command]:
    """Feed `Started` and wait for `Ended` or `Failed`; the commands carried out, all of them on the loop."""
    done = asyncio.Event()
    commands: list[Command] = []

    def carry_out(command: Command) -> None:
        assert threading.current_thread() is threading.main_thread()
        commands.append(command)
        if isinstance(command, Ended | Failed):
            done.set()

    runner = runner_of(engine, clock, carry_out, cores)
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


@pytest.mark.parametrize(("cores", "where"), [(2, "engine"), (1, "compute-0")])
def test_a_thread_for_which_a_task_waits_leaves_the_engine_to_another_thread_if_there_is_a_core_for_that(
    cores: int, where: str
) -> None:
    """A short task and a long one follow from one event: the thread takes the long one, another the short one."""
    ran: dict[str, str] = {}

    def note(chain: str) -> Callable[[], None]:
        return lambda: ran.update({chain: threading.current_thread().name})

    def answer(event: Event) -> list[Command]:
        del event
        if engine.finished() < LEARNT:
            return [RunTask(task(0, chain="short"))]
        if engine.finished() == LEARNT:
            return [
                RunTask(task(0, chain="short", work=note("short"))),
                RunTask(task(0, chain="long", work=note("long"))),
            ]
        return [Ended()] if engine.finished() == LEARNT + 2 else []

    engine = Scripted(answer)
    assert asyncio.run(run(engine, Still(), lambda _runner: None, cores)) == [Ended()]
    assert ran == {"short": where, "long": "compute-0"}


@pytest.mark.parametrize(("cores", "where"), [(2, "engine"), (1, "MainThread")])
def test_a_thread_that_has_a_task_leaves_the_engine_to_the_loop_if_there_is_much_to_do_and_no_other_thread(
    cores: int, where: str
) -> None:
    """A long task and many short ones follow from one event: the thread takes the long one before the last of them."""
    order: list[str] = []

    def note(chain: str) -> Callable[[], None]:
        return lambda: order.append(f"{chain} {threading.current_thread().name}")

    def answer(event: Event) -> list[Command]:
        del event
        if engine.finished() < LEARNT:
            return [RunTask(task(0, chain="short"))]
        if engine.finished() == LEARNT:
            many = [RunTask(task(0, chain="short", work=note("short"))) for _ in range(4 * IN_A_ROW)]
            return [RunTask(task(0, chain="long", work=note("long"))), *many]
        return [Ended()] if engine.finished() == LEARNT + 4 * IN_A_ROW + 1 else []

    engine = Scripted(answer)
    assert asyncio.run(run(engine, Still(), lambda _runner: None, cores)) == [Ended()]
    assert order.count("long compute-0") == 1
    assert f"short {where}" in order
    assert order.count("short compute-0") <= IN_A_ROW


def test_short_tasks_that_follow_from_one_another_leave_the_loop_time_for_other_things() -> None:
    """Events of the loop are followed by `IN_A_ROW` short tasks in a turn of the loop at most."""
    on_loop: list[int] = []

    def answer(event: Event) -> list[Command]:
        if engine.finished() == LEARNT and isinstance(event, TaskFinished):
            return [SendEnd(StreamId(0, 0, 1))]
        return [RunTask(task(0))] if len(engine.events) < 4 * IN_A_ROW else [Ended()]

    engine = Scripted(answer)

    def turn() -> None:
        on_loop.append(engine.threads.count("MainThread"))
        if len(engine.events) < 4 * IN_A_ROW:
            asyncio.get_running_loop().call_soon(turn)

    async def learn_and_go_on() -> None:
        learnt, done = asyncio.Event(), asyncio.Event()
        runner = runner_of(engine, Still(), lambda command: (learnt if isinstance(command, SendEnd) else done).set())
        runner.feed(Started())
        await asyncio.wait_for(learnt.wait(), 30)
        turn()
        runner.feed(StopAsked())
        await asyncio.wait_for(done.wait(), 30)
        runner.close()

    asyncio.run(learn_and_go_on())
    assert engine.threads == ["MainThread", *["compute-0"] * LEARNT, *["MainThread"] * (4 * IN_A_ROW - LEARNT - 1)]
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


@pytest.mark.parametrize("command_on", [Started, TaskFinished], ids=["loop", "thread"])
def test_an_exception_in_carry_out_fails_the_node_and_nothing_follows(command_on: type[Event]) -> None:
    def answer(event: Event) -> list[Command]:
        if isinstance(event, command_on):
            return [SendEnd(StreamId(0, 0, 1)), SendEnd(StreamId(1, 0, 1)), RunTask(task(1))]
        return [RunTask(task(0))]

    engine, carried = Scripted(answer), list[Command]()

    async def go() -> None:
        failed = asyncio.Event()

        def carry_out(command: Command) -> None:
            carried.append(command)
            if isinstance(command, Failed):
                failed.set()
            else:
                message = "no such link"
                raise ValueError(message)

        runner = runner_of(engine, Slow(), carry_out)
        runner.feed(Started())
        await asyncio.wait_for(failed.wait(), 30)
        events = len(engine.events)
        runner.feed(StopAsked())
        assert len(engine.events) == events
        runner.close()

    asyncio.run(go())
    sent, failed = carried
    assert sent == SendEnd(StreamId(0, 0, 1))
    assert isinstance(failed, Failed)
    assert "the engine of node node-0 broke: ValueError('no such link')" in str(failed.error)


def test_commands_of_a_thread_that_stays_at_the_engine_are_carried_out_after_as_many_items_as_on_the_loop() -> None:
    """At any event, the thread waits for the loop to have had the commands of `IN_A_ROW` events before."""
    carried, news = list[Command](), threading.Condition()

    def answer(event: Event) -> list[Command]:
        del event
        with news:
            assert news.wait_for(lambda: len(carried) >= engine.finished() - IN_A_ROW, 30)
        if engine.finished() == 4 * IN_A_ROW:
            return [Ended()]
        return [SendEnd(StreamId(0, 0, 1)), RunTask(task(0))]

    engine = Scripted(answer)

    async def go() -> None:
        done = asyncio.Event()

        def carry_out(command: Command) -> None:
            with news:
                carried.append(command)
                news.notify()
            if isinstance(command, Ended | Failed):
                done.set()

        runner = runner_of(engine, Still(), carry_out)
        runner.feed(Started())
        await asyncio.wait_for(done.wait(), 60)
        runner.close()

    asyncio.run(go())
    assert engine.threads == ["MainThread", *["compute-0"] * (4 * IN_A_ROW)]
    assert carried == [*[SendEnd(StreamId(0, 0, 1))] * (4 * IN_A_ROW), Ended()]


def test_tasks_that_have_shown_to_be_short_run_on_the_loop() -> None:
    assert asyncio.run(threads_of([10e-6] * 20)) == ["compute-0"] * LEARNT + ["MainThread"] * (20 - LEARNT)


@pytest.mark.parametrize(
    ("cores", "pool", "took_s", "on_thread"),
    [
        (2, "compute", 0.3e-3, 40),
        (1, "compute", 0.3e-3, 11),
        (1, "compute", 1.25e-3, 40),
        (2, "network", 0.3e-3, 40),
        (1, "network", 1.25e-3, 11),
    ],
)
def test_longer_tasks_are_short_where_no_core_is_left_for_a_thread_above_all_those_of_the_network(
    cores: int, pool: Pool, took_s: float, on_thread: int, worked: list[float]
) -> None:
    """The average begins at twice the bound; of tasks of half of it eleven are enough: 0.5 + 1.5 * 0.9 ** 11 < 1."""
    threads = asyncio.run(threads_of([took_s] * 40, worked, cores=cores, pool=pool))
    assert threads == [f"{pool}-0"] * on_thread + ["MainThread"] * (40 - on_thread)


@pytest.mark.parametrize(
    ("long_s", "period", "cores", "pool"),
    [
        *[(1e-3, 4, 2, "compute"), (10e-3, 16, 2, "compute"), (100e-3, 38, 2, "compute"), (100e-3, 38, 2, "network")],
        *[(3e-3, 4, 1, "compute"), (10e-3, 9, 1, "compute"), (100e-3, 27, 1, "compute")],
        *[(12.5e-3, 4, 1, "network"), (40e-3, 9, 1, "network"), (100e-3, 16, 1, "network")],
    ],
)
def test_tasks_of_which_one_in_every_few_computes_for_long_never_run_on_the_loop(
    long_s: float, period: int, cores: int, pool: Pool, worked: list[float]
) -> None:
    """Just before a long task the average is 0.1 * long_s * 0.9 ** (period - 1) / (1 - 0.9 ** period).

    That is over 200 us, and over 600 us where there is no core to spare, or 2,500 us if they are the network's.
    """
    tasks = [0.0 if number % period else long_s for number in range(4 * period)]
    assert asyncio.run(threads_of(tasks, worked, cores=cores, pool=pool)) == [f"{pool}-0"] * len(tasks)


@pytest.mark.parametrize(("long_s", "period"), [(1.0, 3), (1.0, 60)])
def test_tasks_of_which_one_in_every_few_waits_for_very_long_never_run_on_the_loop(long_s: float, period: int) -> None:
    tasks = [10e-6 if number % period else long_s for number in range(4 * period)]
    assert asyncio.run(threads_of(tasks)) == ["compute-0"] * len(tasks)


def test_tasks_of_which_two_in_three_wait_never_run_on_the_loop() -> None:
    """Just before the two that wait, the average is 400 * 0.1 * (0.9 + 0.9 ** 2) / (1 - 0.9 ** 3), over 200 us."""
    tasks = [10e-3 if number % 3 else 10e-6 for number in range(60)]
    assert asyncio.run(threads_of(tasks)) == ["compute-0"] * len(tasks)


@pytest.mark.parametrize("delay_s", [4e-3, 0.1])
def test_short_tasks_of_which_some_are_delayed_stay_on_the_loop(delay_s: float) -> None:
    """Where nodes share processors, any task may have to wait for one, and is no longer for that."""
    tasks = [*[10e-6] * 50, *[delay_s, 10e-6, 10e-6, 10e-6] * 20]
    assert asyncio.run(threads_of(tasks))[LEARNT:] == ["MainThread"] * (len(tasks) - LEARNT)


def test_statistics_while_nobody_is_at_the_engine_are_read_at_once_on_the_loop() -> None:
    engine = Scripted(lambda _event: [])

    async def go() -> NodeStatistics:
        runner = runner_of(engine, Still(), lambda _command: None)
        statistics = await asyncio.wait_for(runner.statistics(), 30)
        runner.close()
        return statistics

    assert asyncio.run(go()) == NodeStatistics(0, tasks=0)
    assert engine.asked == ["MainThread"]


def test_statistics_while_a_thread_is_at_the_engine_are_read_by_it_between_two_events() -> None:
    at_engine, asked = threading.Event(), threading.Event()

    def answer(event: Event) -> list[Command]:
        if isinstance(event, Started):
            return [RunTask(task(0))]
        at_engine.set()
        assert asked.wait(30)
        return []

    engine, broken = Scripted(answer), list[object]()

    async def go() -> NodeStatistics:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: broken.append(context))
        runner = runner_of(engine, Slow(), lambda _command: None)
        runner.feed(Started())
        assert at_engine.wait(30)
        given_up = asyncio.create_task(runner.statistics())
        asking = asyncio.create_task(runner.statistics())
        await asyncio.sleep(0)
        assert not asking.done()  # the loop does not wait for the thread
        given_up.cancel()
        asked.set()
        statistics = await asyncio.wait_for(asking, 30)
        runner.close()
        return statistics

    assert asyncio.run(go()) == NodeStatistics(0, tasks=1)
    assert engine.asked == ["compute-0"] * 2
    assert not broken  # by the one that was given up


def test_statistics_of_a_node_that_has_failed_are_still_told() -> None:
    def answer(event: Event) -> list[Command]:
        if isinstance(event, StopAsked):
            message = "out of order"
            raise RuntimeError(message)
        return []

    async def go() -> NodeStatistics:
        runner = runner_of(Scripted(answer), Still(), lambda _command: None)
        runner.feed(StopAsked())
        runner.close()
        return await asyncio.wait_for(runner.statistics(), 30)

    assert asyncio.run(go()) == NodeStatistics(0)


def test_engine_takes_nothing_in_after_a_pause_until_it_is_resumed() -> None:
    async def scene() -> tuple[list[int], list[int]]:
        clock, engine, paused = Told(), Scripted(lambda _event: []), list[int]()
        runner = EngineRunner(
            cast("NodeEngine", engine),
            NODE,
            clock=clock,
            carry_out=lambda _command: None,
            board=TaskBoard.unread(),
            on_paused=paused.append,
        )
        taken_in = []
        for at_s in (0.0, 1.0, 2.9, 4.9, 4.95):  # the last beat is at second 2.8
            clock.now_s = at_s
            if at_s < 4.0:
                clock.now_s = max(0.0, at_s - 0.1)
                runner.beat()
                clock.now_s = at_s
            runner.feed(StopAsked())
            taken_in.append(len(engine.events))
        runner.beat()
        runner.feed(StopAsked())
        await asyncio.sleep(0)
        taken_in.append(len(engine.events))
        runner.resume(0)
        taken_in.append(len(engine.events))
        clock.now_s = 8.0  # it stood still again, and may have been buried since its last question was answered
        runner.resume(1)
        runner.beat()
        await asyncio.sleep(0)
        taken_in.append(len(engine.events))
        runner.resume(2)
        await runner.settled()
        taken_in.append(len(engine.events))
        runner.feed(StopAsked())
        taken_in.append(len(engine.events))
        runner.close()
        return taken_in, paused

    assert asyncio.run(scene()) == ([1, 2, 3, 3, 3, 3, 3, 3, 6, 7], [1, 2])
