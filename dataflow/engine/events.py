"""Events that drive a `NodeEngine` and the commands it answers with: frozen data, no behaviour.

Those that come with every message are tuples, which are made in half the time of frozen dataclasses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dataflow.errors import AkoError
from dataflow.message import Message
from dataflow.operators_api import Artifact, Pool, Sample
from dataflow.plan.physical import StreamId
from dataflow.ports import Emission
from dataflow.reports import OperatorReport


@dataclass(slots=True)
class Outcome:
    """What running a task produced; nothing of it is visible to others until the engine commits it.

    Args:
        emissions: operator ids with what they emitted on connected ports.
        reports: messages emitted on reported ports.
        samples: operator ids with their samples.
        artifacts: files for the job's results.
        parts: a gathering operator's parts, each with the number of its shard.
        merged: a gathering operator's step has been merged.
        end_of_data: a source has nothing more.
    """

    emissions: list[tuple[str, Emission]] = field(default_factory=list)
    reports: list[OperatorReport] = field(default_factory=list)
    samples: list[tuple[str, Sample]] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)
    parts: list[tuple[int, Any]] = field(default_factory=list)
    merged: bool = False
    end_of_data: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Work for a pool: the driver calls `run` on any thread and hands the result back in a `TaskFinished`.

    Args:
        chain: id of the chain it belongs to.
        role: what it does for the chain: ``message``, ``shard``, ``merge``, ``step`` (both) or ``end``.
        pool: the pool that must run it.
        run: the work; raises `AkoError` and nothing else.
    """

    chain: str
    role: str
    pool: Pool
    run: Callable[[], Outcome]


@dataclass(frozen=True, slots=True)
class Started:
    """The job starts: every node is ready."""


class MessageArrived(NamedTuple):
    """A message came in on a stream; `nbytes` is what it cost the sender's credit."""

    stream: StreamId
    message: Message
    nbytes: int


class StreamEnded(NamedTuple):
    """The sender of a stream has sent its last message."""

    stream: StreamId


class TaskFinished(NamedTuple):
    """A task has run, or failed with `error`; `busy_s` is how long it took.

    `followed` says that the task which was offered behind it has been started.
    """

    task: Task
    outcome: Outcome
    busy_s: float = 0.0
    error: AkoError | None = None
    followed: bool = False


class CreditGranted(NamedTuple):
    """The receiver of a stream has consumed `nbytes` bytes."""

    stream: StreamId
    nbytes: int


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """Node `node` has left the job: nothing comes from it any more and nothing is sent to it."""

    node: int


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Sources end after the step they are in; everything under way is finished."""


@dataclass(frozen=True, slots=True)
class GoOn:
    """There is more to start that nobody waits for; as a command, it asks to be handed back as an event."""


Event = Started | MessageArrived | StreamEnded | TaskFinished | CreditGranted | NodeLeft | StopAsked | GoOn


class RunTask(NamedTuple):
    """Run a task on its pool; there is a free slot for it."""

    task: Task


class Offer(NamedTuple):
    """A task that may be started in the place of `behind` as soon as that has run, if `ready` then says so.

    The engine need not hear of the end of `behind` before. A driver may leave offers alone: the engine starts what was
    not started. `ready` may be called on any thread, between the two tasks; it raises `AkoError` and nothing else.
    """

    behind: Task
    task: Task
    ready: Callable[[], bool]


class SendMessage(NamedTuple):
    """Send a message on a stream."""

    stream: StreamId
    message: Message
    nbytes: int


class SendEnd(NamedTuple):
    """Tell the receiver of a stream that nothing more follows."""

    stream: StreamId


class GrantCredit(NamedTuple):
    """Tell the sender of a stream that `nbytes` bytes were consumed."""

    stream: StreamId
    nbytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the coordinator, or keep a result."""

    what: OperatorReport | Artifact


@dataclass(frozen=True, slots=True)
class Ended:
    """Every operator of this node has ended and everything it emitted has been sent."""


@dataclass(frozen=True, slots=True)
class Failed:
    """An operator raised; the engine does nothing more."""

    error: AkoError


Command = RunTask | Offer | SendMessage | SendEnd | GrantCredit | Report | Ended | Failed | GoOn
