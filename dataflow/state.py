"""State elements: data that outlives a message and can be snapshotted.

A `StateElement` is the declaration that a graph carries (a pydantic model: its fields are JSON); its `create` makes
the live `State` on each node that holds it. Operators name the elements they use with `Reads` and `Writes`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict

from dataflow.node_context import NodeContext

if TYPE_CHECKING:
    import numpy as np


class StateKind(StrEnum):
    """How copies of a state element on several nodes relate."""

    LOCAL = "local"
    """Each node's own; nothing to do with the others'."""
    PARTITIONED = "partitioned"
    """Disjoint ranges of one whole: tensors of the whole's shape, zero outside of the range."""
    PARTIAL = "partial"
    """Replicas that exchange updates."""
    SUMMED = "summed"
    """Parts of a sum that every node believes: what one has added is nowhere else."""
    LEDGER = "ledger"
    """What tells, where a job goes on from a checkpoint, what was under way between nodes: see `State.balance`."""


PARTS_OF_A_WHOLE: Final = frozenset({StateKind.PARTITIONED, StateKind.SUMMED})
"""Kinds of state that a job cannot do without any part of."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a node has in a checkpoint.

    Args:
        node: its number.
        steps: steps that it had made; None if it makes none.
        tensors: by element and name.
    """

    node: int
    steps: int | None
    tensors: Mapping[str, Mapping[str, np.ndarray]]


class State(ABC):
    """A live state element on one node. Only the engine decides who may touch it when."""

    @abstractmethod
    def tensors(self) -> dict[str, np.ndarray]:
        """Everything needed to restore this element, as named arrays (not copies) of bool, integers or floats."""

    @abstractmethod
    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over the arrays that `tensors` once gave.

        Raises:
            ValueError: names, shapes or dtypes differ from this element's.
        """

    def snapshot(self) -> Any:
        """A copy that later writes do not change; what a reading operator is given: as `kept` if not overridden."""
        return self.kept()

    def kept(self) -> dict[str, np.ndarray]:
        """What `tensors` gives, as arrays that later writes do not change.

        Raises:
            TypeError: it is no array.
        """
        tensors = self.tensors()
        for name, tensor in tensors.items():
            if not hasattr(tensor, "dtype"):
                what = f"tensors() gives a {type(tensor).__name__} as {name!r}: give an array, as np.array of it"
                raise TypeError(what)
        return {name: tensor.copy() for name, tensor in tensors.items()}

    def resume(self, tensors: Mapping[str, np.ndarray], node: int, steps: Mapping[int, int]) -> None:
        """Go on from a checkpoint: take over what was kept, and count what was under way between nodes as dropped.

        Args:
            tensors: what `kept` gave; empty if there is nothing for this node, whose element then begins anew.
            node: number of this node.
            steps: of every node that makes steps, how many it had made.

        Raises:
            ValueError: see `restore`.
        """
        if tensors:
            self.restore(tensors)

    def balance(  # noqa: B027 - most elements have nothing to do
        self, states: Mapping[str, State], kept: Sequence[Kept], *, divided: bool, whole: bool
    ) -> None:
        """Make up for what was under way, once all elements of a node go on; only for ``LEDGER``.

        Args:
            states: those of the node.
            kept: what every node of the job had kept, first that which this node goes on with.
            divided: whether no node goes on with its own, so that what all had is to be divided among those there are.
            whole: whether no node is missing.

        Raises:
            ValueError: see `restore`.
        """


class StateElement(BaseModel):
    """Declaration of a state element; the fields of a subclass are its parameters, as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: ClassVar[StateKind] = StateKind.LOCAL
    anybodys: ClassVar[bool] = False
    """Whether a node may go on with any other's, as it must where a job is resumed on another number of nodes."""

    @property
    def rebuilt(self) -> bool:
        """Whether those that are left make good what a node that dies held of it; only for ``SUMMED``."""
        return False

    @property
    def form(self) -> str:
        """What its arrays mean, in words, where their names and shapes do not tell it: all that is kept has one form.

        A job goes on from a checkpoint only where every element has the form that it had.
        """
        return ""

    @property
    def grows(self) -> bool:
        """Whether a node may join those that have a part, or come back, while they go on; only for ``SUMMED``."""
        return False

    def create(self, node: NodeContext) -> State:
        """The live element on `node`.

        Args:
            node: where it lives, with its rank in the role and the job's seed.
        """
        what = f"{type(self).__name__} must define create(node)"
        raise TypeError(what)


class Access:
    """That an operator uses a state element; made by `Reads` and `Writes`.

    Args:
        element: name of the state element in the graph; the attribute's name if left out.
    """

    writes: ClassVar[bool] = False

    def __init__(self, element: str = "") -> None:
        self.element = element
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.element = self.element or name


class Reads(Access):
    """The operator is given a snapshot."""


class Writes(Access):
    """The operator is given the live element, with nobody else at it."""

    writes = True
