"""State that is ahead of the steps: of operators between a source and the chains that make steps of what it gives.

A source reads ahead, so what these operators write has mini-batches in it of which no step has been made yet, and which
a job that goes on from a checkpoint reads again. A checkpoint keeps such state as it was before the first of them.
Elements that make up for that themselves (`State.resume`) are kept as they are, as are those that others write, too,
and those that no mini-batch changes, but other hooks, such as `on_left`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from dataflow.engine.chain_state import ChainState
from dataflow.engine.elements import Elements
from dataflow.engine.wiring import Wiring
from dataflow.errors import AkoError
from dataflow.message import Message, Sharded
from dataflow.state import State

_Past = deque[tuple[int, dict[str, Any]]]
"""Steps, and what an element's tensors were behind the message of each; the oldest is the newest that may be needed."""


class ReadAhead:
    """What elements that are ahead of the steps were, mini-batch by mini-batch, as far back as the steps are.

    Args:
        wiring: the node's chains.
        elements: its state elements.
        states: the live ones, by name.
    """

    def __init__(self, wiring: Wiring, elements: Elements, states: Mapping[str, State]) -> None:
        self._elements, self._gathers = elements, wiring.ahead
        writers = Counter(name for state in wiring.in_order for name in state.chain.needs.all.writes)
        self._written: dict[str, list[str]] = {chain: [] for chain in wiring.ahead}
        for state in wiring.in_order:
            if state.name in wiring.ahead:
                for name in sorted(state.chain.needs.process.writes):
                    if writers[name] == 1 and type(states[name]).resume is State.resume:
                        self._written[state.name].append(name)
        self._past: dict[str, _Past] = {}

    def begin(self) -> None:
        """Note what they are before the first message."""
        for chain in self._written:
            for name, kept in self._kept(chain):
                self._past[name] = deque([(-1, kept)])

    def note(self, state: ChainState, message: Message) -> None:
        """Note what the elements that a chain writes are behind a message of its."""
        if not self._written.get(state.name) or not isinstance(message, Sharded):
            return
        reached = self._reached(state.name)
        for name, kept in self._kept(state.name):
            past = self._past[name]
            if past[-1][0] == message.step:  # another shard of it
                past.pop()
            past.append((message.step, kept))
            while len(past) > 1 and past[1][0] < reached:
                past.popleft()

    def _kept(self, chain: str) -> list[tuple[str, dict[str, Any]]]:
        """What the elements that a chain writes are; one that cannot be kept fails the checkpoint, if there is any."""
        found: list[tuple[str, dict[str, Any]]] = []
        for name in tuple(self._written[chain]):
            try:
                found.append((name, self._elements.kept_of(name)))
            except AkoError:
                self._written[chain].remove(name)
        return found

    def behind(self) -> dict[str, dict[str, Any]]:
        """Of each of the elements, the tensors that it had before the first message of which no step has been made."""
        found: dict[str, dict[str, Any]] = {}
        for chain, names in self._written.items():
            reached = self._reached(chain)
            for name in names:
                found[name] = next(tensors for step, tensors in reversed(self._past[name]) if step < reached)
        return found

    def _reached(self, chain: str) -> int:
        """The first step that has not been made of what a chain gives."""
        return min(gather.position() for gather in self._gathers[chain])
