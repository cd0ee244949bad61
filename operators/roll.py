"""The roll: who of a role is there, on one node, and how far a node that joins late has come with catching up.

What a joiner J and the others tell each other (docs/decisions/0025):

====================  ==============================================================================================
J has joined          every node O that has caught up begins to keep gradients for J, and tells it from which number
                      on: ``welcome``
all have welcomed J   J asks one of them for its model, with at least these numbers of everybody applied: ``lend``
J has the model       J tells every O what of it is applied, cell by cell: ``begin``; O sends what follows, and tells J
                      how far it is: ``begun``
all have              J begins where the fastest of them is, and tells all: ``settled``; they wait for J as for others
====================  ==============================================================================================

Invariant: J computes only once it has settled, and nobody waits for it before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dataflow.node_context import NodeContext
from dataflow.state import State, StateElement, StateKind
from operators.messages import Word


@dataclass(frozen=True, slots=True)
class Present:
    """What others on a node are shown of its roll.

    Args:
        settled: the node itself has caught up.
        idle: it need make no gradients any more, as all others are through, or all are made.
        gone: members that have left.
        late: members that have joined and not caught up.
        later: members that have joined since the node began, and the node itself if it has.
    """

    settled: bool
    idle: bool = False
    gone: frozenset[int] = frozenset()
    late: frozenset[int] = frozenset()
    later: frozenset[int] = frozenset()

    def of(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """The members that are there and have caught up, in order."""
        if not self.gone and not self.late:
            return members
        return tuple(member for member in members if member not in self.gone and member not in self.late)

    def first(self, members: tuple[int, ...]) -> int | None:
        """The member that acts for all: the first that has been there all the time, or else the first; None if nobody.

        One that has joined may turn out to be too late, and not all others need hear of that.
        """
        present = self.of(members)
        return next((member for member in present if member not in self.later), present[0] if present else None)


class RollState(State):
    """Live roll of one node.

    `inbox` are words that wait to be answered, `asked` the loans that others wait for, by node; `lent` is set once a
    loan has been taken, `too_late` once there is nobody left to take one of. The rest is for `due`, which says what the
    node has to do next.
    """

    def __init__(self, node: int, members: Sequence[int], incarnation: int) -> None:
        """Everybody is there; a node that joins late has yet to be welcomed.

        Args:
            node: this node.
            members: of the role.
            incarnation: of this node.
        """
        self.node, self.members = node, tuple(members)
        self.gone: set[int] = set()
        self.late: set[int] = set()
        self.later: set[int] = {node} if incarnation else set()
        self.inbox: list[Word] = []
        self.asked: dict[int, Word] = {}
        self.settled = not incarnation
        self.lent = self.idle = self.too_late = False
        self._turn = incarnation << 32  # unlike those of the incarnations before
        self._turns: dict[int, int] = {}
        self._waiting: list[int] = []
        self._awaited = set() if self.settled else {member for member in members if member != node}
        self._welcomes: dict[int, Word] = {}
        self._begun: dict[int, Word] = {}
        self._donor: int | None = None
        self._told = False
        self._ended: set[int] = set()
        self._aware: set[int] = set()
        self._joined: Counter[int] = Counter()
        self._expected: Counter[int] = Counter()
        self._followed: Counter[int] = Counter()
        self._sent_to: Counter[int] = Counter()
        self._welcomed: dict[int, int] = {}
        if not self.settled:
            self.late.add(node)

    @property
    def peers(self) -> tuple[int, ...]:
        """The other members that are there."""
        return tuple(member for member in self.members if member != self.node and member not in self.gone)

    @property
    def turn(self) -> int:
        """Number of the newest loan that this node has asked for."""
        return self._turn

    def leave(self, member: int, *, ended: bool = False) -> None:
        """Note that a member has died, or had ended before this node came."""
        self.too_late = self.too_late or ended
        self.gone.add(member)
        self.late.discard(member)
        self._awaited.discard(member)
        for table in (self.asked, self._turns, self._welcomes, self._begun):
            table.pop(member, None)
        self._waiting = [other for other in self._waiting if other != member]
        self.inbox = [word for word in self.inbox if word.origin != member]

    def end(self, member: int, *, died: bool = False) -> None:
        """Note that no more words come from a member: it is through and needs none, nor a loan, or it `died`."""
        if not died:
            self._ended.add(member)
        self.asked.pop(member, None)
        self._awaited.discard(member)
        self._welcomes.pop(member, None)

    def expect(self, member: int) -> None:
        """Note that words come from a member that has come back."""
        self._ended.discard(member)
        self._expected[member] += 1

    def join(self, member: int) -> None:
        """Note that a member has come back, to be welcomed."""
        self.gone.discard(member)
        self._aware.discard(member)
        self.late.add(member)
        self.later.add(member)
        self._waiting.append(member)
        self._joined[member] += 1

    def follow(self, member: int) -> None:
        """Note that a member that has come back is followed where gradients are applied, in the old one's place.

        Until then it is not welcomed: every operator that applies what others send has to say so.
        """
        self._followed[member] += 1

    def send_to(self, member: int) -> None:
        """Note that whoever sends to members has heard that one has come back."""
        self._sent_to[member] += 1

    def is_replaced(self, member: int) -> bool:
        """Whether a member of whose death whoever sends hears now has a successor that has been welcomed already."""
        return self._welcomed.get(member, 0) > self._sent_to[member]

    def has_outlived(self, word: Word) -> bool:
        """Whether a word that is heard now is of one that has died, while another has joined in its place."""
        return self._joined[word.origin] > self._expected[word.origin]

    def due(self) -> str:
        """What the node has to do: answer, welcome, borrow, begin, settle, alone, idle, or nothing."""
        if self.inbox:
            return "answer"
        if self.settled:
            # All that a member says comes behind its welcome, so what it says of itself is noted of it, and not of the
            # one before.
            return "welcome" if self._waiting and self._is_followed(self._waiting[0]) else ""
        if self._told:
            return "" if self._welcomes.keys() - self._begun.keys() else "settle"
        if self.lent:
            return "begin"
        if self._awaited - self._welcomes.keys():
            return ""
        if not self._welcomes:
            return "" if self.idle else "idle" if self.too_late or any(map(self._is_through, self.members)) else "alone"
        return "" if self._donor in self._welcomes else "borrow"

    @property
    def need_not_settle(self) -> bool:
        """Whether others can do without this node, which has not caught up: one of them that has has welcomed it."""
        return not (self.settled or self.idle) and bool(self._welcomes)

    def unaware(self, *, closed: bool) -> tuple[int, ...]:
        """Those that have caught up, also this node, and have not been told that it makes no more gradients.

        Args:
            closed: it makes no more.
        """
        if not (closed and self.settled):
            return ()
        there = (*self.peers, self.node)
        return tuple(member for member in there if member not in self._aware and member not in self.late)

    def has_told(self, member: int) -> None:
        """Note that a member is told that this node makes no more gradients."""
        self._aware.add(member)

    def is_over(self, *, closed: bool) -> bool:
        """Whether nobody needs a word of this node any more.

        Args:
            closed: it makes no more gradients.
        """
        if self.due() or not (self.settled or self.idle) or (self.settled and self._waiting):
            return False
        return len(self.members) == 1 or self.idle or (closed and all(map(self._is_through, self.late)))

    def _is_through(self, member: int) -> bool:
        """Whether no more words come from a member that is there, and not only from one that had its number before."""
        return member in self._ended and member not in self.gone and self._joined[member] <= self._expected[member]

    def welcome(self) -> tuple[int, int]:
        """The next member to be welcomed, and the number of the welcome."""
        member = self._waiting.pop(0)
        self._turn += 1
        self._turns[member] = self._turn
        self._welcomed[member] = self._joined[member]
        return member, self._turn

    def _is_followed(self, member: int) -> bool:
        return self._followed[member] >= self._joined[member]

    def is_current(self, word: Word) -> bool:
        """Whether a member's word is about the newest welcome that it was given, and not of one that died."""
        return self._turns.get(word.origin) == word.turn

    def is_welcome(self, word: Word) -> bool:
        """Whether another's word is about the welcome that it has given this node."""
        welcome = self._welcomes.get(word.origin)
        return welcome is not None and welcome.turn == word.turn

    def welcomed(self, word: Word) -> None:
        """Note another's welcome."""
        if word.origin in self._awaited:
            self._welcomes[word.origin] = word

    def borrow(self) -> Word:
        """What the lowest member that has welcomed this one is asked for."""
        self._donor, self._turn = min(self._welcomes), self._turn + 1
        return Word(
            kind="lend",
            origin=self.node,
            to=self._donor,
            turn=self._turn,
            origins=np.array(list(self._welcomes), np.int64),
            applied=np.array([word.number for word in self._welcomes.values()], np.int64),
        )

    def told(self) -> Mapping[int, int]:
        """Those that are to begin to send, with the numbers of their welcomes; they have been told."""
        self._told = True
        return {member: word.turn for member, word in self._welcomes.items()}

    def begins(self, word: Word) -> None:
        """Note that another has begun to send."""
        if self.is_welcome(word):
            self._begun[word.origin] = word

    def settle(self) -> Word | None:
        """The word of the fastest of those that send, from whose place this node goes on; None with nobody else."""
        self.settled = True
        self.late.discard(self.node)
        return max(self._begun.values(), key=lambda word: (word.number, word.origin), default=None)

    def turns(self) -> Mapping[int, int]:
        """Those that this node has begun with, with the numbers of their welcomes."""
        return {member: self._welcomes[member].turn for member in self._begun}

    def snapshot(self) -> Present:
        """Who is there."""
        gone, late, later = frozenset(self.gone), frozenset(self.late), frozenset(self.later)
        return Present(self.settled, self.idle, gone, late, later)

    def tensors(self) -> dict[str, np.ndarray]:
        """None: who is there is known to those that begin."""
        return {}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Nothing to take over."""


class Roll(StateElement):
    """The roll of role `members`."""

    kind: ClassVar[StateKind] = StateKind.LOCAL
    members: str = "worker"

    def create(self, node: NodeContext) -> RollState:
        """Everybody is there, but for places that nobody has yet when the job begins."""
        state = RollState(node.index, node.members[self.members], node.incarnation)
        if not node.incarnation:
            state.gone |= node.vacant
        return state
