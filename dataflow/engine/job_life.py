"""The life of a job: its states, and what leads from one to the next."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

StoppedBy = Literal["", "target", "patience", "time", "epochs", "cancel"]


class JobState(StrEnum):
    """Where a job is in its life."""

    SUBMITTED = "SUBMITTED"
    """The master has it."""
    PENDING = "PENDING"
    """It waits for nodes."""
    DEPLOYING = "DEPLOYING"
    """Its nodes import, open data, compile kernels and connect."""
    RUNNING = "RUNNING"
    """Every node was ready and has been started."""
    CANCELLING = "CANCELLING"
    """Its nodes have been asked to stop."""
    FINISHED = "FINISHED"
    """It ended by itself or by a stop rule."""
    FAILED = "FAILED"
    """An operator failed, or too few nodes were left."""
    CANCELLED = "CANCELLED"
    """Somebody stopped it."""


ENDED = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELLED})
"""States that a job does not leave."""


class Trigger(StrEnum):
    """What events come down to."""

    PLACED = "placed"
    UNPLACED = "no nodes"
    ALL_READY = "all nodes ready"
    NOT_READY_IN_TIME = "not ready in time"
    ALL_ENDED = "all nodes ended"
    DRAINING_TOOK_TOO_LONG = "draining took too long"
    NODE_FAILED = "node failed"
    ALL_DIED = "all nodes died"
    TOO_FEW_NODES = "too few nodes left"
    RULE_BROKEN = "stop rule cannot be followed"
    CANCEL = "cancel"
    GRACE_OVER = "grace over"


_S, _T = JobState, Trigger

TRANSITIONS: dict[tuple[JobState, Trigger], JobState] = {
    (_S.SUBMITTED, _T.PLACED): _S.DEPLOYING,
    (_S.SUBMITTED, _T.UNPLACED): _S.PENDING,
    (_S.SUBMITTED, _T.CANCEL): _S.CANCELLED,
    (_S.PENDING, _T.PLACED): _S.DEPLOYING,
    (_S.PENDING, _T.UNPLACED): _S.PENDING,
    (_S.PENDING, _T.TOO_FEW_NODES): _S.FAILED,
    (_S.PENDING, _T.CANCEL): _S.CANCELLED,
    (_S.DEPLOYING, _T.ALL_READY): _S.RUNNING,
    (_S.DEPLOYING, _T.NOT_READY_IN_TIME): _S.FAILED,
    (_S.DEPLOYING, _T.NODE_FAILED): _S.FAILED,
    (_S.DEPLOYING, _T.ALL_DIED): _S.PENDING,
    (_S.DEPLOYING, _T.TOO_FEW_NODES): _S.FAILED,
    (_S.DEPLOYING, _T.CANCEL): _S.CANCELLING,
    (_S.RUNNING, _T.ALL_ENDED): _S.FINISHED,
    (_S.RUNNING, _T.DRAINING_TOOK_TOO_LONG): _S.FINISHED,
    (_S.RUNNING, _T.NODE_FAILED): _S.FAILED,
    (_S.RUNNING, _T.ALL_DIED): _S.PENDING,
    (_S.RUNNING, _T.TOO_FEW_NODES): _S.FAILED,
    (_S.RUNNING, _T.RULE_BROKEN): _S.FAILED,
    (_S.RUNNING, _T.CANCEL): _S.CANCELLING,
    (_S.CANCELLING, _T.ALL_ENDED): _S.CANCELLED,
    (_S.CANCELLING, _T.GRACE_OVER): _S.CANCELLED,
}
"""The life of a job. A trigger that a state does not list changes nothing there."""


def transition_diagram() -> str:
    """The life of a job as a Mermaid state diagram, made from `TRANSITIONS`."""
    lines = [f"    {source} --> {target}: {trigger.value}" for (source, trigger), target in TRANSITIONS.items()]
    ends = [f"    {state} --> [*]" for state in JobState if state in ENDED]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {JobState.SUBMITTED}", *lines, *ends])
