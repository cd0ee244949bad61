"""Pulling: how a worker of parameter servers that comes back gets the model, and where it goes on."""

from __future__ import annotations

import numpy as np

from dataflow.message import Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, EndOfData, Operator
from dataflow.ports import In, Out
from dataflow.state import Writes
from operators.attend import RollKeeper
from operators.clocks import ClocksState
from operators.course import CourseState
from operators.layout import Sharding
from operators.messages import Enough, Fragment, Progress
from operators.receive import ReceiveWeights
from operators.roll import RollState
from operators.window import WindowState


class Pull(Operator):
    """Asks every server for its weights, if the node has come back, and goes on once it has them all.

    It asks with a fragment of no gradients. Its gradients go on behind those of the worker that is furthest. If a
    server is through, and answers no more, others make no more gradients either: then the node makes none.

    Args:
        sharding: the model's division over the servers.
        servers: their role.
    """

    pool = "network"
    source = True
    sends = True
    ends_itself = True
    catches_up = True
    sharding: Sharding
    servers: str = "server"
    asks = Out(Fragment)
    roll = Writes()
    course = Writes()
    window = Writes()
    clocks = Writes()

    def ready(self, roll: RollState, clocks: ClocksState) -> bool:
        """Whether there is nothing to wait for, or no longer."""
        return roll.settled or not roll.lent or roll.too_late or clocks.slowest() >= 0

    def process(
        self,
        _tick: Tick,
        roll: RollState,
        course: CourseState,
        window: WindowState,
        clocks: ClocksState,
        node: NodeContext,
    ) -> Emissions:
        """Ask, the first time; then go on."""
        if roll.settled:
            yield EndOfData()
        elif roll.too_late:
            roll.idle = True
            yield EndOfData()
        elif not roll.lent:
            roll.lent = True
            for server in node.members[self.servers]:
                yield from self._ask(server, node)
        else:
            number = clocks.furthest()
            roll.settle()
            clocks.made = number
            for server in clocks.origins:
                clocks.reach(server, slice(None), number)
            course.start(number)
            window.start(number)

    def on_joined(self, member: int, roll: RollState, node: NodeContext) -> Emissions:
        """Ask a server again that has come back, and has not heard of it."""
        if roll.lent and not roll.settled and member in node.members[self.servers]:
            yield from self._ask(member, node)

    def _ask(self, server: int, node: NodeContext) -> Emissions:
        for start, stop in self.sharding.pieces(node.members[self.servers], server):
            nothing = np.zeros(0, np.float32)
            yield self.asks(Fragment(node.index, start, stop, 0, 0, 0, skips=True, values=nothing), to=server)


class ReceiveAnswers(ReceiveWeights):
    """As `ReceiveWeights`; and notes when a server is through: who has not its part of the model then never gets it."""

    roll = Writes()

    def on_left(self, _server: int, roll: RollState, *, ended: bool) -> Emissions:
        """Note that a server is through. One that has died comes back."""
        roll.too_late = roll.too_late or ended
        yield from ()


class AttendUntilEnough(RollKeeper):
    """As `Attend`; and once it is told that there are enough gradients of all nodes, has its own make no more."""

    finished = In(Progress)
    enough = In(Enough)
    course = Writes()

    def process(self, _message: Progress | Enough, roll: RollState) -> Emissions:
        """Note it."""
        roll.idle = True
        yield from ()

    def on_joined(  # type: ignore[override]
        self, member: int, roll: RollState, course: CourseState
    ) -> Emissions:
        """Note that a member has come back; where no more gradients are made it may be too late for a model."""
        yield from super().on_joined(member, roll)
        if not (roll.idle or course.closed):
            roll.late.discard(member)
