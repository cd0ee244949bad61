"""What operators ask for by name: state elements, random numbers and where they are.

The same on all nodes, of which there may be thousands in one process: so all nodes share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from dataflow.graph.specs import UseSpec
from dataflow.operators_api import HOOKS, needs


class Needs:
    """State elements that a task is given: snapshots of `reads`, the live elements of `writes`; `all` are both."""

    def __init__(self, reads: frozenset[str] = frozenset(), writes: frozenset[str] = frozenset()) -> None:
        self.reads, self.writes, self.all = reads, writes, reads | writes

    def __or__(self, other: Needs) -> Needs:
        return Needs(self.reads | other.reads, self.writes | other.writes)

    def without_writes(self) -> Needs:
        """The same elements, all as snapshots."""
        return Needs(self.all)


class Asked:
    """What the hooks of one operator ask for.

    Args:
        kind: its class.
        uses: its state elements.

    Attributes:
        arguments: by hook, names with the state element that each stands for, if it does, and whether it is written.
        draws: hooks that ask for random numbers.
    """

    def __init__(self, kind: Any, uses: Sequence[UseSpec]) -> None:
        elements = {use.name: use.element for use in uses}
        written = {use.name for use in uses if use.writes}
        asked = {hook: needs(getattr(kind, hook), hook) for hook in HOOKS if hasattr(kind, hook)}
        self.arguments: dict[str, list[tuple[str, str | None, bool]]] = {
            hook: [(name, elements.get(name), name in written) for name in names] for hook, names in asked.items()
        }
        self.draws = frozenset(hook for hook, names in asked.items() if "rng" in names and "rng" not in elements)

    def needs(self, hook: str) -> Needs:
        """State elements that a hook asks for."""
        asked = [(element, writes) for _, element, writes in self.arguments.get(hook, ()) if element is not None]
        return Needs(
            frozenset(element for element, writes in asked if not writes),
            frozenset(element for element, writes in asked if writes),
        )


class ChainNeeds:
    """What the tasks of a chain need.

    Args:
        members: what its operators ask for, in order.
        gather: whether it gathers.

    Attributes:
        all: what any task needs.
        gate: what `ready` asks for.
        process: of a message; the parts of a step, and its merge, share snapshots.
        merge: of the merge of a step.
        process_only: what the parts of a step read and the merge does not.
        start: what has to be free for a message.
        left, end, joined, rates, timer, adjust: of these hooks, and of the messages that they may send down the chain.
    """

    def __init__(self, members: Sequence[Asked], *, gather: bool) -> None:
        self._members, first = members, members[0]
        self.all = _together(member.needs(hook) for member in members for hook in HOOKS)
        self.gate = _together(member.needs("ready") for member in members)
        self.merge = Needs(writes=first.needs("merge").writes)
        asked = _together(member.needs("process") for member in members)
        self.process = asked.without_writes() | Needs(first.needs("merge").reads) if gather else asked
        self.process_only = self.process.reads - first.needs("merge").reads
        self.start = self.process | self.gate.without_writes()
        self.left, self.end, self.joined = self._of("on_left"), self._of("on_end"), self._of("on_joined")
        self.rates, self.timer, self.adjust = self._of("on_rates"), self._of("on_timer"), self._of("on_adjust")

    def _of(self, hook: str) -> Needs:
        """What a hook of every member needs, and the messages it may send down the chain."""
        having = [position for position, member in enumerate(self._members) if hook in member.arguments]
        if not having:
            return Needs()
        behind = (member.needs("process") for member in self._members[having[0] + 1 :])
        return _together([*behind, *(member.needs(hook) for member in self._members)])


@lru_cache(maxsize=1024)
def asked_by(kind: Any, uses: tuple[UseSpec, ...]) -> Asked:
    """What the hooks of an operator ask for, looked up once for all nodes."""
    return Asked(kind, uses)


@lru_cache(maxsize=1024)
def needs_of(members: tuple[Asked, ...], gather: bool) -> ChainNeeds:
    """What the tasks of a chain need, worked out once for all nodes."""
    return ChainNeeds(members, gather=gather)


def _together(many: Iterable[Needs]) -> Needs:
    total = Needs()
    for more in many:
        total |= more
    return total
