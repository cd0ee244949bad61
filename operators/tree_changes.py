"""Changes of a tree as one of its nodes makes them: which is to come, how far it is, what there is to tell of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dataflow.operators_api import Adjusted, Sample
from operators.reconfigure import rewire
from operators.share import Sharing
from operators.topology import Edges

PLANNED: Final = 1
"""Number of a change of the tree that the job has planned; those that are asked for have higher ones."""


@dataclass(frozen=True, slots=True)
class Rewiring:
    """A change of the tree that this node is to make.

    Args:
        number: of the change, and of the edges that it makes. `PLANNED`: it is made in any case; if not, somebody else
            says whether, once all nodes are ready.
        edges: the tree as it is to be.
    """

    number: int
    edges: Edges


class TreeChanges:
    """The changes of one node, of which the last that was made may go on until all new neighbours have spoken.

    Args:
        sharing: the node's.
        edges: of the tree.
        then: what they are changed to as planned; None if that is nothing.

    Attributes:
        edges: of the tree as it is.
        epoch: the number of these edges.
    """

    def __init__(self, sharing: Sharing, edges: Edges, then: Edges | None) -> None:
        self.edges, self.epoch = edges, 0
        self._sharing = sharing
        self._rewiring = None if then is None else Rewiring(PLANNED, then)
        self._reports: list[Adjusted] = []
        self._changed_at: int | None = None
        self._alone, self._touched = 0, False

    @property
    def planned(self) -> bool:
        """Whether the change that the job has planned is still to be made."""
        return self.awaits(PLANNED)

    @property
    def asked(self) -> bool:
        """Whether this node is ready for a change that somebody asks for, and that may yet be dropped."""
        return self._rewiring is not None and not self.planned

    @property
    def under_way(self) -> bool:
        """Whether the tree is being changed, or may be in a moment."""
        return self._rewiring is not None or self._changed_at is not None

    def awaits(self, number: int) -> bool:
        """Whether a change is to be made next."""
        return self._rewiring is not None and self._rewiring.number == number

    def is_known(self, number: int) -> bool:
        """Whether a change has been made, or is to be made next."""
        return number <= self.epoch or self.awaits(number)

    def prepare(self, number: int, edges: Edges, why_not: str) -> None:
        """Be ready for a change that somebody asks for, and say so; or say why not.

        Args:
            number: of the change.
            edges: the tree as it is to be.
            why_not: why this node cannot be ready, if it is for what else it does; empty if not.
        """
        if not why_not and (self._rewiring is not None or not self._sharing.settled):
            why_not = "it has not made another change of the tree yet"
        if why_not:
            self.refuse(number, why_not)
            return
        self._rewiring = Rewiring(number, edges)
        self._reports.append(Adjusted(number, "ready"))

    def refuse(self, number: int, why: str) -> None:
        """Say that a change that somebody asks for cannot be made, and why."""
        self._reports.append(Adjusted(number, "refused", why=why))

    def drop(self) -> None:
        """Do not make the change that was to be made next."""
        self._rewiring = None

    def make(self, number: int, made: int) -> list[int] | None:
        """Make a change, if it is to be made next.

        Args:
            number: of the change.
            made: updates of this node so far.

        Returns:
            The neighbours that are new; None if no change was made.
        """
        if self._rewiring is None or self._rewiring.number != number:
            return None
        rewiring, self._rewiring = self._rewiring, None
        before, known = self.edges, {neighbour: side.epoch for neighbour, side in self._sharing.sides.items()}
        self.edges, self.epoch, self._changed_at = rewiring.edges, rewiring.number, made
        rewire(self._sharing, before, self.edges, epoch=self.epoch)
        self._alone, self._touched = 0, not self._sharing.whole
        self._reports.append(Adjusted(self.epoch, "begun", touched=self._touched))
        return [each for each, side in self._sharing.sides.items() if known.get(each) != side.epoch]

    def settle(self, made: int) -> None:
        """Note that all new neighbours have spoken, if they have; one may have the mirror of another until then.

        Args:
            made: updates of this node so far.
        """
        if self._changed_at is None:
            return
        if self._sharing.whole and self._touched:
            self._alone, self._touched = made - self._changed_at, False
        if self._sharing.settled:
            self._changed_at = None
            self._reports.append(Adjusted(self.epoch, "settled"))

    def reports(self, made: int) -> Iterator[Adjusted | Sample]:
        """What there is to tell, once.

        The sample `rewired` are the updates that this node has made by itself, from a change until its replica had all
        again.

        Args:
            made: updates of this node so far.
        """
        self.settle(made)
        reports, self._reports = self._reports, []
        for report in reports:
            if report.stage == "settled":
                yield Sample("rewired", float(self._alone))
            yield report
