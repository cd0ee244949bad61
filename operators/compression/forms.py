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

THIRDS: Final = MAX_RICE + 1
"""In the place of the number of low bits: gaps are divided by three, which lies between one bit and two."""

MAX_PASSES: Final = 1024
"""Passes of a code over its range at most."""

MAX_WEIGHTS: Final = 1 << 31
"""Weights of a vector at most: an index has 31 bits."""
