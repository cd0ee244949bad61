"""A worker's replica that is shared over a tree: the protocol's state, and how sums become replicas.

The replica is the model at the start, the belief when it was last pulled, and the worker's own updates since: those
that it has not pushed are in no sum yet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from dataflow.message import Message
from dataflow.operators_api import Adjusted, Sample
from operators.compression import Codec
from operators.contribution import Contribution, Told
from operators.layout import Layout
from operators.messages import Vector
from operators.newcomers import WORDS as OF_NEWCOMERS
from operators.newcomers import Arrival, Newcomers
from operators.schedule import Schedule
from operators.share import Sharing
from operators.share_clocks import Consistency, ShareClocksState
from operators.sum_messages import SumMessages
from operators.sum_turns import SumTurns
from operators.survivors import CLAIM, NOBODY, OVER, THROUGH, Claim, LostUpdatesError, Survivors
from operators.topology import Edges, behind
from operators.tree_changes import PLANNED, TreeChanges
from operators.vector_state import VectorState

Flow = Literal["newest", "period"]


@dataclass(frozen=True, slots=True)
class Notice(Message):
    """Node `to` is to be told something.

    Args:
        to: number of the neighbour.
        turn: number of the sum, if it is made; 0: what it is told is decided when there is credit for it; `WORDS`:
            what is not about an edge.
    """

    to: int
    turn: int


WORDS: Final = -1
"""Instead of the number of a sum: words, of `operators.survivors` and `operators.newcomers`."""

_NO_COUNTS: Final = np.zeros(0, np.int64)
_NO_VALUES: Final = np.zeros(0, np.float32)


class SharedReplicaState(VectorState):
    """Live replica of one node.

    Args:
        initial: (weights,) float32, the model at the start.
        sharing: the protocol.
        layout: the model's cells.
        consistency: what a worker waits for.
        flow: when neighbours are told of changes.
        every: gradients between two pushes.
        codec: what makes fewer bytes of sums; none if None.
        layers: offset at which each layer begins.
        rate: learning rate of gradients, for codes.
        edges: of the tree.
        then: what they are changed to as planned; None if that is nothing.
        survivors: who is left of the tree, if the others go on when a node dies; None if not.
        newcomers: who comes, if nodes may join while the others go on; None if not.
    """

    def __init__(
        self,
        initial: Vector,
        sharing: Sharing,
        layout: Layout,
        *,
        consistency: Consistency = "eventual",
        flow: Flow = "newest",
        every: int = 1,
        codec: Codec | None = None,
        layers: tuple[int, ...] = (0,),
        rate: Schedule | None = None,
        edges: Edges = (),
        then: Edges | None = None,
        survivors: Survivors | None = None,
        newcomers: Newcomers | None = None,
    ) -> None:
        super().__init__(initial + sharing.belief.values)
        self.sharing = sharing
        self.pulled = sharing.counts
        """(nodes,) updates by the node that made them, in what was pulled last."""
        self._initial, self._consistency, self._every = initial, consistency, every
        self.messages = SumMessages(sharing.node, layout, codec=codec, layers=layers, rate=rate)
        self._unpushed = np.zeros_like(initial) if every > 1 else _NO_VALUES
        self._made = self._pushed = 0
        self.turns = SumTurns(sharing, rounds=consistency == "bsp", periods=flow == "period")
        self._round = 0
        self.changes = TreeChanges(sharing, edges, then)
        self._ends = False
        self._survivors, self._newcomers = survivors, newcomers
        self._reached, self._entered = (0, 0), not sharing.quiet
        self._words: dict[int, list[Contribution]] = {}
        self._ahead: list[Contribution] = []
        self._said = {THROUGH: False, OVER: False}
        self._meet(sharing.sides)

    def descend(self, direction: Vector, rate: float, *, scale: bool) -> None:
        """Make an update of this node's own: subtract it from the replica, and have it pushed in its turn.

        Args:
            direction: (weights,) float32; overwritten with the update.
            rate: rounded to float32.
            scale: must be set.
        """
        super().descend(direction, rate, scale=scale)
        self._made += 1
        if self._every > 1:
            self._unpushed -= direction
        else:
            self.sharing.add(direction, scale=-1)
            self._pushed = self._made

    def push(self) -> None:
        """Add what has not been pushed to x."""
        if self._made > self._pushed:
            self.sharing.add(self._unpushed, self._made - self._pushed)
            self._unpushed[:] = 0
            self._pushed = self._made

    def pull(self) -> float:
        """Make the replica the belief, with the worker's own updates; the norm of the change."""
        if not self.sharing.whole or self.sharing.quiet:
            return 0.0
        self.pulled = self.sharing.counts
        before, after = self.current, self._initial + self.sharing.belief.values
        if self._made > self._pushed:
            after += self._unpushed
        change = float(np.linalg.norm(after - before))
        self.values = after
        return change

    def prepare(self, number: int, edges: Edges) -> None:
        """Be told of a change that somebody asks for, and say whether this node is ready for it.

        A node that is ready ends only once it is told what becomes of the change.

        Args:
            number: of the change; one that has been made, or that is known, changes nothing.
            edges: the tree as it is to be.
        """
        if not self.changes.is_known(number):
            self.changes.prepare(number, edges, self._why_not())

    def decide(self, number: int, *, make: bool) -> None:
        """Be told that all are ready for a change, and make it; or that it is not made."""
        if not self.changes.awaits(number):
            return
        if make:
            self.rewire(number)
        else:
            self.changes.drop()
            self._end_at_last()

    def rewire(self, number: int) -> None:
        """Make a change of the tree, if this node knows of it; who hears of it from a new neighbour does so, too.

        Until all new neighbours have spoken the replica goes on with own updates, and is not pulled; workers with a
        bound (ssp, assp) may stop at it, as no counts of others come.
        """
        changed = self.changes.make(number, self._made)
        if changed is None:
            return
        if self._survivors is not None:
            self._survivors.edges = self.changes.edges
        self._meet(changed)
        self.changes.settle(self._made)
        self._end_at_last()

    def end(self) -> None:
        """Make no more updates; what was planned is changed before, and what may yet be is waited for."""
        self._ends = self.changes.asked
        if not self._ends:
            self.rewire(PLANNED)
            self.sharing.end()

    def _end_at_last(self) -> None:
        """End, if that had to wait for what becomes of a change, of which a neighbour may tell before anybody else."""
        if self._ends:
            self.end()

    def reports(self) -> Iterator[Adjusted | Sample]:
        """What there is to tell of changes of the tree; see `TreeChanges.reports`."""
        return self.changes.reports(self._made)

    def react(self, clocks: ShareClocksState) -> Iterator[Notice]:
        """Bring clocks up to date after a change, and in bulk-synchronous rounds the replica; who is to be told."""
        sharing, rounds = self.sharing, self._consistency == "bsp"
        self._reached = (clocks.made, clocks.images)
        if rounds and sharing.rounds() > self._round:
            self._round = sharing.rounds()
            self.pull()
        if self._survivors is not None:
            self._say_how_far(self._survivors)
            self._pass_on()
            yield from (Notice(node, WORDS) for node in self._words)
        if sharing.whole:
            clocks.follow(sharing, self._consistency, self._round)
        yield from (Notice(*each) for each in self.turns.due())

    def tick(self) -> Iterator[Notice]:
        """With a period: make the sums of all neighbours who have not been told what has changed; who is to be told."""
        yield from (Notice(*each) for each in self.turns.owed())

    def take(self, notice: Notice, workers: int) -> Iterator[Contribution]:
        """The messages that a neighbour is to be sent now; they count as sent.

        Args:
            notice: who is to be told, as `react` or `tick` gave it.
            workers: how many nodes the learning rate is for.
        """
        if notice.turn == WORDS:
            yield from self._words.pop(notice.to, ())
            return
        told = self.turns.take(notice.to, notice.turn)
        if told is not None:
            made = self._made if self._consistency != "bsp" else int(self.sharing.own.counts[self.sharing.node])
            yield from self.messages.cut(notice.to, told, made, workers)

    @property
    def over(self) -> bool:
        """Whether nobody has anything to tell this node, nor needs anything of it."""
        if self._newcomers is not None and self._newcomers.late:
            return True
        return self.sharing.through if self._survivors is None else self._survivors.over

    def lose(self, node: int) -> None:
        """Note that a node has left: it has ended, or died.

        Raises:
            LostUpdatesError: it has died, and what it held is nowhere else.
        """
        survivors = self._survivors
        if node == self.sharing.node:
            return  # it says nothing more to itself
        if survivors is None:
            self.sharing.leave(node)
        if survivors is None or survivors.over:
            return
        self.messages.forget(node)
        self._words.pop(node, None)
        self._ahead = [each for each in self._ahead if each.origin != node]
        if self._newcomers is not None:
            self._newcomers.leave(node)
        place, side = survivors.place_of(node), self.sharing.sides.get(node)
        if place == NOBODY or not survivors.joined:
            survivors.lose(node, None)
            return
        if self.changes.under_way or (side is not None and not side.heard):
            what = f"node {node} of the tree has died before it had told a new neighbour all that it has"
            raise LostUpdatesError(what)
        mine = None if side is None else Claim(side.stamp, side.basis)
        for other in survivors.lose(node, mine):
            self._say(other, CLAIM, about=place, claim=mine)
        self.sharing.forget(node, behind(survivors.tree, self.sharing.node))
        self._take_over(survivors)

    def greet(self, node: int) -> None:
        """Note that a node has come while the others go on."""
        if self._newcomers is not None:
            self._newcomers.greet(node, is_open=self._is_open)

    def arrivals(self) -> Iterator[Arrival]:
        """Who has joined, or is too late for it, since this was last asked."""
        if self._newcomers is not None:
            arrivals, self._newcomers.arrivals = self._newcomers.arrivals, []
            yield from arrivals

    def leave(self) -> Iterator[Notice]:
        """Make the last sums of a node without which the others go on; who is to be told.

        They follow on those under way, and hold all that this node has made: what it is, others then share.
        """
        if self._survivors is None or self._survivors.over or self.sharing.quiet:
            return
        yield from (Notice(*each) for each in self.turns.owed())

    def hear(self, said: Contribution) -> bool:
        """Take in what a node says; whether anything has come of it."""
        survivors, newcomers = self._survivors, self._newcomers
        if survivors is not None and newcomers is not None:
            if said.word in OF_NEWCOMERS:
                is_open, busy = self._is_open, self.changes.under_way
                self._meet(newcomers.hear(said, is_open=is_open, busy=busy, reached=self._reached))
                self._take_over(survivors)
                return True
            if not newcomers.knows(said.origin):
                return False  # it is for another that had this node's number before
        if survivors is not None and said.word:
            basis = dict(zip(*said.basis.tolist(), strict=True))
            survivors.hear(said.word, said.origin, said.about, Claim(said.stamp, basis))
            self._take_over(survivors)
            return True
        told = self.arrive(said)
        if told is not None:
            news = self.sharing.absorb(said.origin, told)
            if newcomers is not None:
                newcomers.settle()
            return news
        strange = said.origin not in self.sharing.sides and said.epoch == self.changes.epoch
        if survivors is not None and survivors.joined and strange and survivors.place_of(said.origin) != NOBODY:
            self._ahead.append(said)  # it has come to be a neighbour, and this node will hear of it
        return False

    def arrive(self, said: Contribution) -> Told | None:
        """What a neighbour says, once all of it has come; None before, and of who is none any more.

        What comes from a tree that has been changed as this node is to change it makes it do so, too.
        """
        self.rewire(said.epoch)
        side = self.sharing.sides.get(said.origin)
        if side is None or said.epoch != side.epoch:
            return None
        total = None
        if said.number:
            total = self.messages.gather(said, side.total.values)
            if total is None:
                return None
        basis = dict(zip(*said.basis.tolist(), strict=True))
        held = frozenset(said.held.tolist())
        return Told(said.number, said.epoch, said.heard, said.final, said.known, total, said.stamp, basis, held)

    def _why_not(self) -> str:
        """Why nobody may ask this node for a change; empty if somebody may."""
        if self._consistency == "bsp" or self.sharing.waves == "root":
            return "its tree cannot be changed with bsp or waves=root"
        if self._ends or self.sharing.ended:
            return "it has made all its updates"
        left = self._survivors
        if left is not None and (left.dead or left.leaves or not left.joined):
            return "nodes of the tree have died, or come, and it is changed no more"
        return ""

    def tensors(self) -> dict[str, np.ndarray]:
        """``values``; ``x`` (weights,), what is pushed of this node's own updates, and ``counts`` of them.

        And ``taus/n``, those that are adapted for what neighbour n is sent, once there are any.
        """
        own = self.sharing.own
        return (
            super().tensors()
            | {"x": own.values, "counts": own.counts, "unpushed": self._unpushed}
            | self.messages.taus()
        )

    def kept(self) -> dict[str, np.ndarray]:
        """What `tensors` gives; the replica is copied only when somebody writes."""
        return {name: tensor.copy() for name, tensor in self.tensors().items() if name != "values"} | super().kept()

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over the replica and x; what neighbours know is told anew, and the replica goes on until then."""
        super().restore(tensors)
        sharing = self.sharing
        sharing.own.values[:], sharing.own.counts[:] = tensors["x"], tensors["counts"]
        self._unpushed[:] = tensors["unpushed"]
        self._pushed = self._round = int(sharing.own.counts[sharing.node])
        sharing.begin_again(
            {neighbour: side.behind for neighbour, side in sharing.sides.items()}, epoch=self.changes.epoch
        )
        self._meet(sharing.sides)
        self.messages.go_on(tensors)

    def resume(self, tensors: Mapping[str, np.ndarray], node: int, steps: Mapping[int, int]) -> None:
        """Go on behind the last gradient that was made; one that has come late has not made all that it counts."""
        super().resume(tensors, node, steps)
        made = steps.get(node, self._pushed)
        if self._consistency == "bsp":  # one that was made and not pushed is dropped, and counts
            self.sharing.own.counts[node] = self._made = self._pushed = self._round = made
        else:
            self._made = self._pushed + (made % self._every if tensors else 0)

    def _meet(self, neighbours: Iterable[int]) -> None:
        """Begin with neighbours that have been told nothing yet."""
        for neighbour in neighbours:
            self.turns.meet(neighbour)
            self.messages.meet(neighbour)

    @property
    def _is_open(self) -> bool:
        """Whether a node may join this one: nothing of what it has told, or has, is final."""
        final = self._said[THROUGH] or self.over or self.sharing.through
        return not final and not any(side.closed for side in self.sharing.sides.values())

    def _pass_on(self) -> None:
        """Have newcomers that wait be noted, if they may be, and told what there is to tell them."""
        survivors, newcomers = self._survivors, self._newcomers
        if survivors is None or newcomers is None:
            return
        if survivors.over:
            newcomers.be_late()
        self._meet(newcomers.release(is_open=self._is_open, busy=self.changes.under_way, reached=self._reached))
        if survivors.joined and not self._entered:
            self._entered, self.changes.epoch = True, newcomers.epoch
            for host in self.sharing.sides:
                self.turns.meet(host)
            self.pull()  # or the first gradients would be of the model at the start
        sayings, newcomers.sayings = newcomers.sayings, []
        for each in sayings:
            said = self._word(each.word, each.about, Claim(each.turn, {}))
            said = dataclasses.replace(
                said, basis=each.leaves, held=each.dead, known=each.edges, counts=each.counts, epoch=self.changes.epoch
            )
            self._words.setdefault(each.to, []).append(said)

    def _say_how_far(self, survivors: Survivors) -> None:
        """Tell all others, once, that this node is through; and then that all are, if they are."""
        if not survivors.joined:
            return
        if self.sharing.through and not self._said[THROUGH]:
            self.pull()
            self._tell_all(survivors, THROUGH)
        survivors.over |= self._said[THROUGH] and survivors.all_through
        if survivors.over and not self._said[OVER]:
            self._tell_all(survivors, OVER)

    def _tell_all(self, survivors: Survivors, word: str) -> None:
        self._said[word] = True
        for other in survivors.others:
            self._say(other, word)

    def _say(self, node: int, word: str, *, about: int = 0, claim: Claim | None = None) -> None:
        self._words.setdefault(node, []).append(self._word(word, about, claim or Claim(0, {})))

    def _word(self, word: str, about: int, claim: Claim) -> Contribution:
        stamp, basis = claim
        said = Told(0, self.changes.epoch, 0, final=False, known=_NO_COUNTS, total=None, stamp=stamp, basis=basis)
        return self.messages.word(said, word, about)

    def _take_over(self, survivors: Survivors) -> None:
        """Take over what is due of dead neighbours, and take in what the new ones have said already."""
        for share in survivors.shares():
            now = behind(survivors.tree, self.sharing.node)
            self.sharing.bereave(share.dead, first=share.first, number=share.number)
            for node in share.neighbours:
                self.sharing.meet(node, now[node], epoch=self.changes.epoch)
            self._meet(share.neighbours)
            ahead, self._ahead = self._ahead, []
            for said in ahead:
                self.hear(said)
