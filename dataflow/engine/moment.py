"""One event at its engine: when it happened, and what has been said about it so far."""

from __future__ import annotations

from dataclasses import dataclass

from dataflow.engine.events import Command


@dataclass(init=False, slots=True, eq=False)
class Moment:
    """What all parts of an engine share while it handles an event.

    Args:
        now: seconds on the driver's clock.
        commands: what is to be done.
    """

    now: float
    commands: list[Command]

    def __init__(self) -> None:
        self.now, self.commands = 0.0, []

    def begin(self, now: float) -> list[Command]:
        """Another event has happened; returns the list for what is to be done about it."""
        self.now, self.commands = now, []
        return self.commands
