"""Send: the operators whose messages cross to other nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import Field

from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, Operator
from dataflow.ports import In, Out
from dataflow.state import Writes
from operators.compression import Residual, Update, most_nbytes
from operators.kept import KeptState
from operators.layout import Layout
from operators.messages import Fragment, Gradient, Offer, Weights, Word
from operators.roll import RollState
from operators.schedule import Schedule
from operators.shadows import ShadowsState
from operators.window import WindowState


class SendIntervals(Operator):
    """Sends each receiver what it is offered: the sum of all gradients it has not been sent, over the offered cells.

    The sum is made when there is credit for it (late binding): offers to a slow receiver wait without growing, and
    what they stand for grows into longer intervals.

    Args:
        layout: the model's cells.
    """

    pool = "network"
    sends = True
    layout: Layout
    offers = In(Offer, key="to", latest=("to", "start", "stop"))
    fragments = Out(Fragment)
    window = Writes()

    def process(self, offer: Offer, window: WindowState, node: NodeContext) -> Emissions:
        """The fragments of one offer, each at most a frame, and what the window tells of them."""
        for start, stop in window.frames(offer.start, offer.stop):
            for interval in window.take(offer.to, start, stop):
                fragment = Fragment(
                    origin=node.index,
                    start=interval.start,
                    stop=interval.stop,
                    low=interval.low,
                    high=interval.high,
                    span=window.span,
                    skips=window.skips,
                    values=interval.values,
                    images=interval.images,
                )
                yield self.fragments(fragment, to=offer.to)
        yield from window.samples()


class SendToMembers(Operator):
    """Base of those that send to peers which may die, and be welcomed again."""

    window = Writes()
    roll = Writes()

    def on_left(self, peer: int, window: WindowState | KeptState, roll: RollState) -> Emissions:
        """Send nothing to a peer that has died, unless another in its place has been welcomed meanwhile."""
        if not roll.is_replaced(peer):
            window.leave(peer)
        yield from ()

    def on_joined(self, peer: int, roll: RollState) -> Emissions:
        """Know a peer that has come back from the one before."""
        roll.send_to(peer)
        yield from ()


class SendToPeers(SendToMembers, SendIntervals):
    """Sends a peer that has joined what it lacks, as soon as it has a model and says so."""

    begun = In(Word, key="origin")

    def process(self, message: Offer | Word, window: WindowState, node: NodeContext) -> Emissions:
        """The fragments of an offer, or all that a new peer lacks."""
        if isinstance(message, Word):
            window.begin(message.origin, message.turn, message.applied)
            message = Offer(message.origin, 0, self.layout.cells)
        yield from SendIntervals.process(self, message, window, node)


class SendWhole(SendToMembers):
    """Base of those that send every gradient whole to everybody.

    What has been sent is kept for a peer that has joined, and sent to it as soon as it has a model and says so.

    Args:
        layout: the model's cells.
    """

    pool = "network"
    sends = True
    layout: Layout
    gradients = In(Gradient)
    begun = In(Word)
    fragments = Out(Fragment)

    def _send(self, number: int, fragments: Sequence[Fragment], window: KeptState) -> Emissions:
        window.keep(number, fragments)
        for receiver in window.receivers:
            for fragment in fragments:
                yield self.fragments(fragment, to=receiver)

    def _begin(self, word: Word, window: KeptState) -> Emissions:
        for fragment in window.begin(word.origin, word.turn, word.applied):
            yield self.fragments(fragment, to=word.origin)


class SendGradients(SendWhole):
    """Sends every gradient whole to everybody: all-to-all."""

    def process(self, message: Gradient | Word, window: KeptState, node: NodeContext) -> Emissions:
        """The gradient in fragments of at most a frame, or what a new peer has missed."""
        if isinstance(message, Word):
            yield from self._begin(message, window)
            return
        low, high = message.number - 1, message.number
        fragments = []
        for start, stop in self.layout.frames(0, self.layout.cells):
            values = message.values[self.layout.weights(start, stop)]
            fragments.append(Fragment(node.index, start, stop, low, high, 0, skips=False, values=values))
        yield from self._send(high, fragments, window)


class SendCoded(SendWhole):
    """Sends everybody what a codec makes of every gradient and of what is owed of earlier ones (strom_sparse_sgd.txt).

    Args:
        rated: whether what leaves has the learning rate in it.
        updates: whether what comes has it.
        span: gradients of this node that others may lack.
        alike: whether all nodes cut their codes at the same cells, whatever these say: receivers add up what they are
            sent of one run of cells.
    """

    drained = True
    rated: bool = False
    updates: bool = False
    alike: bool = False
    span: int = Field(default=0, ge=0)
    residual = Writes()

    def process(self, message: Gradient | Word, residual: Residual, window: KeptState, node: NodeContext) -> Emissions:
        """The gradient's code in as few frames as it fits, and what it cost; or what a new peer has missed."""
        if isinstance(message, Word):
            yield from self._begin(message, window)
            return
        residual.add(message.values)
        rate = message.rate if self.rated else 1.0
        update = residual.quantise(unit=rate) if self.updates else residual.quantise(rate)
        low, high, nbytes = message.number - 1, message.number, 0
        fragments = []
        for start, stop in self.layout.fitting(0, self.layout.cells, self._most_nbytes(update, residual)):
            where = self.layout.weights(start, stop)
            code = update.encode(where.start, where.stop)
            nbytes += code.nbytes
            fragments.append(Fragment(node.index, start, stop, low, high, self.span, skips=False, values=code))
        window.owed = residual.values
        yield from self._send(high, fragments, window)
        residual.account.note(update.n_weights, update.count(0, update.n_weights), nbytes)
        yield from residual.samples()

    def _most_nbytes(self, update: Update, residual: Residual) -> Callable[[int, int], int]:
        if not self.alike:
            return update.most_nbytes
        codec, of_all = residual.codec, update.n_weights
        return lambda start, stop: most_nbytes(codec, stop - start, of_all)


class SendWeights(Operator):
    """Sends a server's weights to the worker they are for."""

    pool = "network"
    sends = True
    weights = In(Weights, key="to", capacity=1024)
    sent = Out(Weights)

    def process(self, weights: Weights) -> Emissions:
        """The weights, as they are."""
        yield self.sent(weights, to=weights.to)


class SendChanges(Operator):
    """Sends workers what a codec makes of how a server's weights have changed since each was answered last.

    Changes are divided by the rate at which a worker's gradient enters the weights, so that the codec has to do with
    gradients here as it has where they are pushed.

    Args:
        schedule: learning rate of gradients, by the number of the worker's last one.
        mean: whether the mean of all workers' gradients is applied, so that each enters at a share of the rate.
        workers: role of the workers.
    """

    pool = "network"
    sends = True
    schedule: Schedule
    mean: bool = False
    workers: str = "worker"
    weights = In(Weights, key="to", capacity=1024)
    sent = Out(Weights)
    shadows = Writes()

    def process(self, weights: Weights, shadows: ShadowsState, node: NodeContext) -> Emissions:
        """The change as a code, and what codes have cost; the first answer to a worker as it is."""
        workers = len(node.members[self.workers])
        rate = self.schedule.at(weights.clock, workers) / (workers if self.mean else 1)
        yield self.sent(shadows.answer(weights, rate), to=weights.to)
        yield from shadows.samples(weights)

    def on_left(self, worker: int, shadows: ShadowsState) -> Emissions:
        """Know nothing of a worker that has died."""
        shadows.leave(worker)
        yield from ()

    def on_joined(self, worker: int, shadows: ShadowsState) -> Emissions:
        """Know nothing of one that comes in its place: what was answered meanwhile has reached nobody."""
        shadows.leave(worker)
        yield from ()

    def on_end(self, shadows: ShadowsState) -> Emissions:
        """The last weights as they are to every worker whose replica differs, so that all end with the same."""
        for weights in shadows.rest():
            yield self.sent(weights, to=weights.to)
