"""What a job begins again from that has lost all its nodes, and how often it does from the same place."""

from __future__ import annotations

from typing import Final

from dataflow.engine.coordination import CheckpointFound

BEGINNINGS: Final = 3
"""So often in a row a job begins again from the same place: it comes no further."""

START: Final = "from its start"
"""Where a job begins again that has not run yet."""


class BeginningAgain:
    """The lives of one job.

    Args:
        allowed: whether it may begin again at all.

    Attributes:
        looking: its nodes have died, and its newest checkpoint is being looked for.
        why, node: its nodes have died, for people, and which one last.
    """

    def __init__(self, *, allowed: bool) -> None:
        self.allowed, self.looking = allowed, False
        self.why, self.node = "", 0
        self._origin, self._times = "", 0

    def lose(self, why: str, node: int, *, learnt: bool) -> None:
        """Note that all nodes have died; `learnt`: they had run, so that there is something to be looked for."""
        self.why, self.node, self.looking = why, node, learnt

    def objection(self, origin: str) -> str:
        """Why the job does not begin again from `origin` once more; empty if it does, which is counted."""
        self._times = self._times + 1 if origin == self._origin else 1
        self._origin = origin
        return f"it has gone on {BEGINNINGS} times {origin}, and come no further" if self._times > BEGINNINGS else ""


def origin_of(found: CheckpointFound) -> str:
    """Where a job goes on that has a checkpoint, for people."""
    whose = "" if found.own else " of the job that it was resumed from"
    return f"from checkpoint {found.number}{whose}"
