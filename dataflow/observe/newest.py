"""The newest statistics of all that the nodes of a job have been: each counts from 0 whenever it is started again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from dataflow.reports import NodeStatistics


class Newest:
    """What every incarnation of every node has told last, also of lives that the job had before it began again."""

    def __init__(self) -> None:
        self._lived: list[NodeStatistics] = []
        self._told: dict[tuple[int, int], NodeStatistics] = {}

    def __iter__(self) -> Iterator[NodeStatistics]:
        yield from self._lived
        yield from self._told.values()

    def take(self, statistics: NodeStatistics) -> None:
        """Take in what a node tells."""
        self._told[statistics.node, statistics.incarnation] = statistics

    def begin_again(self) -> None:
        """Have nodes be told apart from those until now, whose incarnations have the same numbers."""
        self._lived += self._told.values()
        self._told.clear()

    def earlier(self, last: Iterable[NodeStatistics]) -> list[NodeStatistics]:
        """Those of every incarnation of a node but its last.

        Args:
            last: those of the last ones.
        """
        newest = {each.node: each.incarnation for each in last}
        died = [told for (node, number), told in self._told.items() if number < newest.get(node, math.inf)]
        return self._lived + died
