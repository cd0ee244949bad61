"""What an update rule is: what a server does with a worker's gradient, and what it answers.

Invariant: all that a rule remembers is in the `Memory` that it is handed. Rules are values, and a run of cells is moved
by its own memory alone; what is said of "the weights" here is said of the run's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from operators.messages import Vector
from operators.staleness import GAP_EVERY


class Push(NamedTuple):
    """A worker's gradient.

    Args:
        worker: number of its node.
        gradient: (weights,) float32, only read.
        rate: the learning rate.
        lag: updates of others since the weights that it was computed on were sent.
        sent: (weights,) float32, these weights, only read; only for rules that use them.
    """

    worker: int
    gradient: Vector
    rate: float
    lag: int
    sent: Vector | None = None


@dataclass(slots=True)
class Memory:
    """What a rule remembers of a run of cells.

    Args:
        workers: how many there are now.
        vectors: (weights,) float32 each, by name; those of a worker end with its number.
        numbers: by name.
    """

    workers: int
    vectors: dict[str, Vector] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)

    def vector(self, name: str, n_weights: int) -> Vector:
        """The vector of that name; zeros at first."""
        found = self.vectors.get(name)
        if found is None:
            found = self.vectors[name] = np.zeros(n_weights, np.float32)
        return found


class Rule(BaseModel, ABC):
    """How gradients move the weights of a server.

    Class attributes:
        uses_sent: a push is to come with the weights that its gradient was computed on.
        each_its_own: workers are answered with weights of their own.
        in_one: the whole model must be in one run of cells: a norm, or a median, is taken over it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    uses_sent: ClassVar[bool] = False
    each_its_own: ClassVar[bool] = False
    in_one: ClassVar[bool] = False

    @property
    def form(self) -> str:
        """What a memory means, in words: a rule goes on with that of one of the same form only."""
        return f"rule {getattr(self, 'kind', '')}"

    def init(self, weights: Vector, workers: int) -> Memory:
        """What is remembered before the first gradient.

        Args:
            weights: (weights,) float32, those of the start, only read.
            workers: how many push gradients.
        """
        return Memory(workers)

    def join(self, weights: Vector, memory: Memory, worker: int) -> None:
        """Note that a worker begins with what it is answered next: at the start, or as one that has come, or come back.

        Args:
            weights: (weights,) float32, what the server keeps, only read.
            memory: changed in place.
            worker: its number.
        """

    def leave(self, memory: Memory, worker: int) -> None:
        """Note that a worker has ended, or died; if it ever comes back, it joins.

        Args:
            memory: changed in place.
            worker: its number.
        """

    @abstractmethod
    def update(self, weights: Vector, memory: Memory, push: Push) -> None:
        """Take in a gradient.

        Args:
            weights: (weights,) float32, what the server keeps, changed in place.
            memory: from `init`, brought up to date.
            push: the gradient.
        """

    def view(self, weights: Vector, memory: Memory, worker: int) -> Vector:
        """The weights that a worker is answered with, (weights,) float32, which nobody writes again."""
        return weights.copy()

    def master(self, weights: Vector, memory: Memory) -> Vector:
        """Theta of the papers, (weights,) float32, where the server keeps something else; only to be read."""
        return weights

    def gap_every(self, workers: int) -> int:
        """Of a worker's gradients, one in so many has its gap measured: `master` may take long where there are many."""
        return GAP_EVERY

    def compile(self) -> None:
        """Compile what `update` needs, or load it from disk, so that no gradient waits for it."""
        weights, gradient = np.zeros(1, np.float32), np.zeros(1, np.float32)
        memory = self.init(weights, 1)
        self.update(weights, memory, Push(0, gradient, 0.0, 0, gradient))
