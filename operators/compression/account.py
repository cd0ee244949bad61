"""What codes have cost so far, as the figures that a sender tells of itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class Account:
    """Sums over the messages of one node since it began.

    Args:
        messages: how many.
        updates: weights in them that were updated; see `Update.count`.
        nbytes: of their codes.
        dense_nbytes: of the same ranges of weights as float32.
    """

    messages: int = 0
    updates: int = 0
    nbytes: int = 0
    dense_nbytes: int = 0

    def note(self, n_weights: int, updates: int, nbytes: int) -> None:
        """Add a message that is the code of so many weights."""
        self.messages += 1
        self.updates += updates
        self.nbytes += nbytes
        self.dense_nbytes += 4 * n_weights

    def include(self, other: Account) -> None:
        """Add all messages of another account."""
        self.messages += other.messages
        self.updates += other.updates
        self.nbytes += other.nbytes
        self.dense_nbytes += other.dense_nbytes

    def figures(self) -> Iterator[tuple[str, float]]:
        """Names and values of what is known: compression ratio, updates per message, bits per update."""
        if self.messages:
            yield "compression_ratio", self.dense_nbytes / self.nbytes
            yield "updates_per_message", self.updates / self.messages
        if self.updates:
            yield "bits_per_update", 8 * self.nbytes / self.updates
