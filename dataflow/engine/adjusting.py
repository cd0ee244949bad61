"""Changes of a running job: all its nodes make one, or none does; one after the other. No thread, socket or clock.

Nodes are told what is wanted (``prepare``). Once all have said that they are ready, all are told to ``make`` it; if one
refuses or ends before, to ``drop`` it. A change may also be planned by the job itself: nodes then begin it without
being told, and it is followed like any other. Invariant: at most one change that was asked for is under way.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from dataflow.engine.coordination import AdjustNodes, Command, TellAdjustment
from dataflow.engine.membership import Life, Membership
from dataflow.reports import OperatorReport

PLANNED: Final = 1
"""Number of a change that the job has planned itself, if it has; those that are asked for are numbered from 2."""


def tells_of_change(report: OperatorReport) -> bool:
    """Whether a report is a `dataflow.operators_api.Adjusted`."""
    return "adjustment" in report.fields


@dataclass(slots=True)
class _Change:
    """A change that is under way.

    Args:
        unprepared: nodes that have not said that they are ready.
        unsettled: nodes that have something left to do.
        begun_s: when each node began to make it.
        took_s: seconds that this took on each node.
        touched: nodes that had something to change.
    """

    unprepared: set[int]
    unsettled: set[int]
    begun_s: dict[int, float] = field(default_factory=dict)
    took_s: dict[int, float] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)


class Adjusting:
    """The changes of one job.

    Args:
        nodes: those that make them.
    """

    def __init__(self, nodes: Collection[int]) -> None:
        self.nodes = tuple(sorted(nodes))
        self.newest = PLANNED
        """Number of the newest change that was asked for."""
        self._operation = ""
        self._changes: dict[int, _Change] = {}

    @property
    def under_way(self) -> bool:
        """Whether nodes are told of a change, or make one."""
        return bool(self._changes)

    def is_known(self, operation_id: str) -> bool:
        """Whether this is the operation that asked for the newest change."""
        return operation_id == self._operation

    def objection(self, nodes: Membership, names: Sequence[str]) -> str:
        """Why a running job cannot be changed now; empty if it can."""
        if not self.nodes:
            return "nothing of this job can be changed while it runs"
        if self.under_way:
            return "a change is under way already"
        for node in self.nodes:
            each = nodes[node]
            if each.life in (Life.LEFT, Life.GONE):
                return f"it is without {names[node]}, and of a tree that lacks a node nothing is changed any more"
            if each.leaves_since is not None:
                return f"{names[node]} leaves"
            if each.life is not Life.ALIVE or not each.running:
                return f"{names[node]} is {'through' if each.life is Life.ENDED else 'not there'}"
        return ""

    def objection_to_drain(self, nodes: Membership, node: int, names: Sequence[str]) -> str:
        """Why a node cannot leave a job whose nodes make changes, and when to ask again; empty if it can.

        Nodes that have come while the job ran make none, and are parts of the tree as others are.
        """
        if not self.nodes or nodes[node].leaves_since is not None:
            return ""
        if self.under_way:
            return "a change of the running job is under way; ask again once it is settled"
        for other in nodes.those(Life.JOINING, Life.ALIVE):
            if nodes[other].leaves_since is not None:
                return f"{names[other]} leaves the tree; ask again once it has left"
        return ""

    def ask(self, operation_id: str, text: str) -> list[Command]:
        """Begin a change, while none is under way."""
        self.newest, self._operation = self.newest + 1, operation_id
        self._changes[self.newest] = _Change(set(self.nodes), set(self.nodes))
        return [TellAdjustment(self.newest, "asked"), AdjustNodes(self.nodes, self.newest, "prepare", text)]

    def take(self, node: int, who: str, report: OperatorReport, now: float) -> list[Command]:
        """What a node, which is called `who`, says of a change."""
        number, stage, why = (report.fields.get(name) for name in ("adjustment", "stage", "why"))
        if number == PLANNED and stage == "begun":
            self._changes.setdefault(PLANNED, _Change(set(), set(self.nodes)))
        change = self._changes.get(number) if isinstance(number, int) else None
        if change is None or not isinstance(number, int):
            return []
        match stage:
            case "ready" if node in change.unprepared:
                change.unprepared.discard(node)
                return [] if change.unprepared else [AdjustNodes(self.nodes, number, "make")]
            case "refused":
                return self.drop(f"{who}: {why}")
            case "begun":
                first = not change.begun_s
                change.begun_s[node] = now
                if report.fields.get("touched"):
                    change.touched.add(node)
                return [TellAdjustment(number, "begun")] if first else []
            case "settled":
                change.took_s[node] = now - change.begun_s.get(node, now)
                change.unsettled.discard(node)
                return [] if change.unsettled else [self._settle(number)]
        return []

    def lose(self, node: int, who: str) -> list[Command]:
        """A node has died, which is called `who`: what it was to do is not waited for."""
        commands = self.drop(f"{who} has died")
        for number, change in list(self._changes.items()):
            change.unsettled.discard(node)
            if not change.unsettled:
                commands.append(self._settle(number))
        return commands

    def give_up(self, reason: str) -> list[Command]:
        """Have nobody be waited for: the nodes that were to make changes are gone, and with them what they had made."""
        dropped = [TellAdjustment(number, "dropped", reason) for number in self._changes if number != PLANNED]
        self._changes.clear()
        return list[Command](dropped)

    def drop(self, reason: str) -> list[Command]:
        """Have a change that may still be dropped not be made."""
        if self.newest not in self._changes or not self._changes[self.newest].unprepared:
            return []
        del self._changes[self.newest]
        return [AdjustNodes(self.nodes, self.newest, "drop"), TellAdjustment(self.newest, "dropped", reason)]

    def _settle(self, number: int) -> Command:
        change = self._changes.pop(number)
        inside = [took_s for node, took_s in change.took_s.items() if node in change.touched]
        outside = [took_s for node, took_s in change.took_s.items() if node not in change.touched]
        touched = tuple(sorted(change.touched))
        return TellAdjustment(number, "settled", "", touched, max(inside, default=0.0), max(outside, default=0.0))
