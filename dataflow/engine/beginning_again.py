"""What a job begins again from that has lost all its nodes, and how often it does from the same place.

A function of the job's events alone, so that a master that takes it over comes to the same.
"""

from __future__ import annotations

from typing import Final

from dataflow.engine.coordination import CheckpointFound

BEGINNINGS: Final = 3
"""So often in a row a job begins again from the same place: it comes no further."""

START: Final = "where it began"
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

    def find(self, origin: str) -> None:
        """Note where the job is to begin again."""
        self.looking = False
        self._times = self._times + 1 if origin == self._origin else 1
        self._origin = origin

    @property
    def told(self) -> str:
        """What its nodes died of and where it goes on, for people; empty before they have died."""
        return f"{self.why}; it goes on {self._origin}" if self._origin else ""

    @property
    def objection(self) -> str:
        """Why the job does not begin again from there once more; empty if it does."""
        if self._times <= BEGINNINGS:
            return ""
        return f"it has gone on {BEGINNINGS} times {self._origin}, and come no further"


def origin_of(found: CheckpointFound) -> str:
    """Where a job goes on that has a checkpoint, for people."""
    whose = "" if found.own else " of the job that it was resumed from"
    return f"from checkpoint {found.number}{whose}"
