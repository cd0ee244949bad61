"""How a node joins a tree that runs, as a leaf (docs/decisions/0035). No port, no clock.

What a newcomer J and the others tell each other:

========================  ==========================================================================================
J is there, as X hears    X tells J whether it may be joined: ``welcome``; not if it has told anybody what is final:
                          ``shut``; nothing of the kind if X is a newcomer that has not joined yet itself
J is welcome at a host S  J tells all where it means to join: ``asks``; those that have, or hear later of J, or of whom
                          J hears later, too
X hears that J asks       S makes J its neighbour and tells it its sum; all note J's place and tell J what they know of
                          the tree: ``noted``
all have, and S its sum   J has joined: ``welcome`` to all; from now on it makes updates
========================  ==========================================================================================

If S dies before, or is shut, J asks anew: with a higher turn, of another, or of nobody, and others put it there. So a
node that has joined is where everybody has noted it, and one that has not is in nobody's sums. Invariant: a newcomer
tells nobody a sum before it has joined; and it is behind no edge on which something final was told.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from dataflow.errors import OperatorError
from operators.contribution import Contribution, Counts
from operators.share import Sharing
from operators.survivors import NOBODY, Leaf, Survivors
from operators.topology import behind

WELCOME: Final = "welcome"
SHUT: Final = "shut"
ASKS: Final = "asks"
NOTED: Final = "noted"
WORDS: Final = frozenset({WELCOME, SHUT, ASKS, NOTED})

_NONE: Final = np.zeros(0, np.int64)
_PAIRS: Final = np.zeros((2, 0), np.int64)


class Saying(NamedTuple):
    """A word for a node; see `Contribution` for what is told.

    Args:
        to: the node.
        word: one of `WORDS`.
        about: place of the host; of a ``welcome``, of the node that is welcoming.
        turn: of the newcomer.
        counts: ``asks``: the newcomer's place; ``noted``, of the host: its gradients and images so far; ``welcome``:
            see `Sharing.ahead`.
        leaves, dead, edges: ``noted``: see `Survivors.view`.
    """

    to: int
    word: str
    about: int = NOBODY
    turn: int = 0
    counts: Counts = _NONE
    leaves: Counts = _PAIRS
    dead: Counts = _NONE
    edges: Counts = _PAIRS


class Arrival(NamedTuple):
    """That a node has joined, or has not yet; of this node: that it is too late for it.

    Args:
        node: the node.
        number: of its newest gradient, as it counts: those of others before it came, too.
        images: that its role had seen then.
        late: it has not joined.
    """

    node: int
    number: int = 0
    images: int = 0
    late: bool = False


class Newcomers:
    """Who comes, as one node sees it; and how far it has come with joining itself.

    Args:
        sharing: the node's.
        survivors: the node's.
        others: numbers of all others that may be there.
        life: how often the node has been started before.
    """

    def __init__(self, sharing: Sharing, survivors: Survivors, others: Iterable[int], life: int) -> None:
        self._sharing, self._survivors, self._node = sharing, survivors, sharing.node
        self.epoch = 0
        """Of the edges of the tree at the start, as the host has told."""
        self.late = False
        self.sayings: list[Saying] = []
        self.arrivals: list[Arrival] = []
        self._here = set(others) - {self._node}
        self._met: set[int] = set()
        self._hosts: dict[int, int] = {}
        self._shut: set[int] = set()
        self._lost: set[int] = set()
        self._noted: set[int] = set()
        self._asked: dict[int, int] = {}
        self._held: dict[int, Contribution] = {}
        self._host: int | None = None
        self._turn = life << 32
        self._start = (0, 0)

    def knows(self, node: int) -> bool:
        """Whether a node has spoken to this one, and not only to another that had its number before."""
        return self._survivors.joined or node in self._met

    def greet(self, node: int, *, is_open: bool) -> None:
        """Note that a node has come; `is_open`: whether it may join this one."""
        self._here.add(node)
        if not self._survivors.joined:
            self._ask(node)
        elif is_open:
            self._welcome(node)
        else:
            self._say(node, SHUT)

    def leave(self, node: int) -> None:
        """Note that a node has died, or ended."""
        self._here.discard(node)
        self._forget(node)
        self._met.discard(node)
        self._noted.discard(node)
        self._asked.pop(node, None)
        self._held.pop(node, None)
        self.sayings = [each for each in self.sayings if each.to != node]
        if self._host == node:
            self._turn_to_next()
        self.settle()

    def hear(self, said: Contribution, *, is_open: bool, busy: bool, reached: tuple[int, int]) -> list[int]:
        """Take in a word; the new neighbours that come of it.

        Args:
            said: the word.
            is_open: whether this node may be joined.
            busy: nobody's place can be noted now.
            reached: gradients and images of this node so far.
        """
        origin = said.origin
        joined = self._survivors.joined
        self._met.add(origin)
        match said.word:
            case "welcome":
                self._lost.discard(origin)
                self._sharing.ahead[origin] = said.counts[0]
                self.arrivals.append(Arrival(origin))
                if not joined:
                    self._hosts[origin] = said.about
                    if self._host is None:
                        self._turn_to_next()
            case "shut" if not joined:
                self._forget(origin)
                self._shut.add(origin)
                if self._host == origin:
                    self._turn_to_next()
            case "asks":
                self._forget(origin)
                if said.about == NOBODY:
                    self._lost.add(origin)
                self.arrivals.append(Arrival(origin, late=True))
                self._put_nowhere(said)
                self._held[origin] = said
            case "noted" if not joined and said.stamp == self._turn:
                self._take_note(said)
        if not joined:
            self._ask(origin)
        self.settle()
        return self.release(is_open=is_open, busy=busy, reached=reached)

    def release(self, *, is_open: bool, busy: bool, reached: tuple[int, int]) -> list[int]:
        """Note the places of newcomers that have asked, if that can be; see `hear`."""
        neighbours = []
        for said in [] if busy else list(self._held.values()):
            node, place, survivors = said.origin, int(said.counts[0]), self._survivors
            if survivors.is_open(node) or node in self._sharing.sides:
                continue
            del self._held[node]
            if said.about == NOBODY or said.about in survivors.dead:
                continue
            mine = said.about == survivors.place
            if mine and not (is_open and survivors.joined):
                self._say(node, SHUT)
                continue
            survivors.put(place, Leaf(said.about, said.stamp))
            if mine:
                self._sharing.host(node, epoch=self._epoch_of(node, said.stamp))
                neighbours.append(node)
            self._look_around()
            leaves, dead, edges = survivors.view()
            start = np.array(reached if mine else (), np.int64)
            self.sayings.append(Saying(node, NOTED, said.about, said.stamp, start, leaves, dead, edges))
        return neighbours

    def settle(self) -> None:
        """Join, if all that it takes is there; be too late, if nobody can be joined any more."""
        if self._survivors.joined or self.late:
            return
        if self._host is None:
            if self._here <= self._shut | self._lost:
                self.be_late()
            return
        side = self._sharing.sides[self._host]
        if self._here <= self._noted and side.heard:
            self._join(self._host)

    def be_late(self) -> None:
        """Take no part: nobody has anything to tell this node, nor needs anything of it."""
        if not self.late and not self._survivors.joined:
            self.late = True
            self.arrivals.append(Arrival(self._node, late=True))

    def _join(self, host: int) -> None:
        survivors, sharing, (number, images) = self._survivors, self._sharing, self._start
        survivors.joined, sharing.quiet = True, False
        side = sharing.sides[host]
        side.owed = side.noted = True
        now = behind(survivors.tree, self._node)
        if set(now) != {host}:
            what = "a newcomer is no leaf of the tree, as it sees it"
            raise OperatorError(what, got={"neighbours": sorted(now), "host": host})
        self._look_around()
        sharing.ahead[self._node] = number - int(sharing.counts[self._node])
        self.arrivals.append(Arrival(self._node, number, images))
        self._host = None
        for other in sorted(self._here):
            self._welcome(other)

    def _take_note(self, said: Contribution) -> None:
        """Take in what one that has noted this node's place knows."""
        self._survivors.disregard(said.origin)
        self._survivors.learn(said.basis, said.held, self._here)
        self._noted.add(said.origin)
        if said.origin == self._host:
            self._start = (int(said.counts[0]), int(said.counts[1]))
            self._survivors.edges = tuple((int(one), int(other)) for one, other in said.known.T.tolist())
            self.epoch = said.epoch

    def _turn_to_next(self) -> None:
        """Ask another host, or none if there is none, and tell all that have spoken."""
        if self._host is not None:
            self._sharing.part(self._host)
        self._turn += 1
        self._noted.clear()
        self._host = next(iter(self._hosts), None)
        place = NOBODY if self._host is None else self._hosts[self._host]
        self._survivors.put(self._survivors.place, Leaf(place, self._turn))
        if self._host is not None:
            self._sharing.join(self._host, epoch=self._epoch_of(self._node, self._turn))
        for other in sorted(self._met & self._here):
            self._ask(other)

    def _epoch_of(self, newcomer: int, turn: int) -> int:
        """The epoch of the edge that a newcomer asks for, which no other edge has.

        Else a node that has come back could take for its host's what that one, a newcomer then, says to it as it was.
        """
        return turn * self._survivors.size + newcomer

    def _ask(self, other: int) -> None:
        """Tell another, once, whom this node asks."""
        if self._asked.get(other) == self._turn:
            return
        self._asked[other] = self._turn
        place = NOBODY if self._host is None else self._hosts[self._host]
        self._say(other, ASKS, about=place, counts=np.array([self._survivors.place], np.int64))

    def _welcome(self, other: int) -> None:
        ahead = np.array([self._sharing.ahead[self._node]], np.int64)
        self._say(other, WELCOME, about=self._survivors.place, counts=ahead)

    def _put_nowhere(self, said: Contribution) -> None:
        """Take a newcomer that asks anew from where it meant to be before."""
        survivors, place = self._survivors, int(said.counts[0])
        if place in survivors.leaves:
            if survivors.leaves[place].host == survivors.place:
                self._sharing.part(said.origin)
            survivors.put(place, Leaf(NOBODY, said.stamp))
            self._look_around()

    def _look_around(self) -> None:
        """Hear who is behind the neighbours now."""
        if self._survivors.joined:
            self._sharing.look_around(behind(self._survivors.tree, self._node))

    def _forget(self, node: int) -> None:
        """Take a node for none that may be joined, until it says so."""
        self._hosts.pop(node, None)
        self._shut.discard(node)
        self._lost.discard(node)

    def _say(self, to: int, word: str, *, about: int = NOBODY, counts: Counts = _NONE) -> None:
        self.sayings.append(Saying(to, word, about, self._turn, counts))
