"""How the variants of a comparison look in pictures.

The first eight have the colours of Okabe and Ito, which colour-blind people tell apart; later ones repeat them with
other dashes, and other marks where lines have some.
"""

from __future__ import annotations

from dataclasses import dataclass

Dashes = str | tuple[int, tuple[int, ...]]
"""A pattern as matplotlib knows it: by name, or lengths of lines and gaps behind an offset."""

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
DASHES: tuple[Dashes, ...] = (
    *("-", "--", ":", "-."),
    *((0, (8, 2, 1, 2, 1, 2)), (0, (2, 2)), (0, (10, 4)), (0, (1, 4))),
)
_MARKERS = "osD^vPX*"


@dataclass(frozen=True)
class Look:
    """How a variant is drawn; the first with the widest lines, so that of lines that coincide those below show."""

    colour: str
    dashes: Dashes
    marker: str
    width: float


def look_of(number: int, count: int) -> Look:
    """How a variant is drawn, by its number among so many."""
    turn = number // len(_COLOURS)
    marker = _MARKERS[(number + turn) % len(_MARKERS)]
    width = 2.8 - 1.6 * number / count
    return Look(_COLOURS[number % len(_COLOURS)], DASHES[turn % len(DASHES)], marker, width)
