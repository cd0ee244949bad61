"""Task pools: threads that run tasks and say how they went."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import thread_time

from dataflow.clock import Clock
from dataflow.engine.events import Offer, Outcome, Task, TaskFinished
from dataflow.errors import AkoError, OperatorError
from dataflow.runtime.processors import ThreadClocks
from dataflow.runtime.watchdog import TaskBoard


class TaskPool:
    """A fixed number of threads; the engine never gives it more tasks than it has threads.

    A thread takes up the task that was offered behind the one that it has run, before anybody has heard of that.

    Args:
        name: of the threads, for people.
        size: number of threads.
        niceness: how far the threads stand back for others where there are fewer cores than busy threads, 0 to 19.
        clock: measures how long tasks take.
        board: told what the threads do.
        done: called with the outcome and this pool, on the pool's thread.

    Attributes:
        name: of the threads.
        clocks: processor time of the threads.
    """

    def __init__(
        self,
        name: str,
        size: int,
        clock: Clock,
        board: TaskBoard,
        done: Callable[[TaskFinished, TaskPool], None],
        *,
        niceness: int = 0,
    ) -> None:
        self.name, self._clock, self._board, self._done, self._niceness = name, clock, board, done, niceness
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._offers: dict[Task, Offer] = {}
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True) for number in range(size)
        ]
        for thread in self._threads:
            thread.start()
        self.clocks = ThreadClocks(self._threads)

    @property
    def waiting(self) -> bool:
        """Whether a task waits for a thread."""
        return not self._tasks.empty()

    def submit(self, task: Task) -> None:
        """Have a task run."""
        self._tasks.put(task)

    def offer(self, offer: Offer) -> None:
        """Have a task run behind another, unless that has run already."""
        self._offers[offer.behind] = offer

    def forget(self, task: Task) -> None:
        """Drop what is offered behind a task that has run."""
        self._offers.pop(task, None)

    def close(self) -> None:
        """Let the threads end after the tasks they were given; does not wait for them."""
        for _ in self._threads:
            self._tasks.put(None)

    def _work(self) -> None:
        if self._niceness:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)  # on Linux, of this thread
        while (task := self._tasks.get()) is not None:
            following: Task | None = task
            while following is not None:
                event = run_task(following, self._clock, self._board)
                following = self._taken_up(event)
                event.followed = following is not None
                self._done(event, self)

    def _taken_up(self, event: TaskFinished) -> Task | None:
        """What is to be run behind a task that has run, if anything is offered."""
        offer = self._offers.pop(event.task, None)
        if offer is None or event.error is not None:
            return None
        try:
            return offer.task if offer.ready() else None
        except AkoError:  # the engine asks again, and says so
            return None


def run_task(task: Task, clock: Clock, board: TaskBoard) -> TaskFinished:
    """Run a task, on the board for as long as it takes; say how it went, and how long it took and computed."""
    board.begin(board.kind(task.chain, task.role))
    started_s, worked_s = clock.now(), thread_time()
    try:
        outcome, error = task.run(), None
    except AkoError as raised:
        outcome, error = Outcome(), raised
    except BaseException as raised:
        outcome, error = Outcome(), OperatorError(what=f"chain {task.chain!r} broke: {raised!r}")
        error.__cause__ = raised
    board.end()
    worked_s = thread_time() - worked_s
    return TaskFinished(task, outcome, clock.now() - started_s, error, processor_s=worked_s)
