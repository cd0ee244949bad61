"""Barrier: the mean of everybody's contribution to a step, over one run of cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, cast

import numpy as np

from dataflow.node_context import NodeContext
from dataflow.state import State, StateElement, StateKind
from operators.messages import Fragment, Vector

EVERYBODY: Mapping[int, int] = MappingProxyType({})
"""All that are expected contribute to every step."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A complete contribution to cells `start` to `stop` of step `number`.

    Args:
        start, stop: cells.
        number: gradient number.
        values: (weights of the cells,) mean over the contributors.
        contributors: their node numbers, in order.
    """

    start: int
    stop: int
    number: int
    values: Vector
    contributors: tuple[int, ...]


@dataclass
class BarrierState(State):
    """Contributions that wait for the others'.

    Methods are told `since`, the nodes that contribute only to steps behind the number given there, and `last`, those
    that contribute to none behind that.

    Args:
        expected: nodes that contribute to every step, if `since` does not say otherwise.
        last: by run of cells, the number of the last complete step and who contributed to it.
        since: nodes that have joined, with the number behind which they contribute, where nothing else knows.
    """

    expected: set[int]
    since: dict[int, int] = field(default_factory=dict)
    last: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    _waiting: dict[tuple[int, int, int], dict[int, Vector]] = field(default_factory=dict)

    def add(
        self, fragment: Fragment, since: Mapping[int, int] = EVERYBODY, last: Mapping[int, int] = EVERYBODY
    ) -> Mean | None:
        """Take in a contribution, as float32; the mean, if it was the last one missing."""
        key = (fragment.start, fragment.stop, fragment.high)
        self._waiting.setdefault(key, {})[fragment.origin] = cast("Vector", fragment.values)
        return self._complete(key, since, last)

    def leave(
        self, node: int, since: Mapping[int, int] = EVERYBODY, last: Mapping[int, int] = EVERYBODY
    ) -> Iterator[Mean]:
        """Wait for `node` no more; the means that only it was missing from, oldest first."""
        self.expected.discard(node)
        yield from self.release(since, last)

    def release(self, since: Mapping[int, int], last: Mapping[int, int] = EVERYBODY) -> Iterator[Mean]:
        """The means that nobody is missing from, oldest first."""
        for key in sorted(self._waiting, key=lambda key: (key[2], key[0])):
            mean = self._complete(key, since, last)
            if mean is not None:
                yield mean

    def passed(self) -> int:
        """The number of the newest step that is complete over all cells; 0 if none is."""
        return min((number for number, _ in self.last.values()), default=0)

    def snapshot(self) -> BarrierState:
        """A copy of who is expected; contributions under way are not part of a checkpoint."""
        return BarrierState(set(self.expected))

    def tensors(self) -> dict[str, np.ndarray]:
        """``expected``."""
        return {"expected": np.array(sorted(self.expected), np.int64)}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over who is expected."""
        self.expected = {int(node) for node in tensors["expected"]}
        self._waiting.clear()

    def resume(self, tensors: Mapping[str, np.ndarray], node: int, steps: Mapping[int, int]) -> None:
        """Begin with everybody: whoever had left is there again, unless this node is told otherwise."""

    def _complete(self, key: tuple[int, int, int], since: Mapping[int, int], last: Mapping[int, int]) -> Mean | None:
        parts = self._waiting[key]
        start, stop, number = key
        missing = (node for node in self.expected | since.keys() if node not in parts)
        if any(since.get(node, -1) < number <= last.get(node, number) for node in missing):
            return None
        del self._waiting[key]
        origins = tuple(sorted(parts))
        self.last[start, stop] = (number, origins)
        return Mean(start, stop, number, mean([parts[origin] for origin in origins]), origins)


class Barrier(StateElement):
    """A barrier over the members of role `contributors`."""

    kind: ClassVar[StateKind] = StateKind.LOCAL
    contributors: str

    def create(self, node: NodeContext) -> BarrierState:
        """An empty barrier."""
        return BarrierState(set(node.members[self.contributors]))


def mean(parts: Sequence[Vector]) -> Vector:
    """The mean of vectors, added in order; a single one is returned as it is."""
    if len(parts) == 1:
        return parts[0]
    total = np.add(parts[0], parts[1])
    for part in parts[2:]:
        total += part
    total /= np.float32(len(parts))
    return total
