"""What a job's coordinator is told, and what it says is to be done: values, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from dataflow.engine.job_life import JobState, StoppedBy
from dataflow.engine.membership import Life, Members
from dataflow.reports import NodeStatistics, OperatorReport


@dataclass(frozen=True, slots=True)
class Placed:
    """Nodes were found. `names`: their names by node number."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unplaced:
    """No nodes yet, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class NodePrepared:
    """A node has loaded its operators and listens at `address`."""

    node: int
    address: str


@dataclass(frozen=True, slots=True)
class NodeReady:
    """A node is connected to those it sends to."""

    node: int


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A message on a reported port."""

    node: int
    report: OperatorReport


@dataclass(frozen=True, slots=True)
class NodeEnded:
    """A node's sources have ended and everything has drained.

    Args:
        node: its number.
        statistics: what it has counted.
        epoch: of the newest membership that it had heard of; None if that was the newest.
    """

    node: int
    statistics: NodeStatistics
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """A node's job process says that it cannot go on.

    Args:
        node: its number.
        text: the error.
        where: operator and the user's ``file:line``, as far as known.
        anew: it can go on if it is started again, like one that has died.
        checkpoint: what is wrong is the checkpoint that it was to go on from.
    """

    node: int
    text: str
    where: str = ""
    anew: bool = False
    checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class NodeExited:
    """A node's job process is gone.

    Args:
        node: its number.
        reason: why.
        refused: it could not be started at all.
    """

    node: int
    reason: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class NodeStalled:
    """A node's job process does nothing any more, and how that shows; its agent is well."""

    node: int
    reason: str


@dataclass(frozen=True, slots=True)
class NodePaused:
    """A node's job process did nothing for a while, goes on, and asks whether it is a member still.

    Args:
        node: its number.
        number: of the pause, from 1.
    """

    node: int
    number: int = 0


@dataclass(frozen=True, slots=True)
class NodeLost:
    """Nothing is heard of a node any more, and why."""

    node: int
    reason: str = "its agent was lost"


@dataclass(frozen=True, slots=True)
class NodeBack:
    """The agent of a node that was lost is there again."""

    node: int


@dataclass(frozen=True, slots=True)
class LinkBroken:
    """A node has had no connection to another one for too long.

    Args:
        node: its number.
        peer: number of the other node.
        reason: why.
        incarnation: that of the other node which it talked to; nothing is held against any later one.
    """

    node: int
    peer: int
    reason: str
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class NodeArrived:
    """A node, called `name`, may take the place of number `node`; see `dataflow.engine.arriving.open_places`."""

    node: int
    name: str


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """Somebody wants a node to leave the job, which goes on; see `dataflow.engine.draining.objection`."""

    node: int


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """Somebody wants the job stopped."""


@dataclass(frozen=True, slots=True)
class AdjustAsked:
    """Somebody wants the running job changed; see `JobCoordinator.why_not_adjusted`, which is asked before.

    Args:
        operation_id: made by whoever asks.
        text: what is to be changed, for operators.
    """

    operation_id: str
    text: str


@dataclass(frozen=True, slots=True)
class CheckpointFound:
    """The answer to `FindCheckpoint`.

    Args:
        number: of the checkpoint; None if there is none.
        why: there is none.
        own: it is the job's own, and not the one that it has gone on from itself.
    """

    number: int | None
    why: str = ""
    own: bool = True


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: the answer to the last `SetTimer`; harmless at any other time."""


Event = (
    Placed
    | Unplaced
    | NodePrepared
    | NodeReady
    | NodeReport
    | NodeEnded
    | NodeFailed
    | NodeExited
    | NodeStalled
    | NodePaused
    | NodeLost
    | NodeBack
    | LinkBroken
    | NodeArrived
    | DrainAsked
    | CancelAsked
    | AdjustAsked
    | CheckpointFound
    | Tick
)


@dataclass(frozen=True, slots=True)
class Deploy:
    """Start the job's process on a node and have it prepare; `incarnation`: how often it was started before."""

    node: int
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Connect:
    """Tell a node who the members are, and have it connect to those that it is not connected to.

    Args:
        node: its number.
        members: the membership.
        answers: number of the last pause of which the node has told; 0 if it has told of none.
    """

    node: int
    members: Members
    answers: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """Start a node."""

    node: int


@dataclass(frozen=True, slots=True)
class StopNodes:
    """Have nodes stop their sources and drain."""

    nodes: tuple[int, ...]
    reason: StoppedBy


@dataclass(frozen=True, slots=True)
class Leave:
    """Have a node give the others all that it has begun, and end without waiting for them."""

    node: int


@dataclass(frozen=True, slots=True)
class AdjustNodes:
    """Tell nodes of a change of the job; the fields are those of `dataflow.operators_api.Adjustment`."""

    nodes: tuple[int, ...]
    number: int
    stage: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class TellAdjustment:
    """Tell everybody how far a change of the job is.

    Args:
        number: of the change.
        stage: ``asked``, ``dropped``, ``begun`` or ``settled``.
        reason: why it is dropped.
        touched: nodes that had something to change.
        inside_s: the longest time that one of these took until it was settled; 0 before.
        outside_s: the longest time that any other node took until its new neighbours had spoken; no pause.
    """

    number: int
    stage: str
    reason: str = ""
    touched: tuple[int, ...] = ()
    inside_s: float = 0.0
    outside_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CloseNodes:
    """Let the processes of nodes that have ended go; kill those that do not."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KillNodes:
    """Kill the processes of nodes."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FindCheckpoint:
    """Look for the newest whole checkpoint of the job, whose nodes are dead; `CheckpointFound` is the answer."""


@dataclass(frozen=True, slots=True)
class ChangeNode:
    """Keep what has become of a node, before anybody is told of it.

    Args:
        node: its number.
        life: what has become of it.
        incarnation: which incarnation.
        epoch: of the membership.
        reason: why it is buried.
    """

    node: int
    life: Life
    incarnation: int
    epoch: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Give a `Tick` at this time, in seconds on the clock of `now`, instead of at that of any earlier `SetTimer`."""

    at_s: float


@dataclass(frozen=True, slots=True)
class ChangeState:
    """Tell everybody that the job has come to a state, and why."""

    state: JobState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """Tell everybody that the job has ended. The last command of a job.

    Args:
        state: how.
        reason: why.
        stopped_by: what stopped it.
        node: number of the node that `reason` names as the cause; None if it names none.
    """

    state: JobState
    reason: str
    stopped_by: StoppedBy
    node: int | None = None


Command = (
    Deploy
    | Connect
    | Start
    | StopNodes
    | Leave
    | AdjustNodes
    | TellAdjustment
    | CloseNodes
    | KillNodes
    | FindCheckpoint
    | ChangeNode
    | SetTimer
    | ChangeState
    | Finish
)
