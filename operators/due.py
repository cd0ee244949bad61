"""Due: when to look at a replica. Keeps those who look from being handed a snapshot after every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, Operator, Sample
from dataflow.ports import In, Out
from dataflow.reports import LEFT_TO_OTHERS
from dataflow.state import Reads, State, StateElement, StateKind, Writes
from operators.messages import Progress, Share
from operators.roll import Present

Every: TypeAlias = int | Literal["epoch", "end"]
"""When something is due: after so many images of the whole role, every epoch, or at the end only."""


@dataclass
class NewestState(State):
    """The newest progress message, and which nodes have died, be it that others have come in their places."""

    progress: Progress
    dead: set[int] = field(default_factory=set)

    def snapshot(self) -> Progress:
        """The message."""
        return self.progress

    def tensors(self) -> dict[str, np.ndarray]:
        """``progress``: step, images, epoch and loss."""
        p = self.progress
        return {"progress": np.array([p.step, p.images, p.epoch, p.loss], np.float64)}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over the message."""
        step, images, epoch, loss = tensors["progress"].tolist()
        self.progress = Progress(int(step), int(images), epoch, loss)


class Newest(StateElement):
    """The newest progress message of a node."""

    kind: ClassVar[StateKind] = StateKind.LOCAL
    anybodys: ClassVar[bool] = True

    def create(self, node: NodeContext) -> NewestState:
        """Nothing done yet."""
        return NewestState(Progress(0, 0, 0.0, float("nan")))


class Due(Operator):
    """Lets the progress through at which something is due, and the last one again, as final, when all has ended.

    What is `due` is let through on every node, and on one node `in_turn`: on the next one each time, and the final one
    on the first. So work that one replica is enough for is divided among the nodes. `shared` is work of which every
    node does a part, for the role's first member to put together; while that is away, and for the final, the node whose
    turn it is does all of it. Nodes that have died, or not caught up yet, have no turn and no share, nor have those
    without images in a warm-up.

    Args:
        every: see `Every`.
    """

    pool = "network"
    every: Every = "epoch"
    progress = In(Progress, capacity=64)
    due = Out(Progress)
    in_turn = Out(Progress)
    shared = Out(Share)
    newest = Writes()
    roll = Reads()

    def process(self, progress: Progress, newest: NewestState, roll: Present, node: NodeContext) -> Emissions:
        """The message, if something is due."""
        before, newest.progress = newest.progress, progress
        turn, has_come_back = turn_of(progress, self.every), node.incarnation > 0 and not before.step
        if turn > turn_of(before, self.every) and not has_come_back:
            yield self.due(progress)
            members = node.members[node.role]
            present = roll.of(members)[: progress.readers or None]
            has_turn = bool(present) and present[(turn - 1) % len(present)] == node.index
            if has_turn:
                yield self.in_turn(progress)
            sharing = present if members[0] in present else (node.index,) if has_turn else ()
            if node.index in sharing:
                yield self.shared(_share(turn, sharing, progress))

    def on_left(self, member: int, newest: NewestState, *, ended: bool) -> Emissions:
        """Note that a node has died: the roll may say so later, or not, once nobody keeps it any more."""
        if not ended:
            newest.dead.add(member)
        yield from ()

    def on_end(self, newest: NewestState, roll: Present, node: NodeContext) -> Emissions:
        """The final message."""
        final = replace(newest.progress, final=True)
        yield self.due(final)
        if _comes_last(newest, roll, node):
            yield self.in_turn(final)
            yield self.shared(_share(turn_of(final, self.every), (node.index,), final))


class DueInSuccession(Due):
    """As `Due`; and once the role's first member has died, also in its last work, the next one does that.

    So the others wait for the end of that work before they say that all is final. Who leaves it to the next one does
    not wait for that, too, and says so: if nobody ends who has done it, the job is not done.
    """

    receives = True
    over = In(Progress)

    def on_end(self, newest: NewestState, roll: Present, node: NodeContext) -> Emissions:
        """The final message, and whether this node leaves the last work to one that it does not wait for."""
        yield from super().on_end(newest, roll, node)
        first = node.members[node.role][0]
        if (first == node.index or first in newest.dead) and not _comes_last(newest, roll, node):
            yield Sample(LEFT_TO_OTHERS, 1.0)


def _comes_last(newest: NewestState, roll: Present, node: NodeContext) -> bool:
    """Whether the last work is this node's."""
    members = node.members[node.role]
    never_died = tuple(member for member in members if member not in newest.dead)
    first = roll.first(never_died)
    return (roll.first(members) if first is None else first) == node.index


def turn_of(progress: Progress, every: Every) -> int:
    """How many times something was due by then, that is so again and again."""
    if every == "end":
        return 0
    return int(progress.epoch) if every == "epoch" else progress.images // every


def _share(turn: int, nodes: Sequence[int], progress: Progress) -> Share:
    return Share(turn, np.array(nodes, np.int64), progress.step, progress.epoch, progress.loss, progress.final)
