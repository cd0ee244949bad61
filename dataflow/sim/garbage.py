"""How Python collects garbage while a simulation runs: rarely, and not among what stays until its end."""

from __future__ import annotations

import gc
from typing import Final, Self

COLLECTED: Final = 200_000
"""Objects made between two collections of garbage, at least; as many as nodes consist of, if these are more: what is
under way among them comes and goes by the hundred thousand, and none of it is garbage."""


class Garbage:
    """A context in which garbage is collected rarely; behind it as before."""

    def __init__(self) -> None:
        self._often = gc.get_threshold()
        self._before, self._frozen = 0, False

    def __enter__(self) -> Self:
        gc.collect()  # the nodes of a simulation before this one, whose models hang together with them
        gc.set_threshold(COLLECTED, *self._often[1:])
        self._before = _collections()
        return self

    def __exit__(self, *error: object) -> None:
        gc.set_threshold(*self._often)
        if self._frozen:
            gc.unfreeze()

    def spare(self) -> None:
        """Look no more through what there is now, if it is much: every full collection would look through all nodes."""
        if _collections() > self._before:
            self._frozen = True
            gc.collect()
            gc.set_threshold(max(COLLECTED, len(gc.get_objects())), *gc.get_threshold()[1:])
            gc.freeze()


def _collections() -> int:
    """How often the youngest objects have been collected in this process."""
    return int(gc.get_stats()[0]["collections"])
