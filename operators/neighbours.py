"""The operators of parameter sharing over a tree: push and pull, tell the neighbours, take in what they tell."""

from __future__ import annotations

from pydantic import Field, ValidationError

from dataflow.errors import ConfigError
from dataflow.node_context import NodeContext
from dataflow.operators_api import Adjusted, Adjustment, Emissions, EndOfData, Operator, Sample
from dataflow.ports import BoundOut, In, Out
from dataflow.state import Writes
from operators.checkpointing import Checkpoints
from operators.contribution import Contribution
from operators.enrol import Arrived
from operators.messages import Gradient, Progress
from operators.schedule import Schedule
from operators.share_clocks import ShareClocksState
from operators.shared_replica import edges_among, members_at_start
from operators.shared_replica_state import Notice, SharedReplicaState
from operators.topology import Topology
from operators.tree_changes import PLANNED


class Push(Operator):
    """Pushes a worker's updates and pulls the node's belief, every so many gradients (3.6, n_sync).

    The samples are `missing`: updates of others that the belief lacks, as far as is known; and `moved`: how far a pull
    has moved the replica.

    Args:
        every: gradients between two pushes.
        change_after: gradients of this node after which it has other neighbours, if any are declared, unless it hears
            of the change before; None: before its end.
    """

    pool = "network"
    every: int = Field(default=1, ge=1)
    change_after: int | None = Field(default=None, ge=1)
    gradients = In(Gradient)
    notices = Out(Notice)
    adjusted = Out(Adjusted, reported=True)
    replica = Writes()
    clocks = Writes()

    def process(self, gradient: Gradient, replica: SharedReplicaState, clocks: ShareClocksState) -> Emissions:
        """Push and pull, if it is time, and say who is to be told."""
        due = self.change_after is not None and gradient.number >= self.change_after
        changes, pushes = due and replica.changes.planned, gradient.number % self.every == 0
        if changes:
            replica.rewire(PLANNED)
            yield from _tell(self.adjusted, replica)
        if pushes:
            replica.push()
            yield Sample("moved", replica.pull())
        if changes or pushes:
            yield from map(self.notices, replica.react(clocks))
        yield Sample("missing", float(replica.sharing.missing()))

    def on_end(self, replica: SharedReplicaState, clocks: ShareClocksState) -> Emissions:
        """Push what is left; nothing more comes from this node."""
        replica.push()
        replica.end()
        yield from _tell(self.adjusted, replica)
        yield from map(self.notices, replica.react(clocks))


class PushMean(Push):
    """Adds a worker's share of a step along the mean of all workers' gradients to x: bulk-synchronous rounds.

    The replica is pulled once all shares of a round are there.

    Args:
        schedule: learning rate of the mean gradient, by the step's number.
    """

    schedule: Schedule

    def process(  # type: ignore[override]
        self, gradient: Gradient, replica: SharedReplicaState, clocks: ShareClocksState, node: NodeContext
    ) -> Emissions:
        """Take in a gradient, and say who is to be told."""
        replica.sharing.add(gradient.values, scale=-self.schedule.at(gradient.number, node.size) / node.size)
        yield from map(self.notices, replica.react(clocks))


class SendContributions(Operator):
    """Tells neighbours what they are to be told: the newest sum, made when there is credit for it."""

    pool = "network"
    sends = True
    notices = In(Notice, key="to", latest=("to", "turn"))
    contributions = Out(Contribution)
    replica = Writes()

    def process(self, notice: Notice, replica: SharedReplicaState, node: NodeContext) -> Emissions:
        """The sum, or a note, in messages of at most a frame."""
        for contribution in replica.take(notice, node.size):
            yield self.contributions(contribution, to=notice.to)
        yield from replica.messages.samples()


class ReceiveContributions(Operator):
    """Takes in what neighbours tell, in the order in which they did."""

    pool = "network"
    receives = True
    arriving = In(Contribution)
    contributions = Out(Contribution)

    def process(self, contribution: Contribution) -> Emissions:
        """What came, as it came."""
        yield self.contributions(contribution)


class Absorb(Operator):
    """Puts what a neighbour tells in the place of its mirror, and says who is to be told of that.

    Once all that reaches the node is final, and nobody needs it any more, it pulls, emits nothing more, and waits for
    the others' end.

    If the tree is changed, the sample `rewired` are the gradients from then until all new neighbours have spoken, in
    which the replica goes on by itself.

    Args:
        role: of the nodes.
        period_s: seconds between two looks at what neighbours have not been told; 0: they are told of each change.
        checkpoints: when the node's state is kept once it makes no more gradients and others do; never if None.
    """

    pool = "network"
    role: str = "worker"
    period_s: float = Field(default=0.0, ge=0)
    checkpoints: Checkpoints | None = None
    contributions = In(Contribution)
    notices = Out(Notice)
    finished = Out(Progress)
    adjusted = Out(Adjusted, reported=True)
    arrived = Out(Arrived)
    replica = Writes()
    clocks = Writes()

    def process(
        self, contribution: Contribution, replica: SharedReplicaState, clocks: ShareClocksState, node: NodeContext
    ) -> Emissions:
        """Who is to be told, once the neighbour has told all."""
        if replica.over:
            yield EndOfData()
        elif replica.hear(contribution):
            yield from self._react(replica, clocks)
            due = self.checkpoints.at(clocks.average(), clocks, node.size) if self.checkpoints and clocks.over else None
            if due is not None:
                yield due
        else:
            yield from self._tell_arrivals(replica)
            yield from _tell(self.adjusted, replica)

    def on_adjust(
        self, adjustment: Adjustment, replica: SharedReplicaState, clocks: ShareClocksState, node: NodeContext
    ) -> Emissions:
        """Get ready for another tree, and change to it once all are ready."""
        if replica.over:
            return
        if adjustment.stage == "prepare":
            try:
                edges = edges_among(Topology.model_validate_json(adjustment.text), members_at_start(node, self.role))
            except (ConfigError, ValidationError) as error:
                replica.changes.refuse(adjustment.number, " ".join(str(error).split()))
            else:
                replica.prepare(adjustment.number, edges)
        else:
            replica.decide(adjustment.number, make=adjustment.stage == "make")
        yield from self._react(replica, clocks)

    @property
    def timer_s(self) -> float:
        """The period."""
        return self.period_s

    def on_timer(self, replica: SharedReplicaState) -> Emissions:
        """Who has not been told what has changed."""
        if not replica.over:
            yield from map(self.notices, replica.tick())

    def on_left(self, node: int, replica: SharedReplicaState, clocks: ShareClocksState) -> Emissions:
        """Wait for a node that has ended no more; of one that has died, take over what it held."""
        if not replica.over:
            replica.lose(node)
            yield from self._react(replica, clocks)

    def on_joined(self, node: int, replica: SharedReplicaState, clocks: ShareClocksState) -> Emissions:
        """Say whether a node that has come may join this one, or where this one means to join."""
        if replica.over:
            yield EndOfData()  # else the one that has come would wait for this one, and this one for it
        else:
            replica.greet(node)
            yield from self._react(replica, clocks)

    def on_end(self, replica: SharedReplicaState) -> Emissions:
        """Pull: nobody has anything more to tell; if others go on without this node, give them all that it has."""
        replica.pull()
        yield from map(self.notices, replica.leave())

    def _react(self, replica: SharedReplicaState, clocks: ShareClocksState) -> Emissions:
        yield from map(self.notices, replica.react(clocks))
        yield from self._tell_arrivals(replica)
        yield from _tell(self.adjusted, replica)
        if replica.over:
            replica.pull()
            yield EndOfData()

    def _tell_arrivals(self, replica: SharedReplicaState) -> Emissions:
        for node, number, images, late in replica.arrivals():
            yield self.arrived(Arrived(node, number, images, late))


def _tell(port: BoundOut[Adjusted], replica: SharedReplicaState) -> Emissions:
    """What there is to tell of changes of the tree."""
    for told in replica.reports():
        yield port(told) if isinstance(told, Adjusted) else told
