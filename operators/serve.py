"""Serve: a parameter server's part. Gradients come in by range, weights go out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from dataflow.node_context import NodeContext
from dataflow.operators_api import Checkpoint, Emissions, Operator, Sample
from dataflow.ports import In, Out
from dataflow.state import StateElement, StateKind, Writes
from operators.barrier import BarrierState, Mean
from operators.checkpointing import Checkpoints
from operators.compression import Codec, Residual
from operators.fragments import decoded
from operators.images import ImagesState
from operators.layout import Sharding
from operators.messages import Fragment, Vector, Weights
from operators.pulls_state import Cells, PullsState
from operators.quarantine import check_shard, compile_check, refused, zeros
from operators.schedule import Schedule
from operators.served import Served, ServedState
from operators.staleness import FRESH, UNKNOWN, Staleness
from operators.vector_state import VectorState


class Pulls(StateElement):
    """The pushes and pulls of role `workers`.

    Args:
        workers: the role.
        counted: see `PullsState`.
    """

    kind: ClassVar[StateKind] = StateKind.LOCAL
    workers: str
    counted: bool = False

    def create(self, node: NodeContext) -> PullsState:
        """Nothing pushed yet. A server that has been started again does not know all that is applied to its weights."""
        anew = node.incarnation > 0
        return PullsState(set(node.members[self.workers]), counted=self.counted and not anew, anew=anew)


class Serve(Operator):
    """Moves the shard by each gradient as it comes, as the rule of `served` says, and answers with weights.

    The answer waits until the slowest worker is at most `tau` gradients behind (stale synchronous parallel), or not
    at all. A fragment that is not finite counts as zeros, with the sample `poisoned_fragments`. With `shared`
    the gradients of a job are made by whoever is first: answers tell how many have come, of how many images, and the
    learning rate goes by these.

    Args:
        sharding: the model's division over the servers.
        schedule: learning rate of a worker's gradients, by their number; None: what comes are updates, which have it.
        workers: role of the workers.
        tau: staleness bound; None for asynchronous.
        fetch_every: answer every so many gradients (Downpour's n_fetch).
        shared: whether workers make gradients until there are enough of all of them, each at its own pace.
        codec: what made fragments of gradients, to be compiled before any comes; None: they are float32.
        checkpoints: when the node's state is kept, unless it is a worker too, which then sees to it; never if None.
    """

    pool = "network"
    sharding: Sharding
    schedule: Schedule | None
    workers: str = "worker"
    tau: int | None = None
    fetch_every: int = Field(default=1, ge=1)
    shared: bool = False
    codec: Codec | None = None
    checkpoints: Checkpoints | None = None
    fragments = In(Fragment)
    weights = Out(Weights)
    shard = Writes()
    pulls = Writes()
    served = Writes()
    images = Writes()

    def open(self, node: NodeContext) -> None:
        """Compile what decodes, and the look at every fragment."""
        compile_check()
        if self.codec:
            Residual.compile(self.codec)

    def process(
        self,
        fragment: Fragment,
        shard: VectorState,
        pulls: PullsState,
        served: ServedState,
        images: ImagesState,
        node: NodeContext,
    ) -> Emissions:
        """Apply a gradient fragment; answer everybody who need not wait, and one that has come back at once."""
        cells, origin, low, high = (fragment.start, fragment.stop), fragment.origin, fragment.low, fragment.high
        joined = pulls.join(cells, origin) if low == high else None
        weights = shard.values[self.sharding.layout.weights(*cells)]
        run = served.at(cells, weights, pulls.workers)
        if joined is not None:
            run.join(weights, origin)
            yield from self._tell(cells, {origin: joined}, weights, run, node, self._come(cells, pulls, images))
            return
        before = self._applied(pulls, node)
        if refused(fragment):
            run.pass_over(origin)
            yield Sample("poisoned_fragments", 1.0)
        else:
            run.take(weights, fragment, self._rate(high, images.of(cells), node))
            pulls.take(fragment, weights.size)
            check_shard(weights, node, "gradient", high, "of node", origin)
        pulls.push(cells, origin, high)
        images.add(cells, fragment.images)
        if high // self.fetch_every > low // self.fetch_every:
            pulls.wait(cells, origin)
        released = pulls.release(cells, self._bound)
        if released:
            yield from self._tell(cells, released, weights, run, node, self._come(cells, pulls, images))
        yield from due(self.checkpoints, before, self._applied(pulls, node), node, self.workers)

    def on_left(
        self,
        worker: int,
        shard: VectorState,
        pulls: PullsState,
        served: ServedState,
        images: ImagesState,
        node: NodeContext,
    ) -> Emissions:
        """Go on without a worker that has ended."""
        pulls.leave(worker)
        served.leave(worker)
        for cells in list(pulls.waiting):
            released = pulls.release(cells, self._bound)
            if released:
                weights = shard.values[self.sharding.layout.weights(*cells)]
                run = served.at(cells, weights, pulls.workers)
                yield from self._tell(cells, released, weights, run, node, self._come(cells, pulls, images))

    def on_end(
        self, shard: VectorState, pulls: PullsState, served: ServedState, images: ImagesState, node: NodeContext
    ) -> Emissions:
        """Send every worker the final weights, theta of the papers.

        A server that has come back knows neither what workers hold of cells of which nothing was pushed since, nor who
        has joined.
        """
        for cells in self.sharding.pieces(node.members[node.role], node.index):
            pushed = pulls.pushed.get(cells, {})
            everybody = {worker: pushed.get(worker, 0) for worker in node.members[self.workers]}
            weights = shard.values[self.sharding.layout.weights(*cells)]
            final = served.at(cells, weights, pulls.workers).master(weights).copy()
            come = self._come(cells, pulls, images)
            yield from map(self.weights, answers(cells, everybody, final, node, values=final, come=come))

    @property
    def _bound(self) -> float:
        """How many gradients a worker that is answered may be ahead of the slowest."""
        return math.inf if self.tau is None else self.tau

    def _applied(self, pulls: PullsState, node: NodeContext) -> int:
        """The gradient of each worker by which checkpoints are due; 0 where none are."""
        if self.checkpoints is None:
            return 0
        return pulls.average(len(node.members[self.workers])) if self.checkpoints.at_pace else pulls.applied()

    def _rate(self, number: int, images: int, node: NodeContext) -> float:
        """The learning rate of a worker's gradient `number`, ahead of which those of all were of so many images."""
        if self.schedule is None:
            return 1.0
        workers = len(node.members[self.workers])
        return self.schedule.behind(images, workers) if self.shared else self.schedule.at(number, workers)

    def _tell(
        self,
        cells: Cells,
        pushed: Mapping[int, int],
        weights: Vector,
        run: Served,
        node: NodeContext,
        come: tuple[int, int],
    ) -> Emissions:
        """Answers for every worker in `pushed`; see `answers`."""
        yield from map(self.weights, answers(cells, pushed, weights, node, run, come=come))

    def _come(self, cells: Cells, pulls: PullsState, images: ImagesState) -> tuple[int, int]:
        """What is told of how many gradients of all workers have come, and of their images; see `Weights`."""
        return (pulls.made.get(cells, 0), images.of(cells)) if self.shared else (0, 0)


class ServeMean(Operator):
    """Applies the mean of all workers' gradients once all have come, then answers all: bulk-synchronous.

    A fragment that is not finite counts as zeros, and weights may become so, as in `Serve`.

    Args:
        sharding: the model's division over the servers.
        schedule: learning rate of the mean gradient, by the step's number; None: what comes are updates, which have it.
        workers: role of the workers.
        codec: see `Serve`.
        checkpoints: see `Serve`.
    """

    pool = "network"
    sharding: Sharding
    schedule: Schedule | None
    workers: str = "worker"
    codec: Codec | None = None
    checkpoints: Checkpoints | None = None
    fragments = In(Fragment)
    weights = Out(Weights)
    shard = Writes()
    barrier = Writes()

    def open(self, node: NodeContext) -> None:
        """Compile what decodes, and the look at every fragment."""
        compile_check()
        if self.codec:
            Residual.compile(self.codec)

    def process(self, fragment: Fragment, shard: VectorState, barrier: BarrierState, node: NodeContext) -> Emissions:
        """Take in a contribution; apply the mean and answer if it was the last. One that has come back is answered."""
        cells, worker = (fragment.start, fragment.stop), fragment.origin
        if fragment.low == fragment.high:
            # The next step waits for it: only its first contribution says behind which step it begins.
            barrier.expected.add(worker)
            barrier.since.pop(worker, None)
            yield from self._answer(cells, [worker], barrier.last.get(cells, (0, ()))[0], shard, node)
            return
        where, before = self.sharding.layout.weights(*cells), barrier.passed()
        if refused(fragment):
            fragment = zeros(fragment)
            yield Sample("poisoned_fragments", 1.0)
        mean = barrier.add(decoded(fragment, where.stop - where.start), barrier.since)
        if worker not in barrier.since:  # also where no step is complete: that may be so at another server
            barrier.since[worker] = fragment.low
            for late in barrier.release(barrier.since):
                yield from self._apply(late, shard, node)
        if mean is not None:
            yield from self._apply(mean, shard, node)
            yield from due(self.checkpoints, before, barrier.passed(), node, self.workers)

    def on_left(self, worker: int, shard: VectorState, barrier: BarrierState, node: NodeContext) -> Emissions:
        """Go on without a worker that has ended."""
        barrier.since.pop(worker, None)
        for mean in barrier.leave(worker, barrier.since):
            yield from self._apply(mean, shard, node)

    def on_end(self, shard: VectorState, barrier: BarrierState, node: NodeContext) -> Emissions:
        """Send the final weights to workers that had no part in the last step: they stopped earlier than others.

        Nobody had in one that a server which has come back has not seen.
        """
        for cells in self.sharding.pieces(node.members[node.role], node.index):
            number, contributors = barrier.last.get(cells, (0, ()))
            late = [worker for worker in node.members[self.workers] if worker not in contributors]
            yield from self._answer(cells, late, number, shard, node)

    def _apply(self, mean: Mean, shard: VectorState, node: NodeContext) -> Emissions:
        cells = (mean.start, mean.stop)
        rate = self.schedule.at(mean.number, len(node.members[self.workers])) if self.schedule else 1.0
        weights = shard.values[self.sharding.layout.weights(*cells)]
        weights -= mean.values * np.float32(rate)
        check_shard(weights, node, "step", mean.number)
        yield from self._answer(cells, mean.contributors, mean.number, shard, node, FRESH)

    def _answer(
        self,
        cells: Cells,
        workers: Sequence[int],
        number: int,
        shard: VectorState,
        node: NodeContext,
        stale: Staleness = UNKNOWN,
    ) -> Emissions:
        pushed = dict.fromkeys(workers, number)
        weights = shard.values[self.sharding.layout.weights(*cells)]
        yield from map(self.weights, answers(cells, pushed, weights, node, stale=stale))


def due(
    checkpoints: Checkpoints | None, before: int, number: int, node: NodeContext, workers: str
) -> Iterator[Checkpoint]:
    """The checkpoint that falls due once gradients up to `number`, and not to `before` only, are applied to a shard."""
    members = node.members[workers]
    found = checkpoints.due(before, number, len(members)) if checkpoints and node.index not in members else None
    if found is not None:
        yield Checkpoint(found)


def answers(
    cells: Cells,
    pushed: Mapping[int, int],
    weights: Vector,
    node: NodeContext,
    served: Served | None = None,
    stale: Staleness = UNKNOWN,
    values: Vector | None = None,
    come: tuple[int, int] = (0, 0),
) -> Iterator[Weights]:
    """Weights now, for every worker in `pushed`, with the number of its last gradient in them.

    They are those that a rule gives workers, with how stale their gradients were, or the shard's. Answers of the same
    weights share one copy.

    Args:
        cells: which of them.
        pushed: number of the last gradient by worker.
        weights: (weights of the cells,) float32, the server's.
        node: the server.
        served: these cells; None: workers are given the server's weights.
        stale: how stale their gradients were, if `served` does not say so.
        values: what all are given in the place of the server's weights, never written again.
        come: gradients and images, `of_all` and `images` of `Weights`.
    """
    for worker, number in pushed.items():
        if served:
            values, stale = served.answer(weights, worker, values), served.staleness.get(worker, UNKNOWN)
        else:
            values = weights.copy() if values is None else values
        lag, gap, normalised_gap = stale
        yield Weights(worker, node.index, *cells, number, values, lag, gap, normalised_gap, *come)
