"""A run's record as it is read: its plan, and of every engine the events, in the order in which it was given them."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator

from pydantic import ValidationError

from dataflow.engine.recording import PLAN_FILE, Chunk, Noted, chunk_name
from dataflow.errors import AkoError, DataError, in_words
from dataflow.plan.physical import PhysicalPlan
from dataflow.reports import Rates

_GAP = 4
"""So many incarnations of a node in a row may have left no record: they died before they had begun."""

Read = Callable[[str], bytes | None]
"""Gives the content of an artifact of the recorded run by its name; None if there is none."""


def recorded_plan(read: Read) -> PhysicalPlan:
    """The plan beside a record, to be compared with: whoever wrote it has chosen the code that it names.

    Args:
        read: gives the record's artifacts.

    Raises:
        DataError: there is no record, or its plan cannot be read.
    """
    data = read(PLAN_FILE)
    if data is None:
        raise DataError(what="the run was not recorded", got=PLAN_FILE, fix="run it with --record")
    try:
        return PhysicalPlan.model_validate_json(data)
    except (ValidationError, AkoError) as error:
        raise DataError(what=f"the plan of the record cannot be read: {in_words(error)}", where=PLAN_FILE) from error


def recorded_lives(plan: PhysicalPlan, read: Read) -> Iterator[tuple[int, int]]:
    """Nodes and incarnations of which there is a record, first incarnations first, whether there is one or not."""
    yield from ((node.index, 0) for node in plan.nodes)
    for node in plan.nodes:
        incarnation = last = 0
        while incarnation < last + _GAP:
            incarnation += 1
            if read(chunk_name(node.index, 0, incarnation)) is not None:
                last = incarnation
                yield node.index, incarnation


class NodeRecord:
    """The record of one incarnation of a node. Iterate over its events once; chunks are read as they are needed.

    Args:
        read: gives the record's artifacts.
        digest: of the plan.
        node: number of the node.
        incarnation: which.

    Attributes:
        rates: what was measured, as far as has been read and nobody has taken.
        broken: it has turned out to break off.
    """

    def __init__(self, read: Read, digest: str, node: int, incarnation: int) -> None:
        self._read, self._digest, self._node, self._incarnation = read, digest, node, incarnation
        self.rates: deque[Rates] = deque()
        self.broken = False

    def __iter__(self) -> Iterator[Noted]:
        """The events.

        Raises:
            DataError: the record is damaged, or of another plan.
        """
        count = 0
        for number in itertools.count():
            name = chunk_name(self._node, number, self._incarnation)
            data = self._read(name)
            if data is None:
                self.broken = True
                return
            chunk = Chunk.decode(data, name)
            if chunk.plan != self._digest:
                raise DataError(what="the record is of another plan than the one beside it", where=name)
            if (chunk.node, chunk.incarnation, chunk.first) != (self._node, self._incarnation, count):
                what = f"the chunk is not that of node {self._node} from event {count} on"
                raise DataError(what, got=f"node {chunk.node}, event {chunk.first}", where=name)
            count += len(chunk)
            self.rates += chunk.measured()
            yield from chunk.events()
            if chunk.last:
                return
