"""What one node of a tree knows of those that have died, and how those agree that were their neighbours.

Each neighbour of a dead node tells the others of the newest sum that it was told by it, a *claim*; once a node has all
claims it takes over its share of what the dead one held (`Sharing.bereave`), and has other neighbours. Nodes that have
all updates of all, and will be told of no more, say so (*through*), and end when all have: so whoever may be needed to
agree is there. The first that knows it says that it is *over*, for whoever misses a word of one that dies then.

Invariant: what a node held that dies before its neighbours have agreed about another is made good by nobody: an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn

from dataflow.errors import OperatorError
from operators.contribution import UNKNOWN
from operators.topology import Bereaved, Edges, bereaved, left_of

CLAIM: Final = "claim"
THROUGH: Final = "through"
OVER: Final = "over"


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


@dataclass(frozen=True, slots=True)
class _Estate:
    """What a dead node held: who was its neighbour, and what each of them says of it so far."""

    heirs: Bereaved
    claims: dict[int, Claim]


class Survivors:
    """Who is left, as one node sees it.

    Args:
        node: this node.
        members: of the tree.
        edges: of the tree when nobody was dead.
    """

    def __init__(self, node: int, members: Sequence[int], edges: Edges) -> None:
        self.node, self.members, self.edges = node, tuple(members), edges
        self.dead: frozenset[int] = frozenset()
        self.over = False
        """Nobody needs anything any more."""
        self._through: set[int] = set()
        self._estates: dict[int, _Estate] = {}
        self._early: dict[int, dict[int, Claim]] = {}

    @property
    def tree(self) -> Edges:
        """The edges among those that are left."""
        return left_of(self.edges, self.dead)

    @property
    def others(self) -> tuple[int, ...]:
        """All others that are left."""
        return tuple(member for member in self.members if member != self.node and member not in self.dead)

    @property
    def all_through(self) -> bool:
        """Whether all others that are left have said that they are through."""
        return self._through.issuperset(self.others)

    def lose(self, node: int, mine: Claim | None) -> tuple[int, ...]:
        """Note that a node has died; whom to tell `mine`, the claim of this node if it was its neighbour.

        Raises:
            OperatorError: another has died before what this one was to share was shared.
        """
        for dead, estate in self._estates.items():
            if node in estate.heirs:
                refuse(dead, node)
        heirs, early = bereaved(self.edges, self.dead, node), self._early.pop(node, {})
        self.dead |= {node}
        if heirs is None or self.node not in heirs or mine is None:
            if early:
                refuse(node, min(early))
            return ()
        self._estates[node] = _Estate(heirs, {self.node: mine, **early})
        return heirs.without(self.node)

    def hear(self, word: str, origin: int, about: int, claim: Claim) -> None:
        """Take in a word; one of a node that is dead counts no more.

        Raises:
            OperatorError: a claim that this node cannot answer, as it has seen deaths in another order.
        """
        if origin in self.dead:
            return
        if word == THROUGH:
            self._through.add(origin)
        elif word == OVER:
            self.over = True
        elif about in self._estates:
            self._estates[about].claims[origin] = claim
        elif about in self.dead:
            refuse(about, origin)
        else:
            self._early.setdefault(about, {})[origin] = claim

    def shares(self) -> Iterator[Share]:
        """What this node is to take over now: of those of whose neighbours it has all claims.

        Raises:
            OperatorError: the newest sum has what lies behind one of them as another node told it, before a change.
        """
        for dead, (heirs, claims) in [(dead, (each.heirs, each.claims)) for dead, each in self._estates.items()]:
            if claims.keys() < {heirs.heir, *heirs.others}:
                continue
            del self._estates[dead]
            first = max(claims, key=lambda node: (claims[node].stamp, -node))
            for other in claims:
                if claims[first].basis.get(other, 0) == UNKNOWN:
                    refuse(dead, other)
            neighbours = heirs.others if self.node == heirs.heir else (heirs.heir,)
            yield Share(dead, first == self.node, claims[first].basis.get(self.node, 0), neighbours)


def refuse(dead: int, other: int) -> NoReturn:
    """Raise that what a dead node held cannot be made good.

    Raises:
        OperatorError: always.
    """
    raise OperatorError(
        what=f"nodes {dead} and {other} of the tree have died or changed together: what they held is nowhere else",
        fix="ako resume goes on from a checkpoint",
    )
