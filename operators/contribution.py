"""What nodes of a tree tell each other, and keep of each other: sums of updates, with how many of whose are in them.

All are values: who is told what, and when, is `operators.share`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dataflow.errors import OperatorError
from dataflow.message import Message
from operators.messages import Code, Vector

Counts = npt.NDArray[np.int64]

UNKNOWN: Final = -1
"""Instead of the number of a neighbour's sum: there is one of another in its place, which it never told."""

FAR: Final = int(np.iinfo(np.int64).max // 2)
"""Updates made by a node that makes no more: as many as anybody may wait for."""

LIFE: Final = 1 << 40
"""What is known of a node's updates goes on from a higher multiple of this, beyond `FAR`, each time it is started."""


class Total(NamedTuple):
    """A sum of updates, (weights,) float32, and how many of each node's are in it, (nodes,) int64."""

    values: Vector
    counts: Counts


@dataclass(frozen=True, slots=True)
class Contribution(Message):
    """What a node tells a neighbour: the sum of all updates on its side of their edge, or of how many it knows.

    Args:
        origin: number of the node that tells it.
        epoch: how often the tree has been changed where the edge is; others are not listened to.
        number: of the sum on this edge, from 1; 0 without one.
        heard: number of the newest sum that came the other way.
        final: the sum changes no more.
        word: empty for what belongs to an edge; else see `operators.survivors` and `operators.newcomers`, whose words
            have what they tell in the arrays, too.
        about: the place of a node that a word is about.
        stamp: grows with whatever changes in the sender's belief: it tells which of its sums is the newest.
        basis: (2, k) its other neighbours, and the number of the newest sum of each that is in this one; `UNKNOWN` of
            one in whose place a sum of another is.
        held: (k,) numbers of sums of the receiver that are in what others have, as far as is known, besides newer ones.
        start, stop: cells of the model's `Layout`; equal without a sum.
        last: these are the sum's last cells.
        counts: (nodes,) updates in the sum by the node that made them, with its last cells; else of no elements.
        known: (2, nodes) for each node, updates in its x and in its belief, as far as the sender knows; see `LIFE`.
        values: (weights of the cells,) float32; or uint8, what a codec made of their change since the sum before.
    """

    origin: int
    epoch: int
    number: int
    heard: int
    final: bool
    word: str
    about: int
    stamp: int
    basis: Counts
    held: Counts
    start: int
    stop: int
    last: bool
    counts: Counts
    known: Counts
    values: Vector | Code


class Told(NamedTuple):
    """A sum for a neighbour, before it is cut and coded; `number` is 0 for a note, which has no sum.

    `basis` are the numbers of the other neighbours' sums that are in it; the other fields are those of `Contribution`.
    """

    number: int
    epoch: int
    heard: int
    final: bool
    known: Counts
    total: Total | None
    stamp: int = 0
    basis: Mapping[int, int] = {}
    held: frozenset[int] = frozenset()


@dataclass(slots=True)
class Side:
    """What is known of one neighbour, and of the part of the tree behind it.

    Args:
        behind: numbers of the nodes there.
        total: the mirror of what it told last.
        epoch: see `Contribution`.
        heard: the mirror is what this neighbour said, or the one whose place it has taken.
        spoken: the mirror is what this neighbour said, or empty.
        final: the mirror changes no more.
        received: number of the newest sum from it.
        sent: number of the newest sum for it.
        acknowledged: number of the newest sum that it has taken in.
        owed: it has not been told what has changed.
        noted: it has not been told how many updates are known, or that its newest sum has come.
        closed: it has been told what is final.
        stamp, basis: of the mirror.
        kept: by number, sums that it was told and may have passed on, so that they are in what others have of it.
        used: by number, the basis of the sum that it has taken in, and of those under way.
        held: numbers of its sums that it was told are held.
    """

    behind: tuple[int, ...]
    total: Total
    epoch: int = 0
    heard: bool = True
    spoken: bool = True
    final: bool = False
    received: int = 0
    sent: int = 0
    acknowledged: int = 0
    owed: bool = False
    noted: bool = False
    closed: bool = False
    stamp: int = 0
    basis: Mapping[int, int] = field(default_factory=dict)
    kept: dict[int, Total] = field(default_factory=dict)
    used: dict[int, Mapping[int, int]] = field(default_factory=dict)
    held: frozenset[int] = frozenset()


def updates_of(known: int) -> int:
    """Of what is known of a node: how many updates it has made in this life; `FAR` if it makes no more."""
    if known <= FAR:
        return known
    return FAR if known % LIFE == LIFE - 1 else known % LIFE


def together(parts: Iterable[Total]) -> Total:
    """X of a node that takes the place of several others: the sum of theirs (3.3, step 1).

    Raises:
        ValueError: there are none.
    """
    first, *rest = parts
    values, counts = first.values.copy(), first.counts.copy()
    for part in rest:
        values += part.values
        counts += part.counts
    return Total(values, counts)


def rebuilt(published: Total, others: Iterable[Total], behind: Iterable[int]) -> Total:
    """Give x of a node that was lost with its memory, from what it told one neighbour and what its others had told it.

    Args:
        published: what the neighbour that knows most of it has as its mirror.
        others: what its other neighbours told it.
        behind: the nodes behind these others.

    Raises:
        OperatorError: the neighbour has not been told of all that these others say, or of more: x cannot be known.
    """
    values, counts = published.values.copy(), published.counts.copy()
    for other in others:
        values -= other.values
        counts -= other.counts
    wrong = [node for node in behind if counts[node]]
    if wrong:
        raise OperatorError(
            what="x cannot be rebuilt: the mirror and what its neighbours told it are of different moments",
            got={node: int(counts[node]) for node in wrong},
            fix="wait until the neighbours have told each other everything, or begin from a checkpoint of x",
        )
    return Total(values, counts)
