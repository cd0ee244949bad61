"""The parameter-sharing protocol of one node of a tree (parameter_sharing_tree.txt, 3), without ports or clocks.

Node p keeps x, the sum of its own updates, and for each neighbour q a mirror: the sum of all updates made behind q. Its
belief is x and all mirrors (equation 2); what it tells q is x and all mirrors but q's (equation 3). Both are added up
anew from what is kept, so nothing drifts, and a sum that is told twice, or that overtakes another, does no harm.

Counts of updates by the node that made them travel as the sums do: whoever has a sum knows what is in it. Invariant: on
a tree each update is in x of one node, and in a belief at most once; once nothing is owed, in every belief once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

import numpy as np

from operators.contribution import FAR, LIFE, UNKNOWN, Side, Told, Total, updates_of
from operators.messages import Vector

Waves = Literal["neighbours", "root"]

KEPT: Final = 6
"""Sums for a neighbour that are kept at most, where what it holds is to be made good if it dies; it is told no more
until it has passed on newer ones."""


class Sharing:
    """One node's part in the protocol.

    Args:
        node: its number.
        behind: by neighbour, the nodes behind it, the neighbour among them.
        own: x at the start.
        above: the neighbour towards the root, if updates travel there and back (`waves`); None: this is the root.
        waves: ``neighbours``, who are told of every change; ``root``: what changes is told upwards only, and downwards
            what has come from above: in-network aggregation, the paper's baseline (3.6).
        eager: whether counts of updates travel ahead of the sums that they are in.
        acknowledges: whether neighbours are told that their sums have come, as they must be if they wait for that.
        keeps: whether sums are kept from which its neighbours and it can rebuild what one of them held that dies.
        epoch: of all its edges.
        heard: whether the mirrors, which are empty, are what the neighbours would say.
        life: how often the node has been started before.
    """

    def __init__(
        self,
        node: int,
        behind: Mapping[int, Iterable[int]],
        own: Total,
        *,
        above: int | None = None,
        waves: Waves = "neighbours",
        eager: bool = False,
        acknowledges: bool = True,
        keeps: bool = False,
        epoch: int = 0,
        heard: bool = True,
        life: int = 0,
    ) -> None:
        self.node, self.ended, self.quiet = node, False, False
        """`quiet`: nobody is told any sum: the node has not joined the tree yet."""
        self._life = FAR + 1 + life * LIFE if life else 0
        self._own = Total(own.values.copy(), own.counts.copy())
        self.waves, self._above, self._eager, self._acknowledges = waves, above, eager, acknowledges
        self._keeps, self.grows, self._stamp = keeps, False, 0
        """`grows`: others may come to be behind a neighbour later."""
        self.inherited = self._nothing()
        """This node's share of what dead nodes held."""
        self.known = np.zeros((2, own.counts.size), np.int64)
        self.counts = own.counts.copy()
        """(nodes,) updates in the belief by the node that made them; never written again."""
        self.ahead = np.zeros(own.counts.size, np.int64)
        """(nodes,) by how many the number of a node's newest gradient is larger than what is counted of it."""
        self._belief: Total | None = None
        self.sides = {
            neighbour: Side(tuple(nodes), self._nothing(), epoch, heard, owed=epoch > 0)
            for neighbour, nodes in behind.items()
        }
        self._count()

    @property
    def own(self) -> Total:
        """x; later updates show."""
        return self._own

    @property
    def others(self) -> tuple[int, ...]:
        """Numbers of all other nodes of the tree."""
        return tuple(node for side in self.sides.values() for node in side.behind)

    @property
    def belief(self) -> Total:
        """The sum of all updates that have come here (equation 2); a new one after each change, never written again."""
        if self._belief is None:
            self._belief = self._sum(side.total for side in self.sides.values())
        return self._belief

    @property
    def through(self) -> bool:
        """Whether no update is made any more, here or behind any neighbour, that is not in the belief."""
        return self.ended and all(side.final for side in self.sides.values())

    @property
    def whole(self) -> bool:
        """Whether all mirrors are what somebody has said: if not, the belief lacks what lies behind a new neighbour."""
        return all(side.heard for side in self.sides.values())

    @property
    def settled(self) -> bool:
        """Whether all neighbours have spoken since they are neighbours: no mirror is that of another any more."""
        return all(side.heard and side.spoken for side in self.sides.values())

    def add(self, values: Vector, updates: int = 1, *, scale: float = 1.0) -> None:
        """Add `scale` times updates of this node to x.

        Args:
            values: (weights,) float32, only read.
            updates: how many they are.
            scale: rounded to float32.
        """
        if scale == 1:
            np.add(self._own.values, values, out=self._own.values)
        elif scale == -1:
            np.subtract(self._own.values, values, out=self._own.values)
        else:
            self._own.values[:] += np.float32(scale) * values
        self._own.counts[self.node] += updates
        self._changed(None)

    def end(self) -> None:
        """This node makes no more updates."""
        self.ended = True
        self._changed(None)

    def absorb(self, neighbour: int, said: Told) -> bool:
        """Take in what a neighbour says; False if it is not listened to, or has said something newer."""
        side = self.sides.get(neighbour)
        if side is None or said.epoch != side.epoch:
            return False
        side.acknowledged = max(side.acknowledged, said.heard)
        if self._keeps:
            self._let_go(neighbour, side, said)
        news = bool((said.known > self.known).any())
        np.maximum(self.known, said.known, out=self.known)
        if said.total is not None:
            if said.number <= side.received:
                return False
            side.received, side.total = said.number, said.total
            side.stamp, side.basis = said.stamp, said.basis
            side.heard, side.spoken, side.final = True, True, said.final
            side.noted |= self._acknowledges
            self._changed(neighbour)
        elif news:
            self._note(neighbour)
        return True

    def due(self) -> Iterator[int]:
        """Neighbours that there is something to tell now: at most one sum is under way to each, but for the last."""
        for neighbour, side in self.sides.items():
            if side.noted or self.may_tell(neighbour):
                yield neighbour

    def tell(self, neighbour: int) -> Told | None:
        """What a neighbour is to be told now; it counts as told."""
        if self.may_tell(neighbour):
            return self.sum_for(neighbour)
        return self.note_for(neighbour)

    def note_for(self, neighbour: int) -> Told | None:
        """What a neighbour is to be told now besides sums; it counts as told."""
        side = self.sides.get(neighbour)
        if side is None or not side.noted:
            return None
        side.noted = False
        side.held = self._held(neighbour)
        return Told(0, side.epoch, side.received, final=False, known=self.known.copy(), total=None, held=side.held)

    def sum_for(self, neighbour: int) -> Told:
        """Equation 3 for a neighbour, whether there is anything new in it or not; it counts as told."""
        side = self.sides[neighbour]
        final = self.is_final_for(neighbour)
        side.sent += 1
        side.owed, side.noted, side.closed = False, False, final
        known, total = self.known.copy(), self._without(neighbour)
        if not self._keeps:
            return Told(side.sent, side.epoch, side.received, final, known, total)
        basis = {
            other: each.received if each.spoken else UNKNOWN for other, each in self.sides.items() if other != neighbour
        }
        side.used[side.sent], side.held = basis, self._held(neighbour)
        if len(side.behind) > 1 or self.grows:
            side.kept[side.sent] = total
        return Told(side.sent, side.epoch, side.received, final, known, total, self._stamp, basis, side.held)

    def rounds(self, neighbour: int | None = None) -> int:
        """Updates of each node that are in the belief, or in what `neighbour` would be told, at least; `FAR` for none.

        Nodes that make no more, and all that is final, do not count: in rounds the sum that says so of a node has all
        of it.
        """
        least = FAR if self.ended else int(self._own.counts[self.node])
        for other, side in self.sides.items():
            if other != neighbour and not side.final:
                behind = list(side.behind)
                counts = np.where(self.known[0, behind] < FAR, side.total.counts[behind], FAR)
                least = min(least, int(counts.min()))
        return least

    def missing(self) -> int:
        """Updates that others are known to have made and that are not in the belief: the staleness gap of the node."""
        made = {node: updates_of(int(self.known[0, node])) for node in self.others}
        return sum(max(0, number - int(self.counts[node])) for node, number in made.items() if number < FAR)

    def meet(self, neighbour: int, behind: Iterable[int], *, epoch: int, instead_of: int | None = None) -> None:
        """Have a new neighbour, or an old one anew, that is told everything from the start.

        The mirror of the one whose place it takes is believed until the new one has spoken: nothing that this node
        knows is lost meanwhile.

        Args:
            neighbour: its number.
            behind: the nodes behind it.
            epoch: of the edge.
            instead_of: a neighbour that is none any more.
        """
        before = None if instead_of is None else self.sides.pop(instead_of)
        total = self._nothing() if before is None else before.total
        told = before is not None
        self.sides[neighbour] = Side(tuple(behind), total, epoch, heard=told, spoken=not told, owed=True, noted=True)
        self._changed(neighbour)

    def host(self, newcomer: int, *, epoch: int) -> None:
        """Have a neighbour that has joined the tree as a leaf: it has nothing yet, and is told everything."""
        self.sides[newcomer] = Side((newcomer,), self._nothing(), epoch, owed=True, noted=True)
        self._changed(newcomer)

    def join(self, host: int, *, epoch: int) -> None:
        """Have a neighbour that this node means to join, once it has heard it."""
        self.sides[host] = Side((host,), self._nothing(), epoch, heard=False)
        self._changed(host)

    def part(self, neighbour: int) -> None:
        """Have a neighbour no more that has told nothing, or that was told nothing: either has not joined the other."""
        if self.sides.pop(neighbour, None) is not None:
            self._release()
            self._changed(None)

    def begin_again(self, behind: Mapping[int, Iterable[int]], *, epoch: int) -> None:
        """Have other neighbours: with x as it is, and mirrors of nothing until they have spoken.

        Args:
            behind: by neighbour, the nodes behind it.
            epoch: of all edges.
        """
        self.sides = {
            neighbour: Side(tuple(nodes), self._nothing(), epoch, heard=False, owed=True, noted=True)
            for neighbour, nodes in behind.items()
        }
        self._changed(None)

    def redraw(self, behind: Mapping[int, Iterable[int]]) -> None:
        """Hear which nodes are behind the neighbours now."""
        for neighbour, nodes in behind.items():
            self.sides[neighbour].behind = tuple(nodes)

    def leave(self, neighbour: int) -> None:
        """Take what a neighbour has said as final: nothing more comes from there."""
        side = self.sides.get(neighbour)
        if side is not None and not side.final:
            side.final = side.heard = side.spoken = side.closed = True
            side.owed = side.noted = False
            self.known[:, list(side.behind)] = FAR
            self._changed(neighbour)

    def forget(self, node: int, behind: Mapping[int, Iterable[int]]) -> None:
        """Note that a node makes no more updates, and who is behind the neighbours now; others than these are left."""
        self._make_no_more(node)
        self.look_around(behind)
        self._note(None)

    def look_around(self, behind: Mapping[int, Iterable[int]]) -> None:
        """Hear which nodes are behind the neighbours now; some may be none yet, or any more."""
        for neighbour, side in self.sides.items():
            side.behind = tuple(behind.get(neighbour, side.behind))

    def bereave(self, dead: int, *, first: bool, number: int) -> None:
        """Take over a share of what a dead neighbour held; it is no neighbour any more.

        One of its neighbours takes all that it was told; the others take away what of that has come from them, so that
        what is left is what the dead node and those before it had made.

        Args:
            dead: the neighbour.
            first: this node was told the newest.
            number: of this node's sum that is in what the first one was told; 0 for none.

        Raises:
            KeyError: that sum is not kept.
        """
        side = self.sides.pop(dead)
        if first:
            values, counts = self.inherited.values + side.total.values, self.inherited.counts + side.total.counts
            self.inherited = Total(values, counts)
        elif number:
            told = side.kept[number]
            self.inherited = Total(self.inherited.values - told.values, self.inherited.counts - told.counts)
        self._make_no_more(dead)
        self._release()
        self._changed(None)

    def may_tell(self, neighbour: int) -> bool:
        """Whether there is anything new in a sum for a neighbour, and it may be told now."""
        side = self.sides.get(neighbour)
        if (
            side is None
            or self.quiet
            or not side.owed
            or not all(other.heard for other in self.sides.values() if other is not side)
        ):
            return False
        if self.is_final_for(neighbour):
            return True
        return side.acknowledged == side.sent and len(side.kept) < KEPT

    def is_final_for(self, neighbour: int) -> bool:
        """Whether what a neighbour is told changes no more."""
        return self.ended and all(side.final for other, side in self.sides.items() if other != neighbour)

    def _changed(self, source: int | None) -> None:
        """Note that own updates, or what came from a neighbour, have changed: who is to be told."""
        self._belief = None
        self._stamp += 1
        for neighbour, side in self.sides.items():
            if side.closed:
                continue
            if self.waves == "neighbours":
                side.owed |= neighbour != source
            elif self._above is None or neighbour == self._above:
                side.owed |= self._above is None or source != self._above
            else:
                side.owed |= source == self._above
            side.owed |= self.is_final_for(neighbour)
        self._count()
        self._note(None)

    def _count(self) -> None:
        """Bring up to date what is known of this node itself."""
        self.counts = self._own.counts + self.inherited.counts
        for side in self.sides.values():
            self.counts += side.total.counts
        if self._life:
            made = LIFE - 1 if self.ended else self.counts[self.node]
            self.known[:, self.node] = self._life + made
            return
        # The replica does not go back while a new neighbour has not spoken.
        have = self.counts.sum() if self.whole else self.known[1, self.node]
        self.known[:, self.node] = FAR if self.ended else (self._own.counts[self.node], have)

    def _make_no_more(self, node: int) -> None:
        """Note that a node makes no more updates in this life."""
        known = int(self.known[0, node])
        self.known[:, node] = FAR if known <= FAR else known | (LIFE - 1)

    def _release(self) -> None:
        """Have neighbours hear that their sums are held no more."""
        for other, each in self.sides.items():
            each.noted |= len(self._held(other)) < len(each.held)

    def _held(self, neighbour: int) -> frozenset[int]:
        """Numbers of a neighbour's sums that are in what others have been told, besides the newest."""
        newest = self.sides[neighbour].received
        others = (each for other, each in self.sides.items() if other != neighbour)
        numbers = (basis.get(neighbour, 0) for each in others for basis in each.used.values())
        return frozenset(number for number in numbers if 0 < number < newest)

    def _let_go(self, neighbour: int, side: Side, said: Told) -> None:
        """Keep no more than is needed by what a neighbour has taken in; tell the others, who may wait for room."""
        for number in [each for each in side.kept if each < side.acknowledged and each not in said.held]:
            del side.kept[number]
        for number in [each for each in side.used if each < side.acknowledged]:
            del side.used[number]
        for other, each in self.sides.items():
            if other != neighbour and len(each.held) >= KEPT - 2:
                each.noted |= len(self._held(other)) < len(each.held)

    def _note(self, source: int | None) -> None:
        if self._eager:
            for neighbour, side in self.sides.items():
                side.noted |= neighbour != source and not side.closed

    def _without(self, neighbour: int) -> Total:
        """Equation 3, as a sum of its own: the difference of two sums that are nearly equal would be rounded more."""
        return self._sum(side.total for other, side in self.sides.items() if other != neighbour)

    def _sum(self, totals: Iterable[Total]) -> Total:
        values, counts = self._own.values + self.inherited.values, self._own.counts + self.inherited.counts
        for total in totals:
            values += total.values
            counts += total.counts
        return Total(values, counts)

    def _nothing(self) -> Total:
        return Total(np.zeros_like(self._own.values), np.zeros_like(self._own.counts))
