"""PullsState: how far the workers of a parameter server are, and which of them wait for an answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dataflow.state import State
from operators.fragments import subtract
from operators.messages import Fragment, Vector

Cells = tuple[int, int]


@dataclass
class PullsState(State):
    """What every worker has pushed to each run of cells, and which workers wait for an answer.

    Args:
        workers: node numbers of the workers that are there.
        pushed: by run of cells and worker, the number of the last gradient applied.
        waiting: by run of cells, workers that are answered once the slowest has caught up.
        counted: whether what was applied is added up, for checkpoints; see `operators.ledger`.
        taken: by run of cells, the sum of all gradients applied since the start or the checkpoint, if it is.
        made: by run of cells, how many gradients workers have made of which one has come, or one behind them.
        anew: whether the server has been started again, and learns how far a worker is when that pushes to it.
    """

    workers: set[int]
    pushed: dict[Cells, dict[int, int]] = field(default_factory=dict)
    made: dict[Cells, int] = field(default_factory=dict)
    waiting: dict[Cells, list[int]] = field(default_factory=dict)
    counted: bool = False
    taken: dict[Cells, Vector] = field(default_factory=dict)
    anew: bool = False
    _last: dict[Cells, tuple[int, int]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By run of cells, the least number applied of any worker that is there, and of how many workers it is that."""

    def push(self, cells: Cells, worker: int, number: int) -> None:
        """Note that a worker's gradient `number` is applied."""
        pushed = self.pushed.setdefault(cells, {})
        before, pushed[worker] = pushed.get(worker, 0), number
        self.made[cells] = self.made.get(cells, 0) + number - before
        if cells in self._last and worker in self.workers:
            least, many = self._last[cells]
            if number < least or (before == least and many == 1):
                del self._last[cells]
            elif before == least and number > least:
                self._last[cells] = (least, many - 1)

    def take(self, fragment: Fragment, n_weights: int) -> None:
        """Note what a worker's gradient was, of so many weights, if that is added up."""
        if self.counted:
            cells = (fragment.start, fragment.stop)
            if cells not in self.taken:
                self.taken[cells] = np.zeros(n_weights, np.float32)
            subtract(fragment, self.taken[cells], -1.0)

    def slowest(self, cells: Cells) -> int:
        """The least gradient number applied of any worker that is there.

        A worker may wait for those that wait for this server, and push nothing before: where it is not known how far it
        is nobody waits for it.
        """
        if cells not in self._last:
            pushed = self.pushed.get(cells, {})
            numbers = [pushed.get(worker, 0) for worker in self.workers if worker in pushed or not self.anew]
            least = min(numbers, default=int(np.iinfo(np.int64).max))
            self._last[cells] = (least, numbers.count(least))
        return self._last[cells][0]

    def leave(self, worker: int) -> None:
        """Wait for a worker no more."""
        self.workers.discard(worker)
        self._last.clear()

    def applied(self) -> int:
        """The least gradient number applied of any worker that is there, over all cells; 0 if there is none."""
        return min(map(self.slowest, self.pushed), default=0) if self.workers else 0

    def average(self, workers: int) -> int:
        """How many gradients each of so many workers has made on average, of those applied to all cells."""
        return min(self.made.values(), default=0) // workers

    def wait(self, cells: Cells, worker: int) -> None:
        """Note that a worker waits for an answer."""
        self.waiting.setdefault(cells, []).append(worker)

    def release(self, cells: Cells, bound: float) -> dict[int, int]:
        """Workers that waited and are at most `bound` gradients ahead of the slowest; they wait no more.

        Returns:
            By worker, the number of its last gradient applied.
        """
        waiting = self.waiting.get(cells)
        if not waiting:
            return {}
        pushed, limit = self.pushed[cells], bound if math.isinf(bound) else self.slowest(cells) + bound
        released = {worker: pushed[worker] for worker in waiting if pushed[worker] <= limit}
        self.waiting[cells] = [worker for worker in waiting if worker not in released]
        return released

    def join(self, cells: Cells, worker: int) -> int:
        """Take a worker that has come back for as far as the one that is furthest; how far that is."""
        self.workers.add(worker)
        self._last.clear()
        pushed = self.pushed.setdefault(cells, {})
        pushed[worker] = max(pushed.values(), default=0)
        return pushed[worker]

    def tensors(self) -> dict[str, np.ndarray]:
        """``workers``; ``pushed``, rows of start, stop, worker, number; ``made``; ``counted``, ``taken/start:stop``."""
        rows = [(*cells, *entry) for cells, pushed in self.pushed.items() for entry in pushed.items()]
        return {
            "workers": np.array(sorted(self.workers), np.int64),
            "pushed": np.array(rows, np.int64).reshape(-1, 4),
            "made": np.array([(*cells, made) for cells, made in self.made.items()], np.int64).reshape(-1, 3),
            "counted": np.array([self.counted], np.int64),
            **{f"taken/{start}:{stop}": taken.copy() for (start, stop), taken in self.taken.items()},
        }

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over what was pushed; nobody waits. What is applied is added up from zero: see `operators.ledger`."""
        self.workers = {int(worker) for worker in tensors["workers"]}
        self.pushed, self.waiting, self.taken, self.made, self._last = {}, {}, {}, {}, {}
        for start, stop, worker, number in tensors["pushed"].tolist():
            self.push((start, stop), worker, number)
        # Of one that has come back not all that its number says was made by itself.
        self.made |= {(start, stop): made for start, stop, made in tensors["made"].tolist()}

    def resume(self, tensors: Mapping[str, np.ndarray], node: int, steps: Mapping[int, int]) -> None:
        """Go on with all workers: whoever had left is there again, unless this server is told otherwise."""
        everybody = self.workers
        super().resume(tensors, node, steps)
        for pushed in self.pushed.values():
            pushed.update((worker, steps.get(worker, 0)) for worker in everybody - self.workers)
        self.workers = everybody
        self._last.clear()
