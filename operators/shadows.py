"""What a server knows of its workers' replicas, so that an answer need only say what has changed.

The server adds the code that it sends to the worker's *shadow*, as the worker does to its replica, so the two are equal
bit for bit. Shard less shadow is what the worker is owed: what a code leaves out is part of the next one, and no sum
is kept that could drift.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

import numpy as np

from dataflow.node_context import NodeContext
from dataflow.operators_api import Sample
from dataflow.state import State, StateElement, StateKind
from operators.compression import Account, Codec, Residual, Threshold, add, pooled
from operators.layout import Layout
from operators.messages import Code, Vector, Weights

Cells = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Change:
    """The code that takes a shadow from `before` to `after`, towards `weights`; the vectors are never written again.

    It has so many `updates`.
    """

    weights: Vector
    before: Vector
    after: Vector
    code: Code
    updates: int


@dataclass(slots=True)
class _Run:
    """What is known of one run of cells.

    Args:
        residual: of the codec. What is owed is put in for each code; from code to code only its taus stay.
        newest: the last answer to anybody, before it was coded.
        rate: what the last change was divided by.
        shadows: by worker, (weights of the cells,) what its replica is; never written again.
        clocks: by worker, the `clock` of its last answer.
        change: the last one made.
    """

    residual: Residual
    newest: Weights
    rate: float = 1.0
    shadows: dict[int, Vector] = field(default_factory=dict)
    clocks: dict[int, int] = field(default_factory=dict)
    change: _Change | None = None

    def code(self, worker: int, weights: Vector, rate: float) -> Code:
        """Take a worker's shadow towards weights; the code that did. Of a rate of 0 the one before is used."""
        before, change = self.shadows[worker], self.change
        if change is None or change.weights is not weights or change.before is not before:
            self.rate = rate or self.rate
            np.subtract(weights, before, out=self.residual.values)
            self.residual.values /= np.float32(self.rate)
            update, after = self.residual.quantise(self.rate), before.copy()
            code = update.encode(0, weights.size)
            add(after, code)
            change = self.change = _Change(weights, before, after, code, update.count(0, weights.size))
        self.residual.account.note(weights.size, change.updates, change.code.nbytes)
        self.shadows[worker] = change.after
        return change.code


class ShadowsState(State):
    """Live shadows of one server.

    Workers that have always been answered with the same weights share one shadow, and codes: with a barrier all do.
    """

    def __init__(self, layout: Layout, codec: Codec, layers: tuple[int, ...] = (0,)) -> None:
        """No worker is known yet.

        Args:
            layout: the model's cells.
            codec: what codes are made by.
            layers: offset at which each layer begins.
        """
        self._layout, self._codec, self._layers = layout, codec, layers
        self._runs: dict[Cells, _Run] = {}
        self._taus: dict[Cells, Vector] = {}
        self._account = Account()

    def answer(self, weights: Weights, rate: float = 1.0) -> Weights:
        """What is sent in the place of an answer: its change as a code, or itself if it is the worker's first.

        Args:
            weights: float32, never written again. Its run of cells is that of earlier ones, or apart from them.
            rate: what changes are divided by for the codec; 0 or more.

        Raises:
            OperatorError: a weight is infinite or not a number.
        """
        run = self._runs.get((weights.start, weights.stop))
        if run is None:
            run = self._runs[weights.start, weights.stop] = self._begin(weights)
        values = cast("Vector", weights.values)
        run.newest, run.clocks[weights.to] = weights, weights.clock
        if weights.to in run.shadows:
            self._taus.clear()  # it has been answered all of this server's runs: those left are of another sharding
            return replace(weights, values=run.code(weights.to, values, rate))
        run.shadows[weights.to] = values
        return weights

    def samples(self, weights: Weights) -> Iterator[Sample]:
        """What codes have cost, and what is owed, once `answer` has been asked for a code of these weights."""
        run = self._runs[weights.start, weights.stop]
        if run.change is not None:
            yield from run.residual.samples()

    def shadow(self, worker: int, start: int, stop: int) -> Vector:
        """What a worker's replica of cells is, (weights of the cells,) float32, never written again.

        Raises:
            KeyError: it was sent no answer for these.
        """
        return self._runs[start, stop].shadows[worker]

    def leave(self, worker: int) -> None:
        """Know nothing of a worker that has died: if it comes back, it is first sent weights as they are."""
        for run in self._runs.values():
            run.shadows.pop(worker, None)

    def rest(self) -> Iterator[Weights]:
        """The newest weights, whole, for every worker whose replica is not that."""
        for run in self._runs.values():
            for worker, shadow in run.shadows.items():
                if not np.array_equal(shadow, run.newest.values):
                    yield replace(run.newest, to=worker, clock=run.clocks[worker])

    def tensors(self) -> dict[str, np.ndarray]:
        """By run of cells ``start:stop/taus``, (layers or 1,) float32, where tau is adapted.

        No shadow: replicas move on after a checkpoint, and whoever goes on from one answers whole first.
        """
        if not (isinstance(self._codec, Threshold) and self._codec.tau is None):
            return {}
        taus = self._taus | {cells: run.residual.taus for cells, run in self._runs.items()}
        return {f"{start}:{stop}/taus": each for (start, stop), each in taus.items()}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Know no worker any more; codes go on with the taus of runs that there still are, if they fit the codec."""
        self._runs.clear()
        self._taus = {_cells(name): np.array(taus, np.float32) for name, taus in tensors.items()}

    def _begin(self, weights: Weights) -> _Run:
        where = self._layout.weights(weights.start, weights.stop)
        layers = (0, *(layer - where.start for layer in self._layers if where.start < layer < where.stop))
        residual = Residual(self._codec, where.stop - where.start, layers)
        residual.account = self._account
        taus = self._taus.pop((weights.start, weights.stop), None)
        if taus is not None:
            residual.go_on(taus)
        return _Run(residual, weights)


def _cells(name: str) -> Cells:
    start, stop = name.removesuffix("/taus").split(":")
    return int(start), int(stop)


class Shadows(StateElement):
    """What a server knows of the replicas of those that it answers.

    Args:
        layout: the model's cells.
        codec: what makes fewer bytes of answers.
        layers: offset at which each layer begins.
        pushes: pushes of each worker between two answers to it, if the codec is theirs and is to have room for all
            workers' pushes between two answers; None: the codec is used as it is.
        workers: role of the workers.
    """

    kind: ClassVar[StateKind] = StateKind.LOCAL
    layout: Layout
    codec: Codec
    layers: tuple[int, ...] = (0,)
    pushes: int | None = None
    workers: str = "worker"

    def create(self, node: NodeContext) -> ShadowsState:
        """No worker is known yet."""
        Residual.compile(self.codec)
        codec = self.codec if self.pushes is None else pooled(self.codec, self.pushes * len(node.members[self.workers]))
        return ShadowsState(self.layout, codec, self.layers)
