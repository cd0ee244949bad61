"""What a job process tells its master of besides reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkBroken:
    """There has been no connection to node number `peer`, as this incarnation, for too long, and why."""

    peer: int
    reason: str
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Paused:
    """The process did nothing for a while, and takes nothing in until it is told that it is a member still.

    Pauses are numbered from 1: what was on its way before is no answer.
    """

    number: int


Trouble = LinkBroken | Paused
