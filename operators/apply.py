"""Apply: other nodes' updates to this node's replica."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
from pydantic import Field, PrivateAttr

from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, Operator, Sample
from dataflow.ports import In, Out
from dataflow.state import Writes
from operators.barrier import BarrierState, Mean
from operators.checkpointing import Checkpoints
from operators.clocks import ClocksState
from operators.compression import Codec, Residual, add
from operators.fragments import decoded, subtract
from operators.layout import Layout
from operators.messages import Code, Enough, Fragment, Progress, Weights, Word
from operators.passes import Passes
from operators.quarantine import refused, zeros
from operators.roll import RollState
from operators.schedule import Schedule
from operators.staleness import Staleness
from operators.vector_state import VectorState


class Apply(Operator):
    """Subtracts every fragment from the replica as it comes (ako.txt, algorithm 1, lines 12 to 14).

    What its own node sends itself, that is sent at once: it spans no gradients. A fragment that is not finite counts as
    zeros, with the sample `poisoned_fragments`.

    Args:
        layout: the model's cells.
    """

    pool = "network"
    layout: Layout
    fragments = In(Fragment)
    finished = Out(Progress)
    replica = Writes()
    clocks = Writes()

    def process(self, fragment: Fragment, replica: VectorState, clocks: ClocksState, node: NodeContext) -> Emissions:
        """Apply a fragment, unless its interval does not follow what was applied before."""
        cells, span = slice(fragment.start, fragment.stop), 0 if fragment.origin == node.index else fragment.span
        fits = clocks.advance(fragment.origin, cells, fragment.low, fragment.high, span=span, skips=fragment.skips)
        if fits and refused(fragment):
            yield Sample("poisoned_fragments", 1.0)
        elif fits:
            subtract(fragment, replica.values[self.layout.weights(fragment.start, fragment.stop)])
        else:
            yield Sample("rejected_fragments", float(clocks.rejected))

    def on_left(self, origin: int, clocks: ClocksState) -> Emissions:
        """Wait for a node that has ended no more; gradients that not all cells have got are lost with one that died."""
        lost = clocks.leave(origin)
        if lost:
            yield Sample("lost_gradients", float(lost))

    def on_joined(self, origin: int, clocks: ClocksState) -> Emissions:
        """Expect another node's gradients in the place of one that has died."""
        clocks.join(origin)
        yield from ()


class ApplyFromPeers(Apply):
    """Applies the fragments of a peer that has joined as well, which is welcomed once this expects them.

    Args:
        checkpoints: when the node's state is kept once it makes no more gradients and others do; never if None.
    """

    checkpoints: Checkpoints | None = None
    roll = Writes()

    def process(self, fragment: Fragment, replica: VectorState, clocks: ClocksState, node: NodeContext) -> Emissions:
        """See `Apply`."""
        yield from super().process(fragment, replica, clocks, node)
        if clocks.over and self.checkpoints is not None:
            due = self.checkpoints.at(clocks.average(), clocks, node.size)
            if due is not None:
                yield due

    def on_joined(  # type: ignore[override]
        self, origin: int, clocks: ClocksState, roll: RollState
    ) -> Emissions:
        """Expect another node's gradients in the place of one that has died, and say so."""
        clocks.join(origin)
        roll.follow(origin)
        yield from ()


class ApplyMean(Operator):
    """Takes a step along the mean of all nodes' gradients once all have come: bulk-synchronous all-to-all.

    A fragment that is not finite counts as zeros, with the sample `poisoned_fragments`.

    Args:
        layout: the model's cells.
        schedule: learning rate of the mean gradient, by the step's number.
    """

    pool = "network"
    layout: Layout
    schedule: Schedule
    fragments = In(Fragment)
    begun = In(Word)
    finished = Out(Progress)
    replica = Writes()
    clocks = Writes()
    barrier = Writes()
    roll = Writes()

    def process(
        self,
        message: Fragment | Word,
        replica: VectorState,
        clocks: ClocksState,
        barrier: BarrierState,
        node: NodeContext,
    ) -> Emissions:
        """Take in a contribution and apply the mean if it was the last; or go on where a node has begun, or ended."""
        if isinstance(message, Word):
            for mean in barrier.release(clocks.since, clocks.last):
                self._apply(mean, replica, clocks, node)
            return
        where = self.layout.weights(message.start, message.stop)
        if refused(message):
            message = zeros(message)
            yield Sample("poisoned_fragments", 1.0)
        mean_now = barrier.add(decoded(message, where.stop - where.start), clocks.since, clocks.last)
        if mean_now is not None:
            self._apply(mean_now, replica, clocks, node)

    def on_left(
        self, origin: int, replica: VectorState, clocks: ClocksState, barrier: BarrierState, node: NodeContext
    ) -> Emissions:
        """Go on without a node that has ended."""
        clocks.leave(origin)
        for mean in barrier.leave(origin, clocks.since, clocks.last):
            self._apply(mean, replica, clocks, node)
        yield from ()

    def on_joined(self, origin: int, clocks: ClocksState, roll: RollState) -> Emissions:
        """Expect another node's gradients in the place of one that has died, from where it says on."""
        clocks.join(origin)
        roll.follow(origin)
        yield from ()

    def _apply(self, mean: Mean, replica: VectorState, clocks: ClocksState, node: NodeContext) -> None:
        rate = np.float32(self.schedule.at(mean.number, node.size))
        replica.values[self.layout.weights(mean.start, mean.stop)] -= mean.values * rate
        for origin in mean.contributors:
            clocks.reach(origin, slice(mean.start, mean.stop), mean.number)


class Load(Operator):
    """Takes over the weights that parameter servers send.

    A code says how they have changed since the servers sent some last: `pulled`. Bind it to the replica where nothing
    else writes to that; a worker that updates its replica between two answers keeps a copy. The samples `lag`, `gap`
    and `normalised_gap` are what the server says of the staleness of this worker's gradients.

    Args:
        layout: the model's cells.
        epochs: epochs of all workers after which this one need make no more; no bound if None.
        passes: how many images are an epoch; needed with `epochs`.
        codec: what made codes of changes, to be compiled before any comes; None: weights come as they are.
        servers: role of the servers.
    """

    pool = "network"
    layout: Layout
    epochs: float | None = Field(default=None, gt=0)
    passes: Passes | None = None
    codec: Codec | None = None
    servers: str = "server"
    weights = In(Weights)
    finished = Out(Progress)
    enough = Out(Enough)
    replica = Writes()
    pulled = Writes()
    clocks = Writes()

    _budget: float = PrivateAttr(default=math.inf)

    def open(self, node: NodeContext) -> None:
        """Compile what decodes."""
        if self.codec:
            Residual.compile(self.codec)
        if self.epochs is not None and self.passes is not None:
            self._budget = self.passes.budget(self.epochs)

    def process(self, weights: Weights, replica: VectorState, pulled: VectorState, clocks: ClocksState) -> Emissions:
        """Overwrite the cells sent."""
        where = self.layout.weights(weights.start, weights.stop)
        if refused(weights):
            yield Sample("poisoned_fragments", 1.0)
        elif weights.values.dtype == np.uint8:
            add(pulled.values[where], cast("Code", weights.values))
        else:
            pulled.values[where] = weights.values
        if pulled is not replica:
            replica.values[where] = pulled.current[where]
        clocks.reach(weights.origin, slice(weights.start, weights.stop), weights.clock)
        clocks.of_all, clocks.come = max(clocks.of_all, weights.of_all), max(clocks.come, weights.images)
        if weights.images >= self._budget:
            clocks.enough = True
            yield self.enough(Enough())
        yield from Staleness(weights.lag, weights.gap, weights.normalised_gap).samples()

    def on_joined(self, member: int, clocks: ClocksState, node: NodeContext) -> Emissions:
        """Wait for no answer of a server that has died to what it was pushed: that is lost with it."""
        if member in clocks.origins and member in node.members[self.servers]:
            lost = clocks.made - int(clocks.applied(member).min())
            clocks.reach(member, slice(None), clocks.made)
            yield Sample("lost_gradients", float(lost))
