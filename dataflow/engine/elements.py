"""The state elements of a node, and who may have them.

Invariant: at most one task that runs writes a state element. What a chain waits for is left alone by the chains that
are asked after it in the same turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
import safetensors.numpy

from dataflow.engine.blame import reraise
from dataflow.engine.chain import Given
from dataflow.engine.needs import Needs
from dataflow.errors import OperatorError
from dataflow.state import State

NOTHING: Final = Given({}, {})


class Elements:
    """The state elements of one node.

    Args:
        node: its name.
        states: the live elements, by name.
    """

    def __init__(self, node: str, states: Mapping[str, State]) -> None:
        self._node, self._states = node, states
        self._written: dict[frozenset[str], dict[str, State]] = {}
        self._locked: set[str] = set()
        self._reserved: set[str] = set()

    def begin_turn(self) -> None:
        """Nobody waits for anything, as far as has been asked."""
        self._reserved.clear()

    def free(self, needs: Needs) -> bool:
        """Whether nobody writes these elements; if not, those that come after in this turn leave them alone."""
        if not needs.all or (self._locked.isdisjoint(needs.all) and self._reserved.isdisjoint(needs.writes)):
            return True
        self._reserved |= needs.all
        return False

    def all_free(self) -> bool:
        """Whether nobody writes anything; if not, those that come after in this turn leave everything alone."""
        if not self._locked:
            return True
        self._reserved |= self._states.keys()
        return False

    def unwritten(self, elements: frozenset[str]) -> bool:
        """Whether nobody writes these elements; nothing is left alone if not."""
        return self._locked.isdisjoint(elements)

    def lock(self, elements: frozenset[str]) -> None:
        """A task that writes these has started."""
        self._locked |= elements

    def unlock(self, elements: frozenset[str]) -> None:
        """It has ended."""
        self._locked -= elements

    def given(self, needs: Needs, *, ended: bool = False) -> Given:
        """Snapshots of what is read and the live elements of what is written; for `ended` see `Given`."""
        if not (needs.all or ended):
            return NOTHING
        snapshots = {name: self._snapshot(name) for name in needs.reads} if needs.reads else {}
        return Given(snapshots, self._live(needs.writes), needs.writes, ended=ended)

    def given_to_merge(self, shards: Given, needs: Needs) -> Given:
        """The snapshots that the shards of a step were given, and what the merge writes."""
        return Given(shards.snapshots, self._live(needs.writes), needs.writes)

    def kept(self, behind: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """What a checkpoint keeps of all of them, by name of the element and of the tensor.

        Args:
            behind: tensors of those that are ahead of the steps of which the checkpoint is.
        """
        tensors: dict[str, Any] = {}
        for name in self._states:
            kept = behind[name] if name in behind else self.kept_of(name)
            tensors.update({f"{name}/{key}": tensor for key, tensor in kept.items()})
        return tensors

    def kept_of(self, name: str) -> dict[str, Any]:
        """What a checkpoint keeps of one of them, which nobody writes, by name of the tensor."""
        element = self._states[name]
        try:
            kept = element.kept()
            _check_types(kept)
        except Exception as error:
            reraise(error, f"state element {name!r}", type(element), self._node)
        return kept

    def _live(self, names: frozenset[str]) -> dict[str, State]:
        """The live elements of these names, looked up once for all tasks that write the same."""
        live = self._written.get(names)
        if live is None:
            live = self._written[names] = {name: self._states[name] for name in names}
        return live

    def _snapshot(self, name: str) -> Any:
        state = self._states[name]
        try:
            return state.snapshot()
        except Exception as error:
            reraise(error, f"state element {name!r}", type(state), self._node)


def _check_types(kept: Mapping[str, Any]) -> None:
    """Refuse arrays that no file of a checkpoint can have, while it is known whose they are."""
    for name, tensor in kept.items():
        dtype = np.asarray(tensor).dtype
        if not _can_be_kept(dtype):
            what = "gives in tensors() an array of a type that cannot be kept"
            fix = "give arrays of bool, or of integers or floats of at most 64 bits"
            raise OperatorError(what, got=f"{name}: {dtype}", fix=fix)


@lru_cache(maxsize=64)
def _can_be_kept(dtype: Any) -> bool:
    """Whether a file of a checkpoint can have arrays of a type; found out once, as some are kept with every message."""
    try:
        safetensors.numpy.save({"": np.empty(0, dtype)})
    except safetensors.SafetensorError:
        return False
    return True
