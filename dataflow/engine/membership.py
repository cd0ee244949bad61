"""Which nodes of a job are alive, as which incarnation, and when one that has died is started again.

Invariant: the epoch grows with every change of who is a member, and an incarnation that was buried is never one again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

RESTARTS: Final = 3
"""A node is started again so often in `RESTARTS_S` seconds, or in all if it never runs for `RAN_S`, and then no more.

When its agent was lost, and is back, is not counted.
"""

RESTARTS_S: Final = 600.0

RAN_S: Final = 30.0
"""A node that dies sooner, in seconds since it began to run, has not been helped by its restart."""

RELINKS: Final = 20
"""A node that was well but for its links is started again so often in `RELINKS_S` seconds."""

RELINKS_S: Final = 3600.0

BACKOFF_S: Final = (1.0, 30.0)
"""Longest pause before the first restart, in seconds; it doubles up to the second number."""


class Life(StrEnum):
    """What has become of a node."""

    JOINING = "joining"
    """Its process prepares."""
    ALIVE = "alive"
    """It is a member."""
    ENDED = "ended"
    """It has done its part."""
    DYING = "dying"
    """It is buried, and its process may still be there."""
    WAITING = "waiting"
    """It is buried, and will be started again."""
    AWAY = "away"
    """It is buried, its agent is gone, and either may come back."""
    GONE = "gone"
    """It is buried for good."""
    LEFT = "left"
    """It has left by request, and comes back no more."""
    VACANT = "vacant"
    """Nobody has had its place yet."""


BURIED: Final = frozenset({Life.DYING, Life.WAITING, Life.AWAY, Life.GONE, Life.LEFT, Life.VACANT})


@dataclass(frozen=True, slots=True)
class Members:
    """A membership, as nodes are told it.

    Args:
        epoch: its number, from 1.
        incarnations: those of the members, by node number.
        addresses: ``host:port`` of the members that have not ended.
        ended: nodes that have, members or not.
    """

    epoch: int
    incarnations: dict[int, int]
    addresses: dict[int, str]
    ended: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Changes:
    """What a newer membership means to a node.

    Args:
        left: nodes that are members no more, or of which another incarnation is.
        joined: by node that is a member now and was not, its incarnation.
    """

    left: tuple[int, ...]
    joined: dict[int, int]


def changes(before: Members | None, now: Members, node: int) -> Changes:
    """What changes for `node`; a node that has heard of no membership before takes all for first incarnations.

    To it a member that has ended is one that is not there: it never joins.
    """
    others = {peer: times for peer, times in now.incarnations.items() if peer != node}
    if before is None:
        return Changes((), {peer: times for peer, times in others.items() if times and peer in now.addresses})
    was = {peer: times for peer, times in before.incarnations.items() if peer != node}
    return Changes(
        tuple(peer for peer, times in was.items() if others.get(peer) != times),
        {peer: times for peer, times in others.items() if was.get(peer) != times},
    )


@dataclass(slots=True)
class NodeLife:
    """What is known of a node.

    Args:
        life: what has become of it.
        incarnation: how often it had been started before, since there is a membership.
        address: where it listens.
        began_s: when it began to run; infinite before.
        paused: number of the last pause of which it has told; 0 if it has told of none.
        admitted: the epoch since which it is a member.
        due_s: when it is started again, or has been away or preparing for too long.
        ran: it has run for `RAN_S` since it was started.
        restarts: when it was started again after it had died by itself.
        relinks: when it was started again because its links were broken.
        cut: it was buried because of its links.
        leaves_since: the epoch in which it was asked to leave, or if later the job's first; None: it was not asked.
        new: it has come while the job ran, and has not been a member yet.
        has_left_it: it has ended, and has left the job's last work to another one.
    """

    life: Life = Life.JOINING
    incarnation: int = 0
    address: str = ""
    began_s: float = math.inf
    paused: int = 0
    admitted: int = 0
    due_s: float = math.inf
    ran: bool = False
    restarts: list[float] = field(default_factory=list)
    relinks: list[float] = field(default_factory=list)
    cut: bool = False
    leaves_since: int | None = None
    new: bool = False
    has_left_it: bool = False

    @property
    def running(self) -> bool:
        """Whether it has begun to run."""
        return self.began_s < math.inf

    def forget(self, now: float) -> None:
        """Forget restarts of long ago, of a node that has run since it was last started: else that has not helped."""
        if self.ran:
            self.restarts = [at_s for at_s in self.restarts if now - at_s < RESTARTS_S]
            self.relinks = [at_s for at_s in self.relinks if now - at_s < RELINKS_S]


class Membership:
    """The nodes of a job.

    Args:
        nodes: how many.
        needed: those that the job cannot do without.
        min_nodes: the fewest that it goes on with.
        rng: draws the jitter of restarts.
        vacant: those that are not there at the start.
        irreplaceable: those that are never started again once there is a membership, and whose places nobody takes.
    """

    def __init__(
        self,
        nodes: int,
        needed: Collection[int],
        min_nodes: int,
        rng: random.Random,
        vacant: Collection[int] = (),
        irreplaceable: Collection[int] = (),
    ) -> None:
        self.epoch = 0
        self.nodes = [NodeLife(Life.VACANT if node in vacant else Life.JOINING) for node in range(nodes)]
        self.needed, self.min_nodes, self._rng = frozenset(needed), min_nodes, rng
        self.irreplaceable = frozenset(irreplaceable)

    def __getitem__(self, node: int) -> NodeLife:
        return self.nodes[node]

    def those(self, *lives: Life) -> tuple[int, ...]:
        """The nodes of which one of these has become."""
        return tuple(node for node, each in enumerate(self.nodes) if each.life in lives)

    def members(self) -> Members:
        """The membership now."""
        alive = self.those(Life.ALIVE)
        ended = [node for node in self.those(Life.ENDED) if self.nodes[node].admitted]
        return Members(
            self.epoch,
            {node: self.nodes[node].incarnation for node in sorted((*alive, *ended))},
            {node: self.nodes[node].address for node in alive},
            frozenset(self.those(Life.ENDED)),
        )

    def can_be_founded(self, now: float) -> bool:
        """Whether all nodes are prepared, but for those that have been given up."""
        rest = [each for each in self.nodes if not each.address]
        away = [each for each in rest if each.life is Life.AWAY and now >= each.due_s]
        gone = [each for each in rest if each.life in (Life.GONE, Life.LEFT, Life.VACANT)]
        return len(rest) < len(self.nodes) and len(rest) == len(away) + len(gone)

    def found(self) -> Members:
        """Make all nodes that are prepared members; the first membership."""
        self.epoch = 1
        for each in self.nodes:
            if each.address:
                each.life, each.admitted, each.due_s = Life.ALIVE, 1, math.inf
        return self.members()

    def admit(self, node: int, address: str) -> Members:
        """Make a node a member; the new membership."""
        self.epoch += 1
        each = self.nodes[node]
        each.life, each.address, each.admitted, each.due_s = Life.ALIVE, address, self.epoch, math.inf
        each.new = False
        return self.members()

    def bury(self, node: int, life: Life, now: float, due_s: float = math.inf) -> bool:
        """Let a node be no member any more; whether it was one."""
        each = self.nodes[node]
        was_member = each.life is Life.ALIVE
        each.ran |= now - each.began_s >= RAN_S
        each.forget(now)
        each.life, each.due_s, each.began_s, each.address = life, due_s, math.inf, ""
        self.epoch += was_member
        return was_member

    def dies_for_good(self, node: int) -> bool:
        """Whether a node that dies is never started again: the others have begun, and nothing brings it to them."""
        return self.epoch > 0 and node in self.irreplaceable

    def strike_off(self, node: int) -> Members:
        """Let a node that has ended be no member any more; the new membership."""
        self.epoch += 1
        self.nodes[node].admitted = 0
        return self.members()

    def arrive(self, node: int, now: float, due_s: float) -> int:
        """Let another one have the place of a node, to be ready at `due_s`; its incarnation."""
        self.nodes[node] = NodeLife(incarnation=self.nodes[node].incarnation, new=True)
        return self.restart(node, now, due_s, counts=False)

    def retry(self, node: int, now: float) -> None:
        """A process that is gone is started again after a while, unless that was tried too often.

        Crashes and broken links are counted apart: a network that fails now and then is no defect of the job.
        """
        each = self.nodes[node]
        tried, bound = (len(each.relinks), RELINKS) if each.cut else (len(each.restarts), RESTARTS)
        if tried >= bound:
            each.life, each.due_s = Life.GONE, math.inf
            return
        pause_s = min(BACKOFF_S[1], BACKOFF_S[0] * 2.0**tried)
        each.life, each.due_s = Life.WAITING, now + pause_s * self._rng.uniform(0.5, 1.0)

    def restart(self, node: int, now: float, due_s: float, *, counts: bool = True) -> int:
        """Begin to start a node again, to be ready at `due_s`; its new incarnation.

        It is the same one before there is a membership: nobody knows it, and it has missed nothing.
        """
        each = self.nodes[node]
        each.life, each.due_s, each.incarnation = Life.JOINING, due_s, each.incarnation + bool(self.epoch)
        if counts:
            (each.relinks if each.cut else each.restarts).append(now)
        each.cut, each.ran, each.paused = False, False, 0
        return each.incarnation

    def served(self) -> set[int]:
        """The nodes that those are there for that the job cannot do without; none if it can do without nobody."""
        return set(range(len(self.nodes))) - self.needed - set(self.those(Life.VACANT))

    def lacks(self, now: float) -> tuple[int, ...]:
        """The nodes for want of which the job cannot go on, if it cannot; whoever may still come back is none.

        Where some nodes are needed and all others are gone, those have nobody left to be there for.
        """
        out = [
            node
            for node, each in enumerate(self.nodes)
            if each.life in (Life.GONE, Life.LEFT) or (each.life is Life.AWAY and now >= each.due_s)
        ]
        served, vacant = self.served(), self.those(Life.VACANT)
        too_few = len(self.nodes) - len(vacant) - len(out) < self.min_nodes or (bool(served) and served <= set(out))
        return tuple(node for node in out if too_few or node in self.needed)

    def through(self) -> bool:
        """Whether enough have ended, and nobody is left who has not, nor anybody who is needed and may come back."""
        pending = set(self.those(Life.JOINING, Life.DYING, Life.WAITING, Life.AWAY))
        enough = len(self.those(Life.ENDED)) >= self.min_nodes
        return enough and not self.those(Life.ALIVE) and pending.isdisjoint(self.needed)

    def tried(self, node: int) -> str:
        """How often a node that is gone was started again lately, for people; empty if less than it may be."""
        each = self.nodes[node]
        if len(each.restarts) >= RESTARTS:
            return f" (started again {RESTARTS} times)"
        return f" (started again {RELINKS} times)" if len(each.relinks) >= RELINKS else ""

    def spares(self, node: int) -> bool:
        """Whether the job can end without a node: with those that have ended, and those that do not leave before.

        It cannot without the last of those that needed nodes serve, unless one of these has ended and serves no more.
        """
        staying = {other for other in self.those(Life.ALIVE) if self.nodes[other].leaves_since is None}
        others = (staying | set(self.those(Life.ENDED))) - {node}
        is_last = self.served().isdisjoint(others) and self.needed.isdisjoint(self.those(Life.ENDED))
        return node not in self.needed and not is_last and len(others) >= self.min_nodes

    def due(self, now: float) -> tuple[int, ...]:
        """Nodes that are to be started again, or have been preparing for too long."""
        return tuple(node for node in self.those(Life.WAITING, Life.JOINING) if now >= self.nodes[node].due_s)

    def next_due_s(self, now: float) -> float:
        """When something is due, later than `now` if it was due before; infinite if nothing is."""
        return min((each.due_s for each in self.nodes if each.due_s > now), default=math.inf)
