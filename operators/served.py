"""What a server keeps for its update rule, and what it measures of how stale gradients are."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np

from dataflow.node_context import NodeContext
from dataflow.state import State, StateElement, StateKind
from operators.fragments import decoded, subtract
from operators.messages import Fragment, Vector
from operators.staleness import Staleness, measured
from operators.update_rules import AnyRule, Asgd, Memory, Push, Rule

Cells = tuple[int, int]


@dataclass(slots=True)
class _Sent:
    """What a worker was answered with, and what it has pushed since: with n_fetch > n_push several times.

    Args:
        updates: of the server until then.
        weights: if they are kept; replaced by what the worker's own updates have made of them.
        looked_at: whether gaps of the gradients that are computed on them are measured.
        own: the worker's updates since.
        last: the newest of these and its rate, if weights are kept and it is not in them yet.
    """

    updates: int
    weights: Vector | None
    looked_at: bool = False
    own: int = 0
    last: tuple[Fragment, float] | None = None

    def computed_on(self) -> Vector | None:
        """What the worker's next gradient is computed on, (weights of the cells,) float32, if it is known."""
        if self.weights is not None and self.last is not None:
            # Only now: mostly an answer follows each push, and nobody asks.
            self.weights = self.weights.copy()
            subtract(self.last[0], self.weights, self.last[1])
            self.last = None
        return self.weights

    def push(self, fragment: Fragment, rate: float) -> None:
        """Note an update of the worker's own."""
        self.own += 1
        self.last = None if self.weights is None else (fragment, rate)


@dataclass(slots=True)
class Served:
    """One run of cells: the memory of the rule, and what is known of the workers' gradients over it.

    Args:
        rule: of the server.
        memory: what it remembers.
        start: what workers compute on that were never answered.
        updates: gradients applied.
        answers: by worker, how many there were.
        sent: by worker, the newest of them.
        staleness: by worker, that of its newest gradient.
    """

    rule: Rule
    memory: Memory
    start: _Sent
    updates: int = 0
    answers: dict[int, int] = field(default_factory=dict)
    sent: dict[int, _Sent] = field(default_factory=dict)
    staleness: dict[int, Staleness] = field(default_factory=dict)

    def take(self, weights: Vector, fragment: Fragment, rate: float) -> None:
        """Move the weights by a worker's gradient.

        Args:
            weights: (weights of the cells,) float32, changed in place.
            fragment: the gradient.
            rate: the learning rate.

        Raises:
            WireError: the fragment's code is not one of so many weights.
        """
        worker = fragment.origin
        if worker not in self.sent:
            self.sent[worker] = _Sent(self.start.updates, self.start.weights)
        sent = self.sent[worker]
        lag, known = self.updates - sent.updates - sent.own, sent.computed_on()
        self.updates += 1
        sent.push(fragment, rate)
        self.staleness[worker] = Staleness(lag)
        if sent.looked_at and known is not None:
            self.staleness[worker] = measured(_gradient(fragment, weights), known, self.master(weights), lag)
        if fragment.values.dtype == np.uint8 and isinstance(self.rule, Asgd) and not self.rule.weight_decay:
            subtract(fragment, weights, rate)  # a code's few elements, without making a gradient of it
            return
        if known is None and self.rule.uses_sent:  # not known any more after a checkpoint: as if sent only now
            known = self.rule.view(weights, self.memory, worker)
        self.rule.update(weights, self.memory, Push(worker, _gradient(fragment, weights), rate, lag, known))

    def pass_over(self, worker: int) -> None:
        """Leave out a worker's gradient: nothing is known of its staleness."""
        self.staleness.pop(worker, None)

    def join(self, weights: Vector, worker: int) -> None:
        """Note that a worker has come, or come back, and waits for what it computes its first gradient on.

        Args:
            weights: (weights of the cells,) float32, those of the server.
            worker: its number.
        """
        self.rule.join(weights, self.memory, worker)

    def leave(self, worker: int) -> None:
        """Forget what a worker was sent, and what its rule has of it that nobody needs."""
        self.sent.pop(worker, None)
        self.staleness.pop(worker, None)
        self.rule.leave(self.memory, worker)

    def answer(self, weights: Vector, worker: int, shared: Vector | None = None) -> Vector:
        """What a worker is answered with, (weights of the cells,) float32, never written again.

        Args:
            weights: (weights of the cells,) float32, those of the server.
            worker: its number.
            shared: what another worker is answered with at the same moment.
        """
        if shared is None or self.rule.each_its_own:
            shared = self.rule.view(weights, self.memory, worker)
        count = self.answers[worker] = self.answers.get(worker, 0) + 1
        looked_at = count % self.rule.gap_every(self.memory.workers) == 0
        self.sent[worker] = _Sent(self.updates, shared if looked_at or self.rule.uses_sent else None, looked_at)
        return shared

    def master(self, weights: Vector) -> Vector:
        """Theta of the papers, (weights of the cells,) float32, where the server keeps something else; only read."""
        with np.errstate(over="ignore"):  # of a training that diverges
            return self.rule.master(weights, self.memory)


def _gradient(fragment: Fragment, weights: Vector) -> Vector:
    return cast("Vector", decoded(fragment, weights.size).values)


class ServedState(State):
    """Every run of cells of one server, from its first gradient on."""

    def __init__(self, rule: Rule) -> None:
        """No gradient yet.

        Args:
            rule: of the server.
        """
        self._rule = rule
        self._runs: dict[Cells, Served] = {}

    def at(self, cells: Cells, weights: Vector, workers: Collection[int]) -> Served:
        """The run of these cells.

        Args:
            cells: first, and first behind.
            weights: (weights of the cells,) float32; at the first call those of the start.
            workers: who pushes gradients now: they come and go.
        """
        run = self._runs.get(cells)
        if run is None:
            start = _Sent(0, weights.copy() if self._rule.uses_sent else None)
            run = self._runs[cells] = Served(self._rule, self._rule.init(weights, len(workers)), start)
            for worker in sorted(workers):
                run.join(weights, worker)
        run.memory.workers = len(workers)
        return run

    def leave(self, worker: int) -> None:
        """Go on without a worker that has ended or died."""
        for run in self._runs.values():
            run.leave(worker)

    def memories(self) -> Iterator[tuple[Cells, Memory]]:
        """What the rule remembers, by cells."""
        yield from ((cells, run.memory) for cells, run in self._runs.items())

    def tensors(self) -> dict[str, np.ndarray]:
        """By cells: what the rule remembers, ``start:stop/vectors/name`` and ``start:stop/numbers/name``.

        What was sent is not among them: whoever goes on from a checkpoint answers anew.
        """
        found: dict[str, np.ndarray] = {}
        for (start, stop), run in self._runs.items():
            place = f"{start}:{stop}"
            found[f"{place}/updates"] = np.array([run.updates], np.int64)
            found |= {f"{place}/vectors/{name}": vector for name, vector in run.memory.vectors.items()}
            for name, number in run.memory.numbers.items():
                found[f"{place}/numbers/{name}"] = np.array([number], np.float64)
        return found

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over what the rule remembers; nobody has been answered."""
        self._runs.clear()
        for key in tensors:
            place, _, name = key.partition("/")
            if name != "updates":
                continue
            start, stop = (int(cell) for cell in place.split(":"))
            memory, sent = Memory(0), _Sent(int(tensors[key][0]), None)
            for other, tensor in tensors.items():
                if other.startswith(f"{place}/vectors/"):
                    memory.vectors[other.removeprefix(f"{place}/vectors/")] = np.array(tensor, np.float32)
                elif other.startswith(f"{place}/numbers/"):
                    memory.numbers[other.removeprefix(f"{place}/numbers/")] = float(tensor[0])
            self._runs[start, stop] = Served(self._rule, memory, sent, updates=sent.updates)


class ServedCells(StateElement):
    """What the servers keep for an update rule.

    Args:
        rule: the rule.
    """

    kind: ClassVar[StateKind] = StateKind.LOCAL
    rule: AnyRule = Asgd()

    @property
    def form(self) -> str:
        """The rule whose memory it is."""
        return self.rule.form

    def create(self, node: NodeContext) -> ServedState:
        """Nothing is remembered yet."""
        self.rule.compile()
        return ServedState(self.rule)
