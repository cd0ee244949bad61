"""A simulated job, as whoever has it simulated is given it."""

from __future__ import annotations

from dataclasses import dataclass, field

from dataflow.engine.job_life import JobState
from dataflow.engine.loading import LoadedNode
from dataflow.errors import AkoError
from dataflow.plan.physical import PhysicalPlan
from dataflow.reports import NodeStatistics


@dataclass
class SimRun:
    """A simulated job.

    Args:
        plan: what was run.
        nodes: the loaded nodes, with their live state; of one that was started again, its last incarnation.
        state: how the job ended; RUNNING before it has.
        reason: why, if it failed.
        error: of the first node that failed.
        stopped_by: what made it stop.
        elapsed_s: virtual seconds; of nodes that never drained, those until nothing happened on them any more.
        messages: how many were sent from node to node.
        artifacts: files of the job's results by name.
        statistics: the last ones of every node.
    """

    plan: PhysicalPlan
    nodes: list[LoadedNode] = field(default_factory=list)
    state: JobState = JobState.SUBMITTED
    reason: str = ""
    error: AkoError | None = None
    stopped_by: str = ""
    elapsed_s: float = 0.0
    messages: int = 0
    artifacts: dict[str, bytes] = field(default_factory=dict)
    statistics: list[NodeStatistics] = field(default_factory=list)
