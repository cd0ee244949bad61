"""Compute: the gradient of a mini-batch, shard by shard on the node's compute tasks."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, PrivateAttr

from dataflow.errors import OperatorError
from dataflow.node_context import NodeContext
from dataflow.operators_api import Checkpoint, Emissions, Gather, Sample, random_generator
from dataflow.ports import In, Out
from dataflow.state import Writes
from operators.average import AverageState
from operators.checkpointing import Checkpoints
from operators.clocks import ClocksState
from operators.dnn import Network, NetworkSpec, build_network
from operators.dnn.network import mean_statistics
from operators.jit import in_any_order
from operators.local_steps import walk
from operators.messages import Batch, Gradient, Progress, Vector
from operators.optimizer import Sgd
from operators.passes import Passes
from operators.quarantine import MAX_POISON, advice, compile_check, poison, sound
from operators.schedule import Schedule
from operators.staleness import GAP_EVERY, Staleness, measured
from operators.vector_state import VectorState


class Part(NamedTuple):
    """What one shard gives: its share of the mean gradient, and its share of the loss.

    Args:
        gradient: (weights,) float32, divided by the size of the mini-batch; or the sum of local steps' directions.
        statistics: (statistics,) float32, as the shard has left them.
        images: in the shard.
        loss: sum over the shard's images.
        size: images in the whole mini-batch.
        rate: the learning rate of the gradient.
        epoch, of_all, readers: see `Batch`.
        lag: gradients of the slowest origin that the weights lack.
        seen: what of others was in the weights, see `ClocksState.seen`; None where staleness is measured elsewhere.
        replica: (weights,) float32, the step's snapshot, if the gap of its gradient is to be measured.
        poison: what is wrong with the gradient; empty if nothing is.
        velocity: (weights,) float32, that local steps leave, as a share of the mean over all shards; None without them.
    """

    gradient: Vector
    statistics: Vector
    images: int
    loss: float
    size: int
    rate: float
    epoch: float
    of_all: int
    lag: int
    seen: Mapping[int, int] | None = None
    replica: Vector | None = None
    poison: str = ""
    readers: int = 0
    velocity: Vector | None = None


class Compute(Gather):
    """Computes gradients of the network's loss (ako.txt, algorithm 1, lines 3 to 5).

    What is larger than a mini-batch is worked through in local steps, and its gradient is the sum of their directions.
    Shards take theirs side by side, and the mean over shards counts. There is no normalised gap of them.

    The parts are added in shard order. Each shard advances a copy of the step's snapshot of the statistics; the mean of
    the copies, weighted by images, becomes the node's. The gradient of an empty mini-batch is 0, whatever the
    optimizer, and its loss is not a number.

    Samples say how stale gradients are: `staleness` how many gradients of the slowest origin, up to this node's own
    count, were missing from the weights that a gradient was computed on; `lag` how many of others' were applied to the
    replica meanwhile; and of every eighth gradient `gap` and `normalised_gap` how far these had moved it.

    A gradient that is not finite, or whose loss is not, changes nothing here and leaves as a zero gradient of its
    number, with the sample `poisoned_gradients`; the optimizer does not see it, and its loss is not a number.

    Args:
        model: the network.
        schedule: learning rate of each gradient.
        optimizer: makes of each gradient the direction that takes its place in all that follows.
        mini_batch: images of a mini-batch on one node, over all its compute tasks; None: whatever comes is one.
        local: whether the replica here is updated.
        measures: whether staleness is measured here, where the replica is to which others' gradients are applied.
        emits: what leaves: the gradient, or the update, which is the learning rate times the gradient.
        slack: gradients that may be made beyond what the slowest clock allows; None for no bound.
        passes: how many images are an epoch, where gradients are made by whoever is first: learning rate and progress
            go by how many the clocks say have come. None: by the epochs that the node itself has made.
        averages_over: gradients, of all nodes together, over which the weights are averaged; 0: they are not.
        checkpoints: when the node's state is kept; never if None.
        max_poison: poisoned gradients that are borne; with one more the job fails.
    """

    model: NetworkSpec
    schedule: Schedule
    optimizer: Sgd = Sgd()
    mini_batch: int | None = Field(default=None, ge=1)
    local: bool = True
    measures: bool = True
    emits: Literal["gradient", "update"] = "update"
    slack: int | None = None
    passes: Passes | None = None
    averages_over: float = Field(default=0.0, ge=0)
    checkpoints: Checkpoints | None = None
    max_poison: int = Field(default=MAX_POISON, ge=0)
    batches = In(Batch, capacity=2)
    gradients = Out(Gradient)
    progress = Out(Progress)
    replica = Writes()
    statistics = Writes()
    velocity = Writes()
    average = Writes()
    clocks = Writes()

    _model: Network = PrivateAttr()
    _workspaces: deque[Any] = PrivateAttr(default_factory=deque)

    def open(self, node: NodeContext) -> None:
        """Compile the kernels."""
        self._model = build_network(self.model)
        states = VectorState.compile, AverageState.compile
        in_any_order(self._model.compile, self.optimizer.compile, *states, compile_check)

    def ready(self, clocks: ClocksState) -> bool:
        """Whether the staleness bound allows another gradient: c <= min(s + span) + slack (algorithm 1, line 3)."""
        return self.slack is None or clocks.made <= clocks.slowest() + self.slack

    def process(
        self,
        batch: Batch,
        replica: Vector,
        statistics: Vector,
        velocity: Vector,
        clocks: ClocksState,
        node: NodeContext,
    ) -> Part | None:
        """The part of one shard, on the step's snapshots of the states; None if no more are needed.

        Raises:
            OperatorError: there is not a label for each image.
        """
        if clocks.enough:
            return None
        if len(batch.images) != len(batch.labels):
            what = f"a mini-batch has {len(batch.images)} images and {len(batch.labels)} labels"
            raise OperatorError(what, fix="look at the operators between source and compute")
        images, steps = len(batch.images), self._local_steps(batch)
        rate = self._rate(batch, clocks, node)
        advanced, workspace = statistics.copy(), self._workspace(-(-images // steps))

        def differentiate(part: slice, weights: Vector, out: Vector) -> float:
            loss, _ = self._model.gradient(
                weights,
                batch.images[part],
                batch.labels[part],
                out,
                workspace,
                1.0 / max(1, batch.size if steps == 1 else part.stop - part.start),
                statistics=advanced,
                seed=self._seed(batch, part, node) if self._model.random else 0,
            )
            return loss

        left = None
        if steps == 1:
            gradient = np.empty_like(replica)
            loss = differentiate(slice(0, images), replica, gradient)
        else:
            gradient, left, loss = walk(images, steps, differentiate, replica, velocity, self.optimizer, rate)
            if images < batch.size:
                gradient *= np.float32(images / batch.size)
                left *= np.float32(images / batch.size)
        self._workspaces.append(workspace)
        measures = self.measures and batch.shard == 0
        return Part(
            gradient,
            advanced,
            images,
            loss,
            batch.size,
            rate,
            batch.epoch,
            batch.of_all,
            clocks.lag(),
            seen=clocks.seen() if measures else None,
            replica=replica if measures and (clocks.made + 1) % GAP_EVERY == 0 else None,
            poison=poison(batch, loss, gradient),
            readers=batch.readers,
            velocity=left,
        )

    def merge(
        self,
        shares: Sequence[Part | None],
        replica: VectorState,
        statistics: VectorState,
        velocity: VectorState,
        average: AverageState,
        clocks: ClocksState,
        node: NodeContext,
    ) -> Emissions:
        """Add up the parts, update the replica and the statistics, count the gradient and emit it, if it is needed."""
        parts = [part for part in shares if part is not None]
        if clocks.enough:
            return
        total = parts[0].gradient
        for part in parts[1:]:
            total += part.gradient
        size = parts[0].size
        loss = sum(part.loss for part in parts) / max(1, size)
        number, rate = clocks.made + 1, parts[0].rate
        wrong = next(
            (part.poison for part in parts if part.poison), "" if math.isfinite(loss) else f"the loss is {loss}"
        )
        if wrong:
            clocks.poisoned += 1
            self._bear(wrong, number, clocks, replica, node)
            total.fill(0.0)
            yield Sample("poisoned_gradients", 1.0)
        stale = self._staleness(parts[0], total, replica, clocks, measured_gap=not wrong)
        seen = [part for part in parts if part.images and not wrong]
        if seen and seen[0].statistics.size:
            left, images = [part.statistics for part in seen], [part.images for part in seen]
            statistics.values = mean_statistics(left, images, self._model.integers)
        if seen:
            self._direct(total, seen, replica, velocity, rate)
        else:
            loss = math.nan
        scale = 1.0 if self.optimizer.scaled else rate
        if self.local:
            replica.descend(total, scale, scale=self.emits == "update")
        elif self.emits == "update":
            total *= np.float32(scale)
        if self.averages_over:
            average.follow(replica.current, self.averages_over / node.size)
        if self.measures:
            yield Sample("staleness", float(parts[0].lag))
        yield from stale.samples()
        clocks.made = number
        epoch = self._advance(parts[0], clocks)
        yield self.gradients(Gradient(number, total, size, rate))
        yield self.progress(Progress(number, clocks.images, epoch, loss, readers=parts[0].readers))
        due = self._due(self.checkpoints, clocks, node) if self.checkpoints else None
        if due is not None:
            yield due

    def on_end(self, clocks: ClocksState) -> Emissions:
        """Note that no more gradients are made, however many mini-batches were read: somebody may have dropped some."""
        clocks.over = True
        yield from ()

    def _due(self, checkpoints: Checkpoints, clocks: ClocksState, node: NodeContext) -> Checkpoint | None:
        """The checkpoint that falls due with the gradient that was made last, if any."""
        if checkpoints.at_pace:
            average = clocks.average() if self.passes is None else clocks.told() // node.size
            return checkpoints.at(average, clocks, node.size)
        number = checkpoints.due(clocks.made - 1, clocks.made, node.size)
        return None if number is None else Checkpoint(number)

    def _direct(
        self, gradient: Vector, seen: Sequence[Part], replica: VectorState, velocity: VectorState, rate: float
    ) -> None:
        """Make a direction of the sum of the parts `seen`, unless local steps have, and keep the velocity."""
        left = [part.velocity for part in seen if part.velocity is not None]
        if left:
            velocity.values = reduce(np.add, left)
        else:
            self.optimizer.direct(gradient, replica.current, velocity.values, rate)

    def _local_steps(self, batch: Batch) -> int:
        """Steps in which every shard of what comes is worked through."""
        return 1 if self.mini_batch is None else max(1, -(-batch.size // self.mini_batch))

    def _rate(self, batch: Batch, clocks: ClocksState, node: NodeContext) -> float:
        """The learning rate of the gradient of a mini-batch."""
        before = batch.epoch_before if self.passes is None else self.passes.of(clocks.come)
        return self.schedule.after(before, node.size)

    def _advance(self, part: Part, clocks: ClocksState) -> float:
        """Count the images of a step whose first part is `part`; the epochs that are made by then."""
        if self.passes is None:
            clocks.images += part.of_all
            return part.epoch
        clocks.images = max(clocks.images, clocks.come + part.of_all)  # fewer where a mini-batch is small
        return self.passes.of(clocks.images)

    def _staleness(
        self, part: Part, gradient: Vector, replica: VectorState, clocks: ClocksState, *, measured_gap: bool
    ) -> Staleness:
        """How stale a gradient is whose first part is `part`, as far as it is to be told."""
        if part.seen is None:
            return Staleness()
        lag = clocks.newer(part.seen)
        if part.replica is None or not measured_gap:
            return Staleness(lag)
        stale = measured(gradient, part.replica, replica.current, lag)
        return stale if part.velocity is None else stale._replace(normalised_gap=None)  # it is by a gradient's norm

    def _bear(self, wrong: str, number: int, clocks: ClocksState, replica: VectorState, node: NodeContext) -> None:
        """Go on after a poisoned gradient, unless there were too many of them or no other can come.

        Raises:
            OperatorError: so it is.
        """
        weights = replica.current
        if clocks.poisoned <= self.max_poison and sound(weights):
            return
        besides, fix = advice(wrong, weights)
        count = (
            f"{clocks.poisoned} poisoned gradient{'s' if clocks.poisoned > 1 else ''}, max_poison is {self.max_poison}"
        )
        what = f"{wrong} at step {number}{besides} ({count})"
        raise OperatorError(what, where=f"node {node.name}, operator compute", fix=fix)

    def _seed(self, batch: Batch, part: slice, node: NodeContext) -> int:
        """The seed of a step of a shard; not asked for in vain, since a generator takes long to make."""
        place = (part.start,) if part.start else ()
        rng = random_generator(node.seed, "compute", node.index, batch.step, batch.shard, *place)
        return int(rng.integers(1 << 63))

    def _workspace(self, images: int) -> Any:
        """A workspace that no other task uses, large enough for `images`."""
        try:
            workspace = self._workspaces.pop()
        except IndexError:
            return self._model.workspace(max(1, images))
        return workspace if workspace.batch >= images else self._model.workspace(images)
