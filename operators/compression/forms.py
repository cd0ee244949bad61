"""How a section of a code is laid out, by its first byte; docs/compression.md has every byte."""

from __future__ import annotations

from typing import Final

EMPTY: Final = 0
WORDS: Final = 1
RICE: Final = 2
BITMAP: Final = 3
VALUED: Final = 4
"""Added to one of the three above: each position has a value of its own, and no sign."""
HALVES: Final = 8
BYTES: Final = 9
SIGNS: Final = 10
FIRST: Final = 0x80
"""Added to the form of the section that begins at the first weight."""

MAX_RICE: Final = 30
"""Low bits of a gap at most: gaps are less than 2**31."""

MAX_WEIGHTS: Final = 1 << 31
"""Weights of a vector at most: an index has 31 bits."""
