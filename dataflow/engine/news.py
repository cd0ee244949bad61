"""What a chain hears of other nodes: messages, ends, and who has left or joined.

Invariant: whatever comes of a node behind something that the chain's operators are still to be told of it waits until
they have been told, so that they hear of everything in the order in which it happened. So does a change of the job.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from dataflow.engine.chain import Chain
from dataflow.engine.inbox import Delivery, Inbox
from dataflow.engine.inputs import Inputs, Source


class Change(Enum):
    """What becomes of a node."""

    BURIED = "buried"
    """Nothing more comes from it on any edge: it has died."""
    THROUGH = "through"
    """All its streams have ended."""
    DIED = "died"
    """The operators are to be told that it has left, and has died."""
    ENDED = "ended"
    """The operators are to be told that it has left, and was through."""
    JOINED = "joined"
    """It is a member again, and the operators are to be told."""


Happening = Delivery | Source | Change
"""A message, the end of a source, or a change of the node."""


class News:
    """What waits for its place, by node.

    Args:
        chain: whose operators are told.
        inputs: what feeds it.
        inbox: where its messages wait.
    """

    def __init__(self, chain: Chain, inputs: Inputs, inbox: Inbox) -> None:
        self._minds_leaving, self._inputs, self._inbox = chain.minds_leaving, inputs, inbox
        self._waiting: dict[int, deque[tuple[int, Happening]]] = {}
        self.heard = 0
        """How much has been heard so far: the number of what was last."""

    def __bool__(self) -> bool:
        """Whether the operators are to be told anything."""
        return bool(self._waiting)

    def hear(self, node: int, what: Happening) -> list[Delivery]:
        """Take in what has happened of a node; returns the messages for the inbox."""
        self.heard += 1
        self._waiting.setdefault(node, deque()).append((self.heard, what))
        return self._go_on(node)

    def next(self, heard: int) -> tuple[int, Change] | None:
        """The first node and what the operators are to be told of it, once none of its messages waits any more.

        Args:
            heard: it must be among so much that was heard first.
        """
        for node, waiting in self._waiting.items():
            number, first = waiting[0]
            if number <= heard and isinstance(first, Change) and not self._inbox.holds(node):
                return node, first
        return None

    def waits(self, heard: int) -> bool:
        """Whether the operators are still to be told anything that was among the first `heard`."""
        return any(waiting[0][0] <= heard for waiting in self._waiting.values())

    def told(self, node: int) -> list[Delivery]:
        """The operators have been told what was first of a node; returns the messages for the inbox behind that."""
        if self._waiting[node].popleft()[1] is Change.JOINED:
            self._inputs.reopen(node)
        return self._go_on(node)

    def held(self, node: int) -> list[Delivery]:
        """The messages of a node that wait here."""
        return [what for _, what in self._waiting.get(node, ()) if isinstance(what, Delivery)]

    def _go_on(self, node: int) -> list[Delivery]:
        """Take in what waits of a node, up to the next thing that the operators are to be told."""
        arrived: list[Delivery] = []
        waiting = self._waiting[node]
        while waiting:
            number, first = waiting[0]
            if first is Change.DIED or first is Change.ENDED or first is Change.JOINED:
                return arrived
            waiting.popleft()
            if isinstance(first, Delivery):
                arrived.append(first)
            elif self._leaves(node, first) and self._minds_leaving:
                waiting.appendleft((number, Change.DIED if first is Change.BURIED else Change.ENDED))
        del self._waiting[node]
        return arrived

    def _leaves(self, node: int, what: Source | Change) -> bool:
        """Whether a node brings nothing any more after this, or has left and never brought anything."""
        if not isinstance(what, Change):
            return self._inputs.end(what) and not self._inputs.brings(node)
        brought = self._inputs.bury(node) if what is Change.BURIED else self._inputs.finish(node)
        return brought or not self._inputs.of(node)
