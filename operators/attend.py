"""Keeping the roll: who of the workers is there, as their node hears of it."""

from __future__ import annotations

from dataflow.operators_api import Emissions, Operator
from dataflow.ports import In
from dataflow.state import Writes
from operators.messages import Progress
from operators.roll import RollState


class RollKeeper(Operator):
    """Notes who has died, and who has come: that one is late at first."""

    pool = "network"
    roll = Writes()

    def on_left(self, member: int, roll: RollState) -> Emissions:
        """Note that a member has died."""
        roll.leave(member)
        yield from ()

    def on_joined(self, member: int, roll: RollState) -> Emissions:
        """Note that a member has come."""
        roll.join(member)
        yield from ()


class Attend(RollKeeper):
    """Keeps the roll of workers that say nothing to each other: one that comes back has its turns at once."""

    finished = In(Progress)

    def process(self, _progress: Progress) -> Emissions:
        """Nothing ever comes: the port keeps this operator there for as long as what it is joined to."""
        yield from ()

    def on_joined(self, member: int, roll: RollState) -> Emissions:
        """Note that a member has come back."""
        yield from super().on_joined(member, roll)
        roll.late.discard(member)
