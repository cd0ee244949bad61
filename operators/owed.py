"""What a node owes the others of its gradients, as state of a graph."""

from __future__ import annotations

from typing import ClassVar

from dataflow.node_context import NodeContext
from dataflow.state import StateElement, StateKind
from operators.compression import Codec, Residual


class Owed(StateElement):
    """The residual of a codec.

    Args:
        codec: what makes fewer bytes of gradients.
        n_weights: of the model.
        layers: offset at which each layer begins.
        counted: whether the sum of all updates is kept, for checkpoints; see `operators.ledger`.
    """

    kind: ClassVar[StateKind] = StateKind.LOCAL
    codec: Codec
    n_weights: int
    layers: tuple[int, ...] = (0,)
    counted: bool = False

    def create(self, node: NodeContext) -> Residual:
        """Nothing is owed yet."""
        Residual.compile(self.codec)
        return Residual(self.codec, self.n_weights, self.layers, node.tasks, counted=self.counted)
