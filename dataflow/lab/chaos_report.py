"""What a chaos run has shown: which faults were noticed, how soon nodes were back, and how fast the job went on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from dataflow.lab.chaos import Kind
from dataflow.lab.chaos_injector import Injected
from dataflow.observe.events import JobEvent, NodeChange

_BURIED: Final = frozenset({"dying", "waiting", "away", "gone"})
_JOINED: Final = "alive"
_FIRST_S = 1.0
_LATE_S: Final = 4.0
"""Seconds after the end of a fault in which a node may still be buried for it: for a broken link, 2 s and a quarter."""

_AFTER_S, _BEFORE_S = 8.0, 8.0


@dataclass(frozen=True, slots=True)
class Counted:
    """How many gradients an incarnation of a node had made, and when, in seconds since 1970-01-01 UTC."""

    at_s: float
    steps: int


Counts = Mapping[tuple[int, int], Sequence[Counted]]
"""By node and incarnation, in the order of time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a fault.

    Args:
        injected: the fault.
        buried: the node that lost its place by it; None if none did.
        reason: why, as the master tells it.
        detected_s: seconds from the fault until it was buried.
        joined_s: until it was a member again.
        contributing_s: until it was known to have made gradients again, which nodes tell once a second.
        others_kept: of the gradients per second that the other nodes made before, those that they made after the first
            second.
    """

    injected: Injected
    buried: int | None = None
    reason: str = ""
    detected_s: float | None = None
    joined_s: float | None = None
    contributing_s: float | None = None
    others_kept: float | None = None


def counts(events: Iterable[JobEvent]) -> Counts:
    """How far each incarnation was when, by its own clock: what it told arrives late where the master was away."""
    told: dict[tuple[int, int], list[tuple[float, float, int]]] = {}
    for event in events:
        if (each := event.statistics) is not None:
            told.setdefault((each.node, each.incarnation), []).append((event.wall_s, each.running_s, each.steps))
    return {
        key: [Counted(start_s + running_s, steps) for _, running_s, steps in points]
        for key, points in told.items()
        for start_s in [min(wall_s - running_s for wall_s, running_s, _ in points)]
    }


def outcomes(injected: Sequence[Injected], events: Sequence[JobEvent]) -> list[Outcome]:
    """What came of each fault, in their order. A death belongs to the last fault before it that could be its cause."""
    counted = counts(events)
    changes = [event.change for event in events if event.change is not None]
    used = set[int]()
    found = []
    for number, each in enumerate(injected):
        next_s = injected[number + 1].began_s if number + 1 < len(injected) else float("inf")
        death = next(
            (index for index, change in enumerate(changes) if index not in used and _is_death(change, each)), None
        )
        if death is None:
            found.append(Outcome(each, others_kept=_kept(counted, each.began_s, set(), next_s)))
            continue
        used.add(death)
        change = changes[death]
        node, back = change.node, [later for later in changes[death + 1 :] if later.node == change.node]
        used |= {index for index in range(death + 1, len(changes)) if _same_death(changes[index], change)}
        joined = next((later for later in back if later.life == _JOINED), None)
        found.append(
            Outcome(
                each,
                node,
                change.reason.partition("\n")[0],
                change.wall_s - each.began_s,
                None if joined is None else joined.wall_s - each.began_s,
                None if joined is None else _contributing(counted, node, joined.incarnation, each.began_s),
                _kept(counted, each.began_s, {node}, next_s),
            )
        )
    return found


def unexplained(injected: Sequence[Injected], events: Sequence[JobEvent]) -> list[str]:
    """Deaths of nodes that no fault explains, in words."""
    changes = [event.change for event in events if event.change is not None and event.change.life in _BURIED]
    return [
        f"node {change.node} died although nothing befell it: {change.reason}"
        for change in changes
        if change.reason and not any(_is_death(change, each) for each in injected)
    ]


def throughput_kept(counted: Counts, start_s: float, first_fault_s: float, end_s: float, nodes: int) -> float | None:
    """Gradients made from the first fault to the end, of those that all nodes would have made at the pace before."""
    before = _rate(counted, start_s + _FIRST_S, first_fault_s, set())
    if not before:
        return None
    made = sum(
        later.steps - earlier.steps
        for points in counted.values()
        for earlier, later in pairwise(points)
        if earlier.at_s >= first_fault_s - _FIRST_S and later.at_s <= end_s
    )
    return made / (before * nodes * (end_s - first_fault_s))


def middle(values: Iterable[float | None]) -> tuple[float, float] | None:
    """The median and the largest of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return (median(known), max(known)) if known else None


def _is_death(change: NodeChange, each: Injected) -> bool:
    """Whether a fault may be why a node was buried."""
    if change.life not in _BURIED or not each.hit or not each.began_s <= change.wall_s <= each.ended_s + _LATE_S:
        return False
    return change.node in each.fault.hosts or each.fault.kind is Kind.MASTER


def _same_death(change: NodeChange, first: NodeChange) -> bool:
    """Whether a change tells of the same death as an earlier one: a node is dying, and then waits."""
    return change.node == first.node and change.incarnation == first.incarnation and change.life in _BURIED


def _contributing(counted: Counts, node: int, incarnation: int, since_s: float) -> float | None:
    points = counted.get((node, incarnation), ())
    return next((point.at_s - since_s for point in points if point.steps), None)


def _kept(counted: Counts, at_s: float, without: set[int], next_s: float) -> float | None:
    before = _rate(counted, at_s - _BEFORE_S, at_s, without)
    after = _rate(counted, at_s + _FIRST_S, min(next_s, at_s + _AFTER_S), without)
    return after / before if before and after is not None else None


def _rate(counted: Counts, from_s: float, to_s: float, without: set[int]) -> float | None:
    """Gradients per second of a node, on average, in what it counted inside of a time."""
    steps, seconds = 0, 0.0
    for (node, _), points in counted.items():
        for earlier, later in pairwise(points):
            if node not in without and earlier.at_s >= from_s and later.at_s <= to_s:
                steps, seconds = steps + later.steps - earlier.steps, seconds + later.at_s - earlier.at_s
    return steps / seconds if seconds else None
