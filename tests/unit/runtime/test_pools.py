"""Task pools: threads, and what they take up behind a task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from dataflow.clock import SystemClock
from dataflow.engine.events import Offer, Outcome, Task, TaskFinished
from dataflow.errors import OperatorError
from dataflow.runtime.pools import TaskPool
from dataflow.runtime.watchdog import TaskBoard


def task(name: str, work: Callable[[], object] = lambda: None) -> Task:
    def run() -> Outcome:
        work()
        return Outcome()

    return Task(name, "step", "compute", run)


@contextmanager
def pool_of(size: int = 1) -> Iterator[tuple[TaskPool, SimpleQueue[tuple[TaskFinished, str]]]]:
    """A pool, and what its tasks came to with the threads that ran them."""
    done: SimpleQueue[tuple[TaskFinished, str]] = SimpleQueue()
    pool = TaskPool(
        "test",
        size,
        SystemClock(),
        TaskBoard.unread(),
        lambda event, _: done.put((event, threading.current_thread().name)),
    )
    yield pool, done
    pool.close()


def fails() -> None:
    raise OperatorError(what="it fails")


def test_offered_task_runs_behind_the_other_on_its_thread() -> None:
    with pool_of(2) as (pool, done):
        second, third = task("second"), task("third")
        first = task("first", lambda: pool.offer(Offer(first, second, lambda: True)))
        pool.offer(Offer(second, third, lambda: True))
        pool.submit(first)
        events = [done.get(timeout=30) for _ in range(3)]
    assert [(event.task, event.followed) for event, _ in events] == [(first, True), (second, True), (third, False)]
    assert len({thread for _, thread in events}) == 1


def test_offered_task_whose_gate_is_shut_is_left_alone() -> None:
    with pool_of() as (pool, done):
        first = task("first")
        pool.offer(Offer(first, task("second"), lambda: False))
        pool.submit(first)
        assert not done.get(timeout=30)[0].followed
    assert done.empty()


def test_offered_task_whose_gate_fails_is_left_for_the_engine_to_ask_again() -> None:
    with pool_of() as (pool, done):
        first = task("first")
        pool.offer(Offer(first, task("second"), lambda: bool(fails())))
        pool.submit(first)
        event, _ = done.get(timeout=30)
    assert (event.followed, event.error) == (False, None)


def test_nothing_follows_a_task_that_failed() -> None:
    with pool_of() as (pool, done):
        first = task("first", fails)
        pool.offer(Offer(first, task("second"), lambda: True))
        pool.submit(first)
        event, _ = done.get(timeout=30)
    assert not event.followed
    assert str(event.error) == "it fails"


def test_offer_that_is_forgotten_is_not_taken_up() -> None:
    with pool_of() as (pool, done):
        first = task("first")
        pool.offer(Offer(first, task("second"), lambda: True))
        pool.forget(first)
        pool.submit(first)
        assert not done.get(timeout=30)[0].followed
