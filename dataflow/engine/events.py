"""Events that drive a `NodeEngine` and the commands it answers with: frozen data, no behaviour.

Those that come with every message write out their constructors: these are compiled, and take a tenth of the time that
generated ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dataflow.errors import AkoError
from dataflow.message import Message
from dataflow.operators_api import Adjustment, Artifact, Checkpoint, Pool, Sample
from dataflow.plan.physical import StreamId
from dataflow.ports import Emission
from dataflow.reports import OperatorReport, Rates


@dataclass(init=False, slots=True)
class Outcome:
    """What running a task produced; nothing of it is visible to others until the engine commits it.

    Args:
        effects: operator ids with what they emitted on connected ports, or on reported ones, their samples, and files
            for the job's results.
        parts: a gathering operator's parts, each with the number of its shard.
        merged: a gathering operator's step has been merged.
        end_of_data: a source has nothing more, or another chain emits nothing more.
        checkpoint: the one that is due; None if none is.
    """

    effects: list[tuple[str, Emission | OperatorReport | Sample | Artifact]]
    parts: list[tuple[int, Any]]
    merged: bool
    end_of_data: bool
    checkpoint: Checkpoint | None

    def __init__(self) -> None:
        self.effects, self.parts = [], []
        self.merged = self.end_of_data = False
        self.checkpoint = None


@dataclass(init=False, slots=True, eq=False)
class Task:
    """Work for a pool: the driver calls `run` on any thread and hands the result back in a `TaskFinished`.

    Args:
        chain: id of the chain it belongs to.
        role: what it does for the chain: ``message``, ``shard``, ``merge``, ``step`` (both), ``rates``, ``timer``,
            ``adjust`` or ``end``.
        pool: the pool that must run it.
        run: the work; raises `AkoError` and nothing else.
    """

    chain: str
    role: str
    pool: Pool
    run: Callable[[], Outcome]

    def __init__(self, chain: str, role: str, pool: Pool, run: Callable[[], Outcome]) -> None:
        self.chain, self.role, self.pool, self.run = chain, role, pool, run


@dataclass(frozen=True, slots=True)
class Started:
    """The job starts: every node is ready."""


@dataclass(init=False, slots=True)
class MessageArrived:
    """A message came in on a stream; `nbytes` is what it cost the sender's credit."""

    stream: StreamId
    message: Message
    nbytes: int

    def __init__(self, stream: StreamId, message: Message, nbytes: int) -> None:
        self.stream, self.message, self.nbytes = stream, message, nbytes


@dataclass(init=False, slots=True)
class StreamEnded:
    """The sender of a stream has sent its last message."""

    stream: StreamId

    def __init__(self, stream: StreamId) -> None:
        self.stream = stream


@dataclass(init=False, slots=True)
class TaskFinished:
    """A task has run, or failed with `error`; `busy_s` is how long it took, `processor_s` how long it had a processor.

    `followed` says that the task which was offered behind it has been started.
    """

    task: Task
    outcome: Outcome
    busy_s: float
    error: AkoError | None
    processor_s: float
    followed: bool

    def __init__(
        self,
        task: Task,
        outcome: Outcome,
        busy_s: float = 0.0,
        error: AkoError | None = None,
        *,
        processor_s: float = 0.0,
        followed: bool = False,
    ) -> None:
        self.task, self.outcome, self.busy_s, self.error = task, outcome, busy_s, error
        self.processor_s, self.followed = processor_s, followed


@dataclass(init=False, slots=True)
class CreditGranted:
    """The receiver of a stream has consumed `nbytes` bytes."""

    stream: StreamId
    nbytes: int

    def __init__(self, stream: StreamId, nbytes: int) -> None:
        self.stream, self.nbytes = stream, nbytes


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """Node `node` has left the job: nothing comes from it any more and nothing is sent to it.

    Args:
        node: its number.
        ended: it has not died, but had done its part when this node, or another, came back: all its streams have ended.
    """

    node: int
    ended: bool = False


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """Node `node`, which had left, is a member again as another incarnation, which knows nothing of the one before."""

    node: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Measured:
    """The node has measured how fast it was since the last time; only operators with an `on_rates` mind."""

    rates: Rates


@dataclass(frozen=True, slots=True)
class Adjust:
    """The running job is to be changed; only operators with an `on_adjust` mind."""

    adjustment: Adjustment


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time that a `SetTimer` gave for a chain is over."""

    chain: str


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Sources end after the step they are in; everything under way is finished."""


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """The node is to leave a job that goes on: sources end as if stopped, then it ends without waiting for others."""


@dataclass(frozen=True, slots=True)
class GoOn:
    """There is more to start that nobody waits for; as a command, it asks to be handed back as an event."""


Event = (
    Started
    | MessageArrived
    | StreamEnded
    | TaskFinished
    | CreditGranted
    | NodeLeft
    | NodeJoined
    | Measured
    | Adjust
    | TimerFired
    | StopAsked
    | LeaveAsked
    | GoOn
)


@dataclass(init=False, slots=True)
class RunTask:
    """Run a task on its pool; there is a free slot for it."""

    task: Task

    def __init__(self, task: Task) -> None:
        self.task = task


@dataclass(init=False, slots=True)
class Offer:
    """A task that may be started in the place of `behind` as soon as that has run, if `ready` then says so.

    The engine need not hear of the end of `behind` before. A driver may leave offers alone: the engine starts what was
    not started. `ready` may be called on any thread, between the two tasks; it raises `AkoError` and nothing else.
    """

    behind: Task
    task: Task
    ready: Callable[[], bool]

    def __init__(self, behind: Task, task: Task, ready: Callable[[], bool]) -> None:
        self.behind, self.task, self.ready = behind, task, ready


@dataclass(init=False, slots=True)
class SendMessage:
    """Send a message on a stream."""

    stream: StreamId
    message: Message
    nbytes: int

    def __init__(self, stream: StreamId, message: Message, nbytes: int) -> None:
        self.stream, self.message, self.nbytes = stream, message, nbytes


@dataclass(init=False, slots=True)
class SendEnd:
    """Tell the receiver of a stream that nothing more follows."""

    stream: StreamId

    def __init__(self, stream: StreamId) -> None:
        self.stream = stream


@dataclass(init=False, slots=True)
class GrantCredit:
    """Tell the sender of a stream that `nbytes` bytes were consumed."""

    stream: StreamId
    nbytes: int

    def __init__(self, stream: StreamId, nbytes: int) -> None:
        self.stream, self.nbytes = stream, nbytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a node at one moment between tasks.

    Args:
        node, name, roles: its number, its name, and the roles it plays.
        number: of the checkpoint that it is part of.
        steps: steps that its gathering operators have made; None if it has none.
        positions: by chain, the number of the step that it goes on with.
        tensors: ``element/tensor`` to arrays that are never written again.
    """

    node: int
    name: str
    roles: tuple[str, ...]
    number: int
    steps: int | None
    positions: Mapping[str, int]
    tensors: Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Hand back a `TimerFired` for a chain once `after_s` seconds are over."""

    chain: str
    after_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the coordinator, or keep a result."""

    what: OperatorReport | Artifact | Snapshot


@dataclass(frozen=True, slots=True)
class Ended:
    """Every operator of this node has ended and everything it emitted has been sent."""


@dataclass(frozen=True, slots=True)
class Failed:
    """An operator raised; the engine does nothing more."""

    error: AkoError


Command = RunTask | Offer | SendMessage | SendEnd | GrantCredit | SetTimer | Report | Ended | Failed | GoOn
