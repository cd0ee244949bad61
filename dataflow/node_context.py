"""Where an operator or a state element lives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class NodeContext:
    """Where an operator instance runs.

    Args:
        index: the node's number in the plan.
        name: the node's name.
        role: the role the instance belongs to.
        members: node numbers of every role, in rank order.
        tasks: compute tasks of this node, at least 1.
        seed: the job's seed.
        incarnation: how often this node has been started for the job, from 0.
        vacant: nodes that are not there at the start, and may join later.
    """

    index: int = 0
    name: str = "node-0"
    role: str = "worker"
    members: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: {"worker": (0,)})
    tasks: int = 1
    seed: int = 0
    incarnation: int = 0
    vacant: frozenset[int] = frozenset()

    @property
    def rank(self) -> int:
        """This node's rank in its role, from 0."""
        return self.members[self.role].index(self.index)

    @property
    def size(self) -> int:
        """Number of nodes in the role."""
        return len(self.members[self.role])

    @property
    def peers(self) -> tuple[int, ...]:
        """Numbers of the other nodes in the role."""
        return tuple(index for index in self.members[self.role] if index != self.index)
