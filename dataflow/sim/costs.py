"""How long tasks take in virtual time: a mean per kind of task, and random spread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dataflow.engine.events import Task
from dataflow.plan.physical import PhysicalPlan


class TaskKind(NamedTuple):
    """What tasks that take equally long have in common.

    Args:
        chain: their chain.
        role: what they do for it; see `dataflow.engine.events.Task`.
        first: whether their node is the first of the chain's role, which may have work of its own, such as validating.
    """

    chain: str
    role: str
    first: bool


@dataclass(frozen=True)
class Spread:
    """Gamma-distributed times (dana.txt, 5 and appendix): means by machine, and tasks around them.

    Args:
        machine: coefficient of variation of the machines' means; 0 if all machines are alike.
        task: that of the tasks of one machine.
    """

    machine: float = 0.0
    task: float = 0.0


SPREADS = {
    "constant": Spread(),
    "gamma": Spread(task=0.1),
    "gamma-heterogeneous": Spread(machine=0.6, task=0.1),
}
"""Distributions by name; those of dana.txt."""


class TaskTimes:
    """Draws the seconds of work that tasks are.

    Args:
        means: seconds by kind of task; a task of a kind that is not there takes no time.
        plan: what is run.
        spread: of the tasks in the compute pool around their means.
        speeds: by node, how many times as fast as the mean it is; 1 if not there.
        seed: of the draws.
        engine_s: mean seconds that an engine takes for a task.
        message_s: mean seconds that a node takes to send a message, or to receive one,
        byte_s: and for each of its bytes.

    Attributes:
        messages_cost: whether nodes take any time for messages.
    """

    def __init__(
        self,
        means: Mapping[TaskKind, float],
        plan: PhysicalPlan,
        *,
        spread: Spread = Spread(),
        speeds: Mapping[int, float] | None = None,
        seed: int = 0,
        engine_s: float = 0.0,
        message_s: float = 0.0,
        byte_s: float = 0.0,
    ) -> None:
        nodes = len(plan.nodes)
        # By plain tuples, which are made faster, once for each task.
        self._means = {tuple(kind): seconds for kind, seconds in means.items()}
        self._spread, self._first = spread, first_nodes(plan)
        roots = np.random.SeedSequence(seed, spawn_key=(2,)).spawn(nodes)
        self._draws = [np.random.Generator(np.random.PCG64(root)) for root in roots]
        machines = [_gamma(draw, spread.machine) for draw in self._draws]
        self._factors = [machine / (speeds or {}).get(node, 1.0) for node, machine in enumerate(machines)]
        self._engine_s = [engine_s * factor for factor in self._factors]
        self._message_s, self._byte_s = message_s, byte_s
        self.messages_cost = message_s > 0 or byte_s > 0

    def seconds(self, node: int, task: Task) -> float:
        """Seconds of work that a task is, on its node."""
        mean = self._means.get((task.chain, task.role, self._first[task.chain] == node), 0.0)
        if not mean:
            return 0.0
        spread = self._spread.task if task.pool == "compute" else 0.0
        return mean * self._factors[node] * _gamma(self._draws[node], spread)

    def message_s(self, node: int, nbytes: int) -> float:
        """Seconds of work that sending or receiving a message is, on its node."""
        return (self._message_s + self._byte_s * nbytes) * self._factors[node]

    def engine_s(self, node: int) -> float:
        """Seconds that a node's engine takes for a task."""
        return self._engine_s[node]


def first_nodes(plan: PhysicalPlan) -> dict[str, int]:
    """The first node of each chain's role, by chain."""
    members = plan.members()
    return {chain.head: members[chain.role][0] for chain in plan.chains}


def _gamma(draw: np.random.Generator, variation: float) -> float:
    """A draw of mean 1 and this coefficient of variation."""
    return float(draw.gamma(1 / variation**2, variation**2)) if variation else 1.0
