"""Images: how many images the gradients were of that are in a server's weights, whoever made them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dataflow.node_context import NodeContext
from dataflow.state import State, StateElement, StateKind
from operators.layout import Sharding


class ImagesState(State):
    """Images by cell that a node owns; the rest is zero.

    Args:
        own: (cells,) bool, those that it owns.
    """

    def __init__(self, own: npt.NDArray[np.bool_]) -> None:
        self._own, self._images = own, np.zeros(own.size, np.int64)

    def add(self, cells: tuple[int, int], images: int) -> None:
        """Note that a gradient of so many images is in the weights of these cells."""
        self._images[slice(*cells)] += images

    def of(self, cells: tuple[int, int]) -> int:
        """Images that are in the weights of all of these cells."""
        return int(self._images[slice(*cells)].min())

    def tensors(self) -> dict[str, np.ndarray]:
        """``images``, (cells,) int64."""
        return {"images": self._images}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over what is said of the cells that the node owns."""
        if tensors["images"].shape != self._own.shape:
            what = f"images are of {tensors['images'].shape} cells, not {self._own.shape}"
            raise ValueError(what)
        self._images = np.where(self._own, tensors["images"], 0)


class Images(StateElement):
    """The images that are in the weights of a shard, kept with these: a server that goes back to some has their count.

    Args:
        sharding: the model's division over the nodes of the element's role.
    """

    kind: ClassVar[StateKind] = StateKind.PARTITIONED
    sharding: Sharding

    def create(self, node: NodeContext) -> ImagesState:
        """No image yet."""
        return ImagesState(self.sharding.owned(node.members[node.role])[node.index])
