"""Shared memory for what is not needed at the same time."""

from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class Span(NamedTuple):
    """A need of `elements` from `first` to `last`, both included, in any unit of time."""

    first: int
    last: int
    elements: int


def pack_spans(spans: Mapping[K, Span]) -> tuple[dict[K, int], int]:
    """Give every span an offset such that none overlaps another of the same time; and the elements needed in all.

    First fit, the largest first.
    """
    placed: list[tuple[Span, int]] = []
    offsets: dict[K, int] = {}
    for key, span in sorted(spans.items(), key=lambda item: -item[1].elements):
        offset = 0
        for other, begin in sorted(placed, key=lambda item: item[1]):
            if other.first <= span.last and span.first <= other.last and begin < offset + span.elements:
                offset = max(offset, begin + other.elements)
        placed.append((span, offset))
        offsets[key] = offset
    return offsets, max((begin + span.elements for span, begin in placed), default=0)
