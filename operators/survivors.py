"""What one node of a tree knows of those that have died or come, and how neighbours of a dead one agree.

Each neighbour of a dead node tells the others of the newest sum that it was told by it, a *claim*; once a node has all
claims it takes over its share of what the dead one held (`Sharing.bereave`), and has other neighbours. Nodes that have
all updates of all, and will be told of no more, say so (*through*), and end when all have: so whoever may be needed to
agree is there. The first that knows it says that it is *over*, for whoever misses a word of one that dies then.

A node that comes while the tree runs is a leaf of it (`operators.newcomers`), with a *place* of its own: its number in
the plan, and a multiple of how many numbers there are, by how often it has been started. So places that are dead are
dead for good, and the tree depends on which there are and which are dead, and not on the order of that.

Invariant: what a node held that dies before its neighbours have agreed about another is made good by nobody: an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn

import numpy as np

from dataflow.errors import OperatorError
from operators.contribution import UNKNOWN, Counts
from operators.topology import Bereaved, Edges, bereaved, left_of

CLAIM: Final = "claim"
THROUGH: Final = "through"
OVER: Final = "over"

NOBODY: Final = -1
"""Instead of a place: there is none."""


class LostUpdatesError(OperatorError):
    """Nodes of a tree have died so close to each other that nobody has what one of them held: the job fails."""

    def __init__(self, what: str, *, got: object = None, where: str = "", fix: str = "") -> None:
        super().__init__(what, got=got, where=where, fix=fix or "ako resume goes on from a checkpoint")


class Claim(NamedTuple):
    """What the newest sum is that a dead node has told one of its neighbours.

    Args:
        stamp: the higher, the newer.
        basis: numbers of the newest sums of the dead node's other neighbours that are in it.
    """

    stamp: int
    basis: Mapping[int, int]


class Share(NamedTuple):
    """What a node takes over of a dead neighbour; see `Sharing.bereave`.

    Args:
        dead: the neighbour.
        first: this node was told the newest.
        number: of this node's sum that is in that.
        neighbours: those that it has instead.
    """

    dead: int
    first: bool
    number: int
    neighbours: tuple[int, ...]


class Leaf(NamedTuple):
    """Where a node has joined the tree.

    Args:
        host: place of the node that it has joined, or means to; `NOBODY`.
        turn: how often it has said so, counted over all its lives: the newest counts.
    """

    host: int
    turn: int


@dataclass(slots=True)
class _Estate:
    """What a dead node held.

    Args:
        before: places that were dead when it died.
        heirs: who was its neighbour.
        claims: what each of them says of it so far.
    """

    before: frozenset[int]
    heirs: Bereaved
    claims: dict[int, Claim]


class Survivors:
    """Who is left, as one node sees it.

    Args:
        node: this node.
        members: of the tree at the start.
        edges: of the tree at the start.
        size: how many numbers of nodes there are; None: up to the highest of the members.
        life: how often this node has been started before; it is in the tree at once if it is its first.
    """

    def __init__(
        self, node: int, members: Sequence[int], edges: Edges, *, size: int | None = None, life: int = 0
    ) -> None:
        self.node, self.edges = node, edges
        self.size = max(members) + 1 if size is None else size
        self.place = node + life * self.size
        self.joined = not life
        """Whether this node is in the tree, and the others know where."""
        self.leaves: dict[int, Leaf] = {}
        """By place, the nodes that have come while the tree ran."""
        self.dead: frozenset[int] = frozenset({node} & set(members)) if life else frozenset()
        """Places."""
        self.over = False
        """Nobody needs anything any more."""
        self._newest = {member: member for member in members} | {node: self.place}
        self._through: set[int] = set()
        self._estates: dict[int, _Estate] = {}
        self._early: dict[int, dict[int, Claim]] = {}

    @property
    def tree(self) -> Edges:
        """The edges among those that are left."""
        edges = [(one % self.size, other % self.size) for one, other in left_of(self._edges, self.dead)]
        return tuple(sorted((min(edge), max(edge)) for edge in edges))

    @property
    def others(self) -> tuple[int, ...]:
        """All others that are left."""
        return tuple(node for node, place in sorted(self._newest.items()) if self.node != node and self._lives(place))

    @property
    def all_through(self) -> bool:
        """Whether all others that are left have said that they are through."""
        return self._through.issuperset(self.others)

    def place_of(self, node: int) -> int:
        """The place of a node that is left; `NOBODY` if there is none."""
        place = self._newest.get(node, NOBODY)
        return place if self._lives(place) else NOBODY

    def is_open(self, node: int) -> bool:
        """Whether it is open what becomes of what an earlier life of a node held."""
        return any(place % self.size == node for place in self._estates)

    def put(self, place: int, leaf: Leaf) -> None:
        """Note where a node means to join the tree, as it says itself: so it has not joined anywhere before."""
        node = place % self.size
        before = self._newest.get(node, NOBODY)
        if before > place:
            return
        if before != place:
            self.dead |= {before} - {NOBODY}
            self._through.discard(node)
        self._newest[node], self.leaves[place] = place, leaf
        self.dead -= {place}
        for dead, estate in self._estates.items():
            if node in estate.heirs:
                heirs = bereaved(self._edges, estate.before, dead)
                assert heirs is not None
                estate.heirs = self._nodes(heirs)
                estate.claims.pop(node, None)

    def view(self) -> tuple[Counts, Counts, Counts]:
        """What a node that comes must know: (3, k) places, hosts and turns; (k,) dead; (2, k) edges at the start."""
        leaves = [(place, leaf.host, leaf.turn) for place, leaf in self.leaves.items()]
        return (
            np.array(leaves, np.int64).reshape(-1, 3).T.copy(),
            np.array(sorted(self.dead), np.int64),
            np.array(self.edges, np.int64).reshape(-1, 2).T.copy(),
        )

    def learn(self, leaves: Counts, dead: Counts, here: Collection[int]) -> None:
        """Take in what another knows; nodes that are not `here`, nor are this one, are dead."""
        for place, host, turn in leaves.T.tolist():
            node, known = place % self.size, self.leaves.get(place)
            if place == self.place or (known is not None and known.turn >= turn):
                continue
            before = self._newest.get(node, NOBODY)
            self.leaves[place] = Leaf(host, turn)
            self._newest[node] = max(before, place)
            older = min(before, place) if before != place else NOBODY
            self.dead |= {older} - {NOBODY}
            if node != self.node and node not in here:
                self.dead |= {place}
        self.dead |= set(dead.tolist()) - {self.place}

    def disregard(self, node: int) -> None:
        """Forget what a node has claimed of nodes that this one takes for alive: it took this one for another's."""
        for claims in self._early.values():
            claims.pop(node, None)

    def lose(self, node: int, mine: Claim | None) -> tuple[int, ...]:
        """Note that a node has died; whom to tell `mine`, the claim of this node if it was its neighbour.

        Raises:
            LostUpdatesError: another has died before what this one was to share was shared.
        """
        place = self.place_of(node)
        if place == NOBODY:
            return ()
        for dead, estate in self._estates.items():
            if node in estate.heirs:
                refuse(dead % self.size, node)
        before, early = self.dead, self._early.pop(place, {})
        found = bereaved(self._edges, before, place) if self.joined else None
        self.dead |= {place}
        if not self.joined:
            return ()
        heirs = None if found is None else self._nodes(found)
        if heirs is None or self.node not in heirs or mine is None:
            if early:
                refuse(node, min(early))
            return ()
        if strangers := [other for other in early if other not in heirs]:
            refuse(node, strangers[0])
        self._estates[place] = _Estate(before, heirs, {self.node: mine, **early})
        return heirs.without(self.node)

    def hear(self, word: str, origin: int, about: int, claim: Claim) -> None:
        """Take in a word; one of a node that is dead counts no more.

        Args:
            word: claim, through or over.
            origin: who says it.
            about: the place that a claim is about.
            claim: the claim.

        Raises:
            LostUpdatesError: a claim that this node cannot answer, as it has seen deaths in another order.
        """
        if self.place_of(origin) == NOBODY and self.joined:
            return
        if word == THROUGH:
            self._through.add(origin)
        elif word == OVER:
            self.over = True
        elif about in self._estates and origin in self._estates[about].heirs:
            self._estates[about].claims[origin] = claim
        elif about not in self.dead:
            self._early.setdefault(about, {})[origin] = claim
        elif self.joined:
            refuse(about % self.size, origin)

    def shares(self) -> Iterator[Share]:
        """What this node is to take over now: of those of whose neighbours it has all claims.

        Raises:
            LostUpdatesError: the newest sum has what lies behind one of them as another node told it, before a change.
        """
        for place, (heirs, claims) in [(place, (each.heirs, each.claims)) for place, each in self._estates.items()]:
            if claims.keys() < {heirs.heir, *heirs.others}:
                continue
            del self._estates[place]
            dead = place % self.size
            first = max(claims, key=lambda node: (claims[node].stamp, -node))
            for other in claims:
                if claims[first].basis.get(other, 0) == UNKNOWN:
                    refuse(dead, other)
            neighbours = heirs.others if self.node == heirs.heir else (heirs.heir,)
            yield Share(dead, first == self.node, claims[first].basis.get(self.node, 0), neighbours)

    @property
    def _edges(self) -> Edges:
        """All edges that there ever were."""
        added = ((min(place, host), max(place, host)) for place, (host, _) in self.leaves.items() if host != NOBODY)
        return (*self.edges, *added)

    def _lives(self, place: int) -> bool:
        if place == NOBODY or place in self.dead:
            return False
        leaf = self.leaves.get(place)
        return place < self.size or place == self.place or (leaf is not None and leaf.host != NOBODY)

    def _nodes(self, heirs: Bereaved) -> Bereaved:
        return Bereaved(heirs.heir % self.size, tuple(sorted(other % self.size for other in heirs.others)))


def refuse(dead: int, other: int) -> NoReturn:
    """Raise that what a dead node held cannot be made good.

    Raises:
        LostUpdatesError: always.
    """
    what = f"nodes {dead} and {other} of the tree have died or changed together: what they held is nowhere else"
    raise LostUpdatesError(what)
