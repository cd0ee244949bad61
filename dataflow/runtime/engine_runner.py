"""Runs an engine and its tasks: whoever brings an event has the engine take it in, and does what follows from it.

Invariant: the engine is touched by one thread at a time, by one event at a time, in the order in which events came.
It is read like that too: who asks for its counters leaves the question among the events.

An event is brought by the event loop or by a thread that has run a task. While somebody is at the engine, others leave
their events and go. So a thread that has finished a task starts the next one without a detour over the loop, and the
loop never waits for a thread. Two rules keep work where it belongs: tasks that earlier ones of their chain and role
have shown to be short are run at once by whoever is at the engine, since to hand them to a thread and back costs more
than they do; and a thread leaves the engine to a thread of its own as soon as a task waits for it, if the node has a
processor more than compute tasks: without, the two would only take turns, and the thread leaves it to the loop after
`IN_A_ROW` items.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from itertools import count
from queue import SimpleQueue

from dataflow.clock import Clock
from dataflow.engine.events import Command, Ended, Event, Failed, GoOn, Offer, RunTask, Task, TaskFinished
from dataflow.engine.node_engine import NodeEngine
from dataflow.errors import OperatorError
from dataflow.plan.physical import NodePlan
from dataflow.reports import NodeStatistics
from dataflow.runtime.pools import TaskPool, run_task
from dataflow.runtime.processors import Bystander, ThreadClocks, current_processor
from dataflow.runtime.watchdog import TaskBoard

SHORT_S = 0.0002
"""Tasks of a chain and role that take less than this on average are not handed to a thread, in seconds.

A task counts for what its thread computes or for how long it takes, whichever is more; but a time of `STALL_S` or less
for no more than twice this.
"""

SHORT_WITHOUT_ROOM_S = {"compute": 0.0006, "network": 0.0025}
"""The same, by pool, where there are no more cores than compute tasks: a thread would run in the loop's place.

A gradient on the loop makes messages wait, so that more images are needed; for network tasks they have to wait anyhow.
"""

STALL_S = 0.12
"""So long a task may have stood still for want of a processor: hosts whose share of 100 ms is used up do, in seconds.

Such waits of every other task that the loop does in a row are less than `PAUSED_S` together.
"""

IN_A_ROW = 32
"""Events and short tasks that the loop deals with before it turns to anything else."""

NICENESS = 5
"""Compute threads stand back for the event loop, or messages would wait for them where nodes share cores."""

PAUSED_S = 2.0
"""Who has not heard a beat for so long takes nothing in: the others may have buried this node meanwhile, in seconds."""

_MEMORY = 0.9
"""Weight of the past in that average."""

_UNKNOWN = 2
"""How many longest short tasks the average begins with: the first seven of a chain and role go to a thread."""

_Item = Event | Task | asyncio.Future[NodeStatistics]
"""What waits for whoever is at the engine: an event, a short task, or somebody who asks what has been counted."""


class EngineRunner:
    """An engine, its task pools and the events that wait for it. Make it on the event loop.

    Args:
        engine: the engine; nobody else may touch it.
        node: its node in the plan.
        clock: for measurements.
        carry_out: told of every command but `RunTask`, `Offer` and `GoOn`, on the event loop, in order.
        board: told of every event and every beat, and of what every thread does.
        cores: processors that the node may use.
        on_paused: told, on the event loop, the number of a pause, from 1: nothing is taken in until `resume`, as there
            was no beat for `PAUSED_S` seconds.

    Attributes:
        task_s: seconds of finished tasks by where they ran and the chain they belong to; places are the two pools,
            ``engine``, the engine's own thread, which there is if there is a core for it, and ``loop``.
    """

    def __init__(
        self,
        engine: NodeEngine,
        node: NodePlan,
        *,
        clock: Clock,
        carry_out: Callable[[Command], None],
        board: TaskBoard,
        cores: int = 1,
        on_paused: Callable[[int], None] = lambda _number: None,
    ) -> None:
        self._engine, self._name, self._clock = engine, node.name, clock
        self._carry_out, self._board, self._on_paused = carry_out, board, on_paused
        self._beat_s, self._held, self._pauses = math.inf, False, 0
        self._loop = asyncio.get_running_loop()
        self._pools = {
            "compute": TaskPool("compute", node.compute_tasks, clock, board, self._came_back, niceness=NICENESS),
            "network": TaskPool("network", node.network_tasks, clock, board, self._came_back),
        }
        self._lock = threading.Lock()
        self._waiting: deque[_Item] = deque()
        self._taken = self._halted = False
        self._commands: deque[Command] = deque()
        self._left: SimpleQueue[int | None] = SimpleQueue()
        has_room = cores > node.compute_tasks
        self._helpers = [threading.Thread(target=self._clear_up, name="engine", daemon=True)] if has_room else []
        for thread in self._helpers:
            thread.start()
        self._engine_clock = ThreadClocks(self._helpers)
        self.task_s: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._short_s = dict.fromkeys(self._pools, SHORT_S) if has_room else SHORT_WITHOUT_ROOM_S
        self._typical_s: dict[tuple[str, str], float] = {}

    def feed(self, event: Event) -> None:
        """Have the engine take in an event, at once unless somebody is at it; call this on the event loop."""
        self._board.bump()
        if self._leave(event):
            self._work_on_loop()

    def beat(self) -> None:
        """Say that the event loop runs; from the first time on, again and again, or the engine takes nothing in."""
        self._board.bump()
        self._paused()
        self._beat_s = self._clock.now()

    def resume(self, pause: int) -> None:
        """Go on, after the pause of this number, with what has come in: this node is a member still."""
        if not self._paused() or pause != self._pauses:
            return  # said before the last pause, in which this node may have been buried
        self._held = False
        with self._lock:
            waits, self._taken = bool(self._waiting) and not self._taken, self._taken or bool(self._waiting)
        if waits:
            self._work_on_loop()

    async def settled(self) -> None:
        """Return when what was fed has been taken in, and what followed from it carried out; call this on the loop."""
        await self.statistics()
        self._command()

    async def statistics(self) -> NodeStatistics:
        """What the engine has counted up to some moment between two events; call this on the event loop."""
        asked: asyncio.Future[NodeStatistics] = self._loop.create_future()
        if self._leave(asked):
            self._work_on_loop()
        return await asked

    def processor_s(self) -> dict[str, float]:
        """Processor seconds of the threads of each pool, and of the engine's own (``engine``), until now."""
        return {
            **{name: pool.clocks.total_s() for name, pool in self._pools.items()},
            "engine": self._engine_clock.total_s(),
        }

    def halt(self) -> None:
        """Take in no more events."""
        self._halted = True

    def close(self) -> None:
        """Let the threads end after the tasks they were given; does not wait for them."""
        self.halt()
        for pool in self._pools.values():
            pool.close()
        self._left.put(None)

    def _came_back(self, event: TaskFinished, pool: TaskPool) -> None:
        """A task has run; called on the pool's thread, perhaps after the loop has ended."""
        self._board.bump()
        if not self._leave(event):
            return
        if event.followed and self._helpers:
            self._left.put(current_processor())
        else:
            self._work_on_thread(pool, has_next=event.followed)

    def _clear_up(self) -> None:
        """Deal with what compute threads leave; on a thread of its own."""
        bystander = Bystander()
        while (processor := self._left.get()) is not None:
            bystander.avoid(processor)
            self._work_on_thread(None)

    def _work_on_thread(self, pool: TaskPool | None, *, has_next: bool = False) -> None:
        """Deal with what waits, until a task waits for this thread of a pool; the loop has its commands meanwhile.

        Without a thread of the engine's own that is after `IN_A_ROW` items, and the loop goes on.

        Args:
            pool: the thread's; None: it is the engine's own.
            has_next: the thread has taken a task up already.
        """
        place = "engine" if pool is None else pool.name
        for number in count():
            if self._commands and (pool is None or number % IN_A_ROW == IN_A_ROW - 1):
                self._call_loop()
            item = self._next()
            if item is None:
                break
            self._take_in(item, place)
            if pool is None or not self._waiting or not (has_next or pool.waiting):
                continue
            if self._helpers:
                self._left.put(current_processor())  # unlike a call of the loop, this keeps the interpreter
                return
            if number % IN_A_ROW == IN_A_ROW - 1 and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._work_on_loop)
                return
        if self._commands:
            self._call_loop()

    def _work_on_loop(self) -> None:
        """Deal with what waits, on the loop, which must come to the network and to the master's commands."""
        self._command()
        for _ in range(IN_A_ROW):
            item = self._next()
            if item is None:
                return
            self._take_in(item, "loop")
            self._command()
        self._loop.call_soon(self._work_on_loop)

    def _leave(self, item: _Item) -> bool:
        """Put something behind all that waits; whether the caller now is at the engine."""
        with self._lock:
            self._waiting.append(item)
            taken, self._taken = self._taken, True
            return not taken

    def _next(self) -> _Item | None:
        """What is to be dealt with next; if nothing is, the caller is no longer at the engine."""
        with self._lock:
            if self._waiting and not self._paused():
                return self._waiting.popleft()
            self._taken = False
            return None

    def _paused(self) -> bool:
        """Whether nothing may be taken in."""
        now = self._clock.now()
        if now - self._beat_s > PAUSED_S:
            self._beat_s, self._held = now, True
            self._pauses += 1
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._on_paused, self._pauses)
        return self._held

    def _take_in(self, item: _Item, place: str) -> None:
        if isinstance(item, asyncio.Future):
            self._answer(item)
            return
        event = run_task(item, self._clock, self._board) if isinstance(item, Task) else item
        if isinstance(event, TaskFinished):
            self._measure(event, place if isinstance(item, Task) else event.task.pool)
        if self._halted:
            return
        self._board.enter()
        try:
            commands = self._engine.handle(event, self._clock.now())
        except Exception as error:  # who called this would drop it, and the job hang
            commands = [self._broken(error)]
        self._board.leave()
        for command in commands:
            if isinstance(command, RunTask):
                self._dispatch(command.task)
            elif isinstance(command, Offer):
                self._pools[command.task.pool].offer(command)
            elif isinstance(command, GoOn):
                self._waiting.append(command)
            else:
                self._halted |= isinstance(command, Ended | Failed)
                self._commands.append(command)

    def _answer(self, asked: asyncio.Future[NodeStatistics]) -> None:
        statistics = self._engine.statistics(self._clock.now())
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_settle, asked, statistics)

    def _broken(self, error: Exception) -> Failed:
        failure = OperatorError(
            f"the engine of node {self._name} broke: {error!r}",
            fix="this is a defect: please report it with the job's log",
        )
        failure.__cause__ = error
        return Failed(failure)

    def _dispatch(self, task: Task) -> None:
        short_s = self._short_s[task.pool]
        if self._typical_s.get((task.chain, task.role), short_s) < short_s:
            self._waiting.append(task)
        else:
            self._pools[task.pool].submit(task)

    def _measure(self, event: TaskFinished, place: str) -> None:
        self._pools[event.task.pool].forget(event.task)
        self.task_s[place, event.task.chain] += event.busy_s
        key, most_s = (event.task.chain, event.task.role), _UNKNOWN * self._short_s[event.task.pool]
        self._board.learn(self._board.kind(*key), event.busy_s)
        busy_s = event.busy_s if event.busy_s > STALL_S else min(event.busy_s, most_s)
        taken_s = max(event.processor_s, busy_s)
        self._typical_s[key] = _MEMORY * self._typical_s.get(key, most_s) + (1 - _MEMORY) * taken_s

    def _command(self) -> None:
        """Carry out commands, on the loop, oldest first."""
        while self._commands:
            command = self._commands.popleft()
            try:
                self._carry_out(command)
            except Exception as error:  # it would end in the loop's log, and the job hang
                if isinstance(command, Failed):
                    raise
                self._halted = True
                self._commands.clear()
                self._carry_out(self._broken(error))

    def _call_loop(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._command)


def _settle(asked: asyncio.Future[NodeStatistics], statistics: NodeStatistics) -> None:
    if not asked.done():  # nobody waits any more if it was cancelled
        asked.set_result(statistics)
