"""How long a job's coordinator waits for what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long the coordinator waits, in seconds.

    Args:
        preflight_s: from placing a job until every node is ready; from starting a node, or again, until that is. On a
            small share of a slow machine, compiling the kernels takes minutes, the first time.
        grace_s: from asking nodes to stop for a cancellation until they are killed.
        drain_s: from asking nodes to stop for a stop rule until they are killed; the job is finished all the same.
        blame_s: from a link that cannot be made until that is why the job cannot be deployed, unless a node has died.
        judge_s: from the first broken link of a running job until the node with most of them is buried.
        return_s: for so long a job that cannot go on without a lost node waits for it.
    """

    preflight_s: float = 600.0
    grace_s: float = 2.0
    drain_s: float = 60.0
    blame_s: float = 1.0
    judge_s: float = 0.25
    return_s: float = 10.0
