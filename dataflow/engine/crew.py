"""The nodes of one job as its coordinator knows them: who they are, how they are, and the commands that say so.

What becomes of the job for that is not decided here, nor when a node is taken for dead. No thread, socket or clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from dataflow.engine.broken_links import BrokenLinks
from dataflow.engine.coordination import ChangeNode, Command, Connect, Deploy, NodeFailed, Start
from dataflow.engine.deadlines import Deadlines
from dataflow.engine.draining import count_from_now, leave_with
from dataflow.engine.membership import Life, Membership

OUT: Final = (Life.GONE, Life.LEFT)
"""Nodes of which nothing more is expected."""


class Crew:
    """The nodes of one job.

    Args:
        nodes: what has become of them.
        names: of them, by number.
        deadlines: how long they are waited for.

    Attributes:
        nodes, names: as above.
        causes: what each died of that has; which died last comes last.
        ready: nodes that are ready before the job runs.
        broken: their links that are.
    """

    def __init__(self, nodes: Membership, names: Sequence[str], deadlines: Deadlines) -> None:
        self.nodes, self.names, self._deadlines = nodes, list(names), deadlines
        self.causes: dict[int, str] = {}
        self.ready: set[int] = set()
        self.broken = BrokenLinks()

    def begin_again(self, nodes: Membership) -> None:
        """Have others do what these were to do, which are all dead; what they died of is known still."""
        self.nodes, self.broken = nodes, BrokenLinks()
        self.ready.clear()

    @property
    def all(self) -> tuple[int, ...]:
        """Every node that there is or was."""
        return tuple(node for node in range(len(self.names)) if self.nodes[node].life is not Life.VACANT)

    @property
    def are_ready(self) -> bool:
        """Whether all members are ready, if there are any."""
        members = self.nodes.those(Life.ALIVE)
        return bool(members) and self.ready.issuperset(members)

    @property
    def last_death(self) -> tuple[int, str]:
        """The node that died last, and what of."""
        return list(self.causes.items())[-1]

    @property
    def not_ready(self) -> list[int]:
        """Nodes that the job cannot begin without, and is waiting for: those that have not prepared, if any."""
        missing = [node for node in self.all if node not in self.ready and self.nodes[node].life not in OUT]
        return [node for node in missing if self.nodes.epoch or not self.nodes[node].address] or missing

    def list_of(self, nodes: Sequence[int]) -> str:
        """Nodes, for people."""
        return ", ".join(self.names[node] for node in nodes)

    def unheard(self, epoch: int | None) -> list[int]:
        """Nodes that have joined after the membership of number `epoch`; none if that was the newest: None."""
        alive = self.nodes.those(Life.ALIVE)
        return [] if epoch is None else [node for node in alive if self.nodes[node].admitted > epoch]

    def why_failed(self, event: NodeFailed) -> tuple[str, str]:
        """Why a node says that it has failed; and the same with its name, and what it was started again for."""
        node, where = event.node, event.where
        text = event.text + (f" at {where}" if where not in event.text else "")
        reason = f"node {self.names[node]}: {text}"
        if node in self.causes and self.nodes[node].incarnation and not self.nodes[node].running:
            reason += f"; it was started again because {self.causes[node]}"
        return text, reason

    # What is said of nodes

    def change(self, node: int, reason: str = "") -> ChangeNode:
        """Say what has become of a node."""
        each = self.nodes[node]
        return ChangeNode(node, each.life, each.incarnation, self.nodes.epoch, reason)

    def tell(self) -> list[Command]:
        """Tell every member who the members are."""
        members = self.nodes.members()
        return [Connect(node, members, self.nodes[node].paused) for node in self.nodes.those(Life.ALIVE)]

    # What becomes of them

    def found(self, now: float) -> list[Command]:
        """Make all nodes members once every one is prepared that is not given up."""
        if self.nodes.epoch or not self.nodes.can_be_founded(now):
            return []
        self.nodes.found()
        back = [self.change(node) for node in self.nodes.those(Life.ALIVE) if node in self.causes]
        return [*back, *self.tell()]

    def admit(self, node: int, address: str) -> list[Command]:
        """Make a node a member that is prepared."""
        self.nodes.admit(node, address)
        return [self.change(node), *self.tell()]

    def strike_off(self, node: int) -> list[Command]:
        """Let a node that has ended be no member any more."""
        self.nodes.strike_off(node)
        return [self.change(node), *self.tell()]

    def start(self, now: float) -> list[Command]:
        """Start all members."""
        members = self.nodes.those(Life.ALIVE)
        for each in members:
            self.nodes[each].began_s = now
        count_from_now(self.nodes)
        return [*(Start(each) for each in members), *leave_with(self.nodes, self.all)]

    def arrive(self, node: int, name: str, now: float) -> list[Command]:
        """Have a node prepare that has come, and is called `name`, in the place of number `node`."""
        before, self.names[node] = self.names[node], name
        replaced = before != name and self.nodes[node].life is not Life.VACANT
        self.causes.pop(node, None)
        incarnation = self.nodes.arrive(node, now, now + self._deadlines.preflight_s)
        why = f"{name} has come" + (f" in the place of {before}" if replaced else "")
        return [self.change(node, why), Deploy(node, incarnation)]

    def restart(self, node: int, now: float, *, counts: bool) -> list[Command]:
        """Start a node again; `counts`: as a try."""
        incarnation = self.nodes.restart(node, now, now + self._deadlines.preflight_s, counts=counts)
        return [self.change(node), Deploy(node, incarnation)]

    def bury(self, node: int, life: Life, cause: str, now: float, *, cut: bool, spare: bool) -> bool:
        """Bury a node; whether it was a member.

        Args:
            node: its number.
            life: what is left of it.
            cause: what it died of.
            now: seconds on the clock.
            cut: it died because of its links.
            spare: it is not started again.
        """
        each = self.nodes[node]
        # A newcomer that fails would fail again; one that was only lost has not shown that it cannot prepare.
        fails = each.new and (life is not Life.AWAY or each.life is Life.DYING)
        if life is not Life.DYING and each.leaves_since is not None:
            life = Life.LEFT
        elif life is not Life.DYING and (self.nodes.dies_for_good(node) or fails):
            life = Life.GONE
        due_s = now + self._deadlines.return_s if life is Life.AWAY else math.inf
        was_member = self.nodes.bury(node, life, now, due_s)
        each.cut |= cut
        if life is Life.WAITING:
            if spare:
                each.life = Life.GONE
            else:
                self.nodes.retry(node, now)
        self.ready.discard(node)
        self.causes.pop(node, None)
        self.causes[node] = cause
        self.broken.forget(node)
        return was_member
