"""Passes over a long vector by several threads, a range each: kernels give up the interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")

LEAST = 1 << 20
"""Weights of a range at least: handing one over takes as long as a pass over some ten thousand."""


def cuts(n_weights: int, cores: int, at: Sequence[int] | None = None) -> list[int]:
    """Where ranges of nearly equal size begin, and the end.

    Args:
        n_weights: of the vector.
        cores: ranges at most.
        at: where ranges may begin, ascending, with 0 and the end among them; anywhere if None.
    """
    ranges = max(1, min(cores, n_weights // LEAST))
    even = [n_weights * number // ranges for number in range(ranges + 1)]
    if at is None:
        return even
    return sorted({min(at, key=lambda place: abs(place - wanted)) for wanted in even})


def over_ranges(work: Callable[[int, int], T], places: Sequence[int]) -> list[T]:
    """What `work` gives for each range, in order; the first is done by the caller's own thread.

    Args:
        work: given where a range begins, and where it ends.
        places: see `cuts`.
    """
    first, *others = pairwise(places)
    if not others:
        return [work(*first)]
    waiting = [_threads().submit(work, *each) for each in others]
    try:
        found = work(*first)
    finally:
        wait(waiting)  # nobody writes any more once this returns
    return [found, *(each.result() for each in waiting)]


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1), thread_name_prefix="codec")
