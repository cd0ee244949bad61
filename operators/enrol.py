"""The roll of the workers of a tree: who is there, and where one that joins late goes on."""

from __future__ import annotations

from dataclasses import dataclass

from dataflow.errors import BeginAnewError
from dataflow.message import Message, Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, EndOfData, Operator
from dataflow.ports import In, Out
from dataflow.state import Writes
from operators.attend import RollKeeper
from operators.clocks import ClocksState
from operators.contribution import Contribution
from operators.course import CourseState
from operators.roll import RollState
from operators.shared_replica_state import SharedReplicaState

_NOBODY = "what was learnt is in the job's checkpoints only: see checkpoint_every and ako resume"


@dataclass(frozen=True, slots=True)
class Arrived(Message):
    """That a node has joined the tree, or has not yet; of this node: that it is too late for it.

    Args:
        member: the node.
        number: of the gradient behind which it goes on.
        images: that its role had seen then.
        late: it has not joined.
    """

    member: int
    number: int
    images: int
    late: bool


class Enrol(RollKeeper):
    """Keeps the roll of the workers of a tree, and has this one go on where the node is that it has joined.

    One that is too late makes no gradients. What it has is no model: if all that had joined have died it dies, too, and
    the job begins again.
    """

    arrived = In(Arrived)
    course = Writes()
    clocks = Writes()

    def process(
        self, arrived: Arrived, roll: RollState, course: CourseState, clocks: ClocksState, node: NodeContext
    ) -> Emissions:
        """Note who has joined.

        Raises:
            BeginAnewError: this node is too late, as all that had joined have died, and not ended.
        """
        if arrived.member != node.index:
            (roll.late.add if arrived.late else roll.late.discard)(arrived.member)
        elif arrived.late:
            roll.idle = True
            _require_somebody(roll)
        elif not roll.settled:
            clocks.made, clocks.images = arrived.number, arrived.images
            course.start(arrived.number)
            roll.settle()
        yield from ()

    def on_left(self, member: int, roll: RollState, *, ended: bool) -> Emissions:  # type: ignore[override]
        """Note that a member has died, of which this node may have heard as being too late before, or has ended.

        Raises:
            BeginAnewError: as above.
        """
        roll.leave(member, ended=ended and member not in roll.late)
        _require_somebody(roll)
        yield from ()


def _require_somebody(roll: RollState) -> None:
    if roll.idle and not roll.too_late and roll.late.issuperset(roll.peers):
        what = "all nodes that had joined the tree have died before this one had"
        raise BeginAnewError(what, fix=_NOBODY)


class Stay(Operator):
    """Keeps a node of a tree there while it may still be joined, though no other node is; it never says anything."""

    pool = "network"
    source = True
    sends = True
    presence = Out(Contribution)
    replica = Writes()

    def ready(self, replica: SharedReplicaState) -> bool:
        """Whether nobody needs this node any more."""
        return replica.over

    def process(self, _tick: Tick) -> Emissions:
        """The end."""
        yield EndOfData()
