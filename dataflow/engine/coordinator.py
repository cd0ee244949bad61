"""The coordinator of one job: what happened goes in, what to do comes out. No thread, socket, clock or file.

A job's life is `job_life.TRANSITIONS`, a table; an event is first reduced to at most one `Trigger`, and the table says
where that leads. Invariant: the state changes by the table only, exactly one `Finish` is commanded, and none after it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dataflow.engine import coordination as co
from dataflow.engine.adjusting import Adjusting, tells_of_change
from dataflow.engine.arriving import open_places
from dataflow.engine.beginning_again import START, BeginningAgain, origin_of
from dataflow.engine.crew import OUT, Crew
from dataflow.engine.deadlines import Deadlines
from dataflow.engine.draining import DRAINED, leave_with, others_have_stayed
from dataflow.engine.job_life import ENDED, TRANSITIONS, JobState, StoppedBy, Trigger
from dataflow.engine.membership import Life, Membership
from dataflow.engine.shortage import nobody_left, shortage
from dataflow.engine.stop_watch import StopWatch
from dataflow.reports import LEFT_TO_OTHERS, OperatorReport, samples_named

if TYPE_CHECKING:
    from dataflow.plan.job import StopRules


class JobCoordinator:
    """Decides what happens to one job.

    Args:
        nodes: number of nodes of the job.
        rules: when to stop it.
        deadlines: how long to wait for what.
        min_nodes: the fewest nodes that it goes on with.
        needed: nodes that it cannot do without.
        irreplaceable: nodes that are never started again once there is a membership, and whose places nobody takes.
        adjusted: nodes with operators that can be told to change something while the job runs.
        vacant: places that no node has at the start.
        goes_on: whether it begins again from its newest checkpoint, if it has one, once all its nodes have died.
        rng: draws the jitter of restarts.

    A master that takes a job over gives a fresh coordinator the same events at the same times, and has it where it was.

    Attributes:
        state: where the job is.
        stopped_by: the first stop rule that held, or cancel; empty before.
        started_s: when it began to run, the first time, on the clock of `now`; None before.
        adjusting: how far changes of it are that were asked for while it runs.
        again: what it begins again from once all its nodes have died.
    """

    def __init__(
        self,
        nodes: int,
        rules: StopRules,
        deadlines: Deadlines | None = None,
        *,
        min_nodes: int = 1,
        needed: Collection[int] = (),
        irreplaceable: Collection[int] = (),
        adjusted: Collection[int] = (),
        vacant: Collection[int] = (),
        goes_on: bool = False,
        rng: random.Random | None = None,
    ) -> None:
        self.state = JobState.SUBMITTED
        self.adjusting = Adjusting(adjusted)
        self.stopped_by: StoppedBy = ""
        self.started_s: float | None = None
        self._fresh = partial(Membership, nodes, needed, min_nodes, rng or random.Random(0), vacant, irreplaceable)
        self.again = BeginningAgain(allowed=goes_on)
        self._rules, self._watch = rules, StopWatch(rules)
        self._deadlines = deadlines or Deadlines()
        self._crew = Crew(self._fresh(), [f"node-{index}" for index in range(nodes)], self._deadlines)
        self._deadline_s: float | None = None
        self._timer_s = math.inf

    @property
    def nodes(self) -> Membership:
        """What has become of its nodes."""
        return self._crew.nodes

    def minds(self, event: co.Event) -> bool:
        """Whether an event can change anything: of what nodes report, only what a stop rule watches does."""
        if not isinstance(event, co.NodeReport):
            return True
        return tells_of_change(event.report) or self._watch.minds(event.report)

    def why_not_adjusted(self) -> str:
        """Why the job cannot be changed now; empty if it can."""
        if self.adjusting.nodes and (self.state is not JobState.RUNNING or self.stopped_by):
            return f"the job is {'ending' if self.stopped_by else self.state}"
        return self.adjusting.objection(self.nodes, self._crew.names)

    def why_not_drained(self, node: int) -> str:
        """Why a node of a job whose nodes can be changed cannot leave now, and when to ask again; empty if it can."""
        return self.adjusting.objection_to_drain(self.nodes, node, self._crew.names)

    def why_it_waits(self, reason: str) -> str:
        """Why the job waits for nodes, for people: why it does so anew, if it does, and for what."""
        return f"{self.again.told}; {reason}" if self.again.told else reason

    def handle(self, event: co.Event, now: float) -> list[co.Command]:
        """What to do about an event.

        Args:
            event: what happened. One that means nothing in the present state is ignored.
            now: seconds on a clock that never goes back.
        """
        if self.state in ENDED:
            return []
        commands = self._take(event, now)
        if self.state in ENDED:
            return commands
        due_s = math.inf if self._deadline_s is None else self._deadline_s
        if self.state in _GOING_ON:
            due_s = min(due_s, self._crew.broken.judge_s, self.nodes.next_due_s(now))
        if due_s < math.inf and (due_s != self._timer_s or isinstance(event, co.Tick)):
            commands.append(co.SetTimer(due_s))
        self._timer_s = due_s
        return commands

    def _take(self, event: co.Event, now: float) -> list[co.Command]:
        take = _TAKE[type(event)]
        return take(self, event, now)

    def _on_placed(self, names: tuple[str, ...], now: float) -> list[co.Command]:
        if self.again.looking:
            return []
        self._crew.names = list(names)
        return self._go(Trigger.PLACED, now)

    def _on_cancel(self, now: float) -> list[co.Command]:
        dropped = self.adjusting.drop("cancelled")  # nodes that are ready for a change wait to hear of it
        return dropped + self._go(Trigger.CANCEL, now, "cancelled") + self._all_gone(now)

    # Starting

    def _on_prepared(self, node: int, address: str, now: float) -> list[co.Command]:
        each = self.nodes[node]
        if each.life is not Life.JOINING:
            return []
        if self.state not in _GOING_ON:
            return []
        if not self.nodes.epoch:
            each.address = address
            return self._crew.found(now)
        if self._spare(node):
            return [co.KillNodes((node,)), *self._dies(node, Life.DYING, "the job is ending", now)]
        return self._crew.admit(node, address)

    def _begin(self, now: float) -> list[co.Command]:
        """Begin to run once all members are ready."""
        if not self._crew.are_ready:
            return []
        if all(self.nodes[node].incarnation for node in self.nodes.those(Life.ALIVE)):
            # Each would wait to be lent a model: no node is left that was to begin with one.
            last, cause = self._crew.last_death
            why = f"all nodes that it had at first have died, the last of them node {self._crew.names[last]}: {cause}"
            return self._begin_again(why, last, now)
        return self._go(Trigger.ALL_READY, now)

    def _on_ready(self, node: int, now: float) -> list[co.Command]:
        each = self.nodes[node]
        if each.life is not Life.ALIVE or each.running:
            return []
        if self.state is JobState.RUNNING:
            each.began_s = now
            stop: list[co.Command] = [co.StopNodes((node,), self.stopped_by)] if self.stopped_by else []
            return [co.Start(node), *stop, *leave_with(self.nodes, (node,))]
        if self.state is not JobState.DEPLOYING:
            return []
        self._crew.ready.add(node)
        return self._begin(now)

    # Running

    def _on_report(self, node: int, report: OperatorReport, now: float) -> list[co.Command]:
        if self.state is JobState.RUNNING and tells_of_change(report):
            return self.adjusting.take(node, self._crew.names[node], report, now)
        if self.state is not JobState.RUNNING or self.stopped_by or not self._watch.minds(report):
            return []
        if fault := self._watch.fault(report):
            return self._go(Trigger.RULE_BROKEN, now, fault)
        holds = self._watch.take(report)
        return self._stop(holds, now) if holds else []

    def _on_ended(self, event: co.NodeEnded, now: float) -> list[co.Command]:
        node, epoch, each = event.node, event.epoch, self.nodes[event.node]
        if self.state is JobState.CANCELLING:
            return self._on_gone(node, Life.ENDED, now) + self._tell_of_end(node)
        if self.state is not JobState.RUNNING or each.life is not Life.ALIVE:
            return []
        if each.leaves_since is not None and not self._ends_with_job(node):
            return self._leaves(node, now)
        each.life, each.has_left_it = Life.ENDED, bool(samples_named((event.statistics,), LEFT_TO_OTHERS))
        commands = self.adjusting.drop(f"{self._crew.names[node]} is through")
        for other in self._crew.unheard(epoch):
            if self._spare(other):
                commands += [co.KillNodes((other,)), *self._dies(other, Life.DYING, "the job is ending", now)]
        return commands + self._tell_of_end(node, epoch) + self._look_around(now)

    def _tell_of_end(self, node: int, epoch: int | None = None) -> list[co.Command]:
        """Tell those that would wait for the ends of a node's streams that it is through.

        They have joined since, or it was to leave: who does says no end of what it does for all as the first node.
        """
        waits = self._crew.unheard(epoch) or self.nodes[node].leaves_since is not None
        if not waits or self.state not in (JobState.RUNNING, JobState.CANCELLING):
            return []
        return self._crew.strike_off(node)

    def _on_failed(self, event: co.NodeFailed, now: float) -> list[co.Command]:
        node, (text, reason) = event.node, self._crew.why_failed(event)
        if self.state is JobState.CANCELLING:
            return self._on_gone(node, Life.GONE, now)
        if self.nodes[node].life not in (Life.JOINING, Life.ALIVE):
            return []  # what becomes of a process that has done its part, or is no member, changes nothing
        if (event.anew or self.nodes[node].new) and self.state is JobState.RUNNING:
            return [co.KillNodes((node,)), *self._dies(node, Life.DYING, text, now)]
        if event.checkpoint and self.state is JobState.DEPLOYING and self.started_s is not None:
            return self._begin_again(reason, node, now)  # it broke since it was found
        return self._go(Trigger.NODE_FAILED, now, reason, node)

    # Joining and leaving by request

    def _on_arrived(self, node: int, name: str, now: float) -> list[co.Command]:
        """Have a node prepare that has come for an open place."""
        if self.state is not JobState.RUNNING or self.stopped_by or node not in open_places(self.nodes, now):
            return []
        return self._crew.arrive(node, name, now)

    def _on_drain(self, node: int, now: float) -> list[co.Command]:
        """Have a node leave: at once if it takes no part, else once the others have all that it has begun."""
        each = self.nodes[node]
        if self.state not in (JobState.DEPLOYING, JobState.RUNNING) or each.leaves_since is not None:
            return []
        each.leaves_since = max(1, self.nodes.epoch)
        if self.state is JobState.DEPLOYING or each.life in (Life.DYING, Life.GONE):
            return []
        if each.life is Life.ENDED:
            return [] if self._ends_with_job(node) else self._leaves(node, now)
        if each.life is Life.JOINING:
            return [co.KillNodes((node,)), *self._dies(node, Life.DYING, DRAINED, now)]
        return leave_with(self.nodes, (node,)) if each.life is Life.ALIVE else self._dies(node, Life.LEFT, DRAINED, now)

    def _ends_with_job(self, node: int) -> bool:
        """Whether a node that leaves is one that has ended: so it is if the job is ending, and could not without it."""
        return self._ending and not (others_have_stayed(self.nodes, node) and self.nodes.spares(node))

    def _leaves(self, node: int, now: float) -> list[co.Command]:
        """The others have all that a node has begun: let it go, if they are still there."""
        if not others_have_stayed(self.nodes, node):
            why = f"node {self._crew.names[node]} was drained, and meanwhile all others have died"
            return self._begin_again(why, node, now)
        if self.nodes[node].life is Life.ENDED:
            self.nodes.strike_off(node)
        return [co.CloseNodes((node,)), *self._dies(node, Life.LEFT, DRAINED, now, tell=True)]

    # Dying, and coming back

    def _on_exited(self, event: co.NodeExited, now: float) -> list[co.Command]:
        """A process is gone, or could not be started: then the machine lacks something, and will after that, too."""
        if event.refused and self.state is JobState.DEPLOYING:
            return self._go(
                Trigger.NODE_FAILED, now, f"node {self._crew.names[event.node]}: {event.reason}", event.node
            )
        return self._on_death(event.node, Life.WAITING, event.reason, now)

    def _on_death(self, node: int, life: Life, cause: str, now: float) -> list[co.Command]:
        """A node is dead; `life` says what of it is left."""
        match self.state:
            case JobState.CANCELLING:
                return self._on_gone(node, Life.GONE, now)
            case JobState.DEPLOYING | JobState.RUNNING:
                before = self.nodes[node].life
                over = before in (Life.ENDED, Life.GONE, Life.LEFT) or (
                    life is not Life.AWAY and before in (Life.WAITING, Life.AWAY)
                )
                if over or (before, life) == (Life.DYING, Life.DYING):
                    return []
                kill: list[co.Command] = [co.KillNodes((node,))] if life is Life.DYING else []
                cause = self._crew.causes[node] if before is Life.DYING else cause
                return [*kill, *self._dies(node, life, cause, now)]
        return []

    def _dies(
        self, node: int, life: Life, cause: str, now: float, *, cut: bool = False, tell: bool = False
    ) -> list[co.Command]:
        """Bury a node; `cut`: because of its links; `tell`: the others, even if it was no member."""
        was_member = self._crew.bury(node, life, cause, now, cut=cut, spare=self._spare(node))
        # Dropped before nodes hear of the death, which they could not make good while a change is prepared.
        there = self.nodes.those(Life.ALIVE, Life.ENDED)
        dropped = self.adjusting.lose(node, self._crew.names[node]) if there else []
        told = self._crew.tell() if was_member or tell else []
        return [self._crew.change(node, cause), *dropped, *told, *self._look_around(now)]

    def _spare(self, node: int) -> bool:
        """Whether a node that is dead is not started again, as the job is ending and can end without it."""
        return self._ending and self.nodes.spares(node)

    @property
    def _ending(self) -> bool:
        return bool(self.stopped_by) or bool(self.nodes.those(Life.ENDED))

    def _on_paused(self, node: int, number: int) -> list[co.Command]:
        """Tell a node that it is a member still; one that is none yet hears that once it is."""
        if self.state is JobState.PENDING:
            return []  # a process of the life that is over
        each = self.nodes[node]
        each.paused = number
        if each.life is Life.ALIVE:
            return [co.Connect(node, self.nodes.members(), number)]
        return [co.KillNodes((node,))] if each.life is Life.DYING else []

    def _on_adjust_asked(self, event: co.AdjustAsked) -> list[co.Command]:
        if self.why_not_adjusted() or self.adjusting.is_known(event.operation_id):
            return []
        return self.adjusting.ask(event.operation_id, event.text)

    def _on_back(self, node: int, now: float) -> list[co.Command]:
        if self.state not in _GOING_ON or self.nodes[node].life is not Life.AWAY or self._spare(node):
            return []
        if self.nodes.dies_for_good(node):
            return self._dies(node, Life.GONE, self._crew.causes[node], now)
        return self._restart(node, now, counts=False)

    def _restart(self, node: int, now: float, *, counts: bool = True) -> list[co.Command]:
        if self.state is JobState.DEPLOYING:
            self._deadline_s = now + self._deadlines.preflight_s
        return self._crew.restart(node, now, counts=counts)

    def _on_broken(self, event: co.LinkBroken, now: float) -> list[co.Command]:
        """Judge in a moment, when others have told of theirs, or a death has turned out to be the cause."""
        node, peer, reason, other = event.node, event.peer, event.reason, self.nodes[event.peer]
        if other.incarnation != event.incarnation:
            return []  # it has died since
        if self.state not in _GOING_ON or self.nodes[node].life is not Life.ALIVE:
            return []
        if other.life is Life.ENDED and other.admitted:
            # Nothing more comes from it, and it needs nothing more.
            return self._crew.strike_off(peer)
        if other.life is Life.ALIVE:
            after_s = self._deadlines.judge_s if self.state is JobState.RUNNING else self._deadlines.blame_s
            self._crew.broken.note(node, peer, reason, now + after_s)
        return []

    def _judge(self, now: float) -> list[co.Command]:
        """Bury the node that is to blame, until no broken link is left.

        Before the job runs a link that cannot be made is no fault that passes, unless one of its ends has died.
        """
        commands: list[co.Command] = []
        self._crew.broken.judge_s = math.inf
        if self._crew.broken and self.state is JobState.DEPLOYING:
            node, reason = self._crew.broken.first()
            return self._go(Trigger.NODE_FAILED, now, f"node {self._crew.names[node]}: {reason}", node)
        while self._crew.broken and self.state is JobState.RUNNING:
            node, cause = self._crew.broken.blame(lambda node: self.nodes[node].admitted, self._crew.names)
            commands += [co.KillNodes((node,)), *self._dies(node, Life.DYING, cause, now, cut=True)]
        return commands

    def _look_around(self, now: float) -> list[co.Command]:
        """End the job if nobody is left that it could go on with, or that has to do anything, or begin without some."""
        if self.state not in _GOING_ON:
            return []
        if died := nobody_left(self.nodes, self._crew.names, self._crew.causes):
            return self._begin_again(*died, now)
        if found := shortage(self.nodes, self._crew.names, self._crew.causes, now):
            if self.state is JobState.DEPLOYING and self.started_s is not None:
                return self._begin_again(*found, now)
            return self._go(Trigger.TOO_FEW_NODES, now, *found)
        if self.state is JobState.DEPLOYING:
            return self._begin(now) if self.nodes.epoch else self._crew.found(now)
        return self._go(Trigger.ALL_ENDED, now) if self.nodes.through() else []

    # Beginning again

    def _begin_again(self, why: str, node: int, now: float) -> list[co.Command]:
        """Nobody is left who has what was learnt: wait for nodes anew, and for which checkpoint they go on from.

        Args:
            why: nobody is left, for people.
            node: the one that died last, or cannot go on from the checkpoint that was found.
            now: seconds on the clock.
        """
        if not self.again.allowed or self.stopped_by:
            return self._go(Trigger.TOO_FEW_NODES, now, f"{why}; ako resume goes on from its newest checkpoint", node)
        self.again.lose(why, node, learnt=self.started_s is not None)
        return self._go(Trigger.ALL_DIED, now, why) if self.again.looking else self._go_on(START, now)

    def _on_checkpoint(self, event: co.CheckpointFound, now: float) -> list[co.Command]:
        if not self.again.looking:
            return []
        if event.number is None:
            return self._go(Trigger.TOO_FEW_NODES, now, f"{self.again.why}; {event.why}", self.again.node)
        return self._go_on(origin_of(event), now)

    def _go_on(self, origin: str, now: float) -> list[co.Command]:
        """Wait for nodes that go on from there, unless that was tried too often."""
        self.again.find(origin)
        if objection := self.again.objection:
            return self._go(Trigger.TOO_FEW_NODES, now, f"{self.again.why}; {objection}", self.again.node)
        if self.state is JobState.PENDING:
            return [co.ChangeState(self.state, self.again.told)]
        return self._go(Trigger.ALL_DIED, now, self.again.told)

    # Ending

    def _on_gone(self, node: int, life: Life, now: float) -> list[co.Command]:
        """A node of a job that is being cancelled is through, one way or other."""
        if self.nodes[node].life is not Life.ENDED:
            self.nodes[node].life = life
        return self._all_gone(now)

    def _all_gone(self, now: float) -> list[co.Command]:
        if self.state is not JobState.CANCELLING or self.nodes.those(Life.JOINING, Life.ALIVE):
            return []
        return self._go(Trigger.ALL_ENDED, now, "cancelled")

    def _on_tick(self, now: float) -> list[co.Command]:
        commands: list[co.Command] = []
        if self.state in _GOING_ON:
            for node in self.nodes.due(now):
                if self.state not in _GOING_ON:
                    break
                if self.nodes[node].life is Life.WAITING:
                    commands += self._restart(node, now)
                else:
                    late = f"it was not ready {self._deadlines.preflight_s:g} s after it was started"
                    commands += [co.KillNodes((node,)), *self._dies(node, Life.DYING, late, now)]
            if now >= self._crew.broken.judge_s:
                commands += self._judge(now)
            commands += self._look_around(now)
        if self.state in ENDED or self._deadline_s is None or now < self._deadline_s:
            return commands
        return commands + self._on_deadline(now)

    def _on_deadline(self, now: float) -> list[co.Command]:
        if self.state is JobState.DEPLOYING:
            slow, seconds = self._crew.not_ready, self._deadlines.preflight_s
            names = self._crew.list_of(slow)
            why = f"nodes not ready after {seconds:g} s: {names}; `ako logs` has what their processes said"
            return self._go(Trigger.NOT_READY_IN_TIME, now, why, slow[0])
        if self.state is JobState.CANCELLING:
            return self._go(Trigger.GRACE_OVER, now, "cancelled; the nodes had to be killed")
        if not self.stopped_by:
            return self._stop("time", now)
        late = [node for node in self._crew.all if self.nodes[node].life not in (Life.ENDED, *OUT)]
        why = f"killed nodes that did not drain: {self._crew.list_of(late)}"
        return self._go(Trigger.DRAINING_TOOK_TOO_LONG, now, why)

    def _stop(self, stopped_by: StoppedBy, now: float) -> list[co.Command]:
        """A stop rule holds: the job keeps RUNNING until its nodes have drained."""
        self.stopped_by, self._deadline_s = stopped_by, now + self._deadlines.drain_s
        running = tuple(node for node in self.nodes.those(Life.ALIVE) if self.nodes[node].running)
        return [co.StopNodes(running, stopped_by)]

    def _go(self, trigger: Trigger, now: float, reason: str = "", node: int | None = None) -> list[co.Command]:
        """Follow the table, and do what belongs to entering the state it names; `node`: the cause, if one is."""
        target = TRANSITIONS.get((self.state, trigger))
        if target is None:
            return []
        source, self.state, self._deadline_s = self.state, target, None
        return self._enter(target, source, trigger, now, reason, node)

    def _enter(
        self, target: JobState, source: JobState, trigger: Trigger, now: float, reason: str, node: int | None
    ) -> list[co.Command]:
        """What belongs to coming from `source` to `target`."""
        commands: list[co.Command] = [] if target in ENDED else [co.ChangeState(target, reason)]
        match target:
            case JobState.PENDING if source in _GOING_ON:
                commands.append(co.KillNodes(self._crew.all))
                if self.again.looking:
                    commands.append(co.FindCheckpoint())
                commands += self.adjusting.give_up("all nodes have died")
                self._crew.begin_again(self._fresh())
                self._watch = StopWatch(self._rules)
            case JobState.DEPLOYING:
                commands += [co.Deploy(each) for each in self._crew.all]
                self._deadline_s = now + self._deadlines.preflight_s
            case JobState.RUNNING:
                self.started_s = now if self.started_s is None else self.started_s
                commands += self._crew.start(now)
                if self._rules.time_s is not None:
                    self._deadline_s = self.started_s + self._rules.time_s
            case JobState.CANCELLING:
                self.stopped_by = "cancel"
                commands.append(co.StopNodes(self.nodes.those(Life.JOINING, Life.ALIVE), "cancel"))
                self._deadline_s = now + self._deadlines.grace_s
            case JobState.FINISHED:
                self.stopped_by = self.stopped_by or "epochs"
                commands += [self._let_go(trigger), co.Finish(target, reason, self.stopped_by)]
            case JobState.CANCELLED:
                self.stopped_by = "cancel"
                if source is JobState.CANCELLING:
                    commands.append(self._let_go(trigger))
                commands.append(co.Finish(target, reason or "cancelled", "cancel"))
            case JobState.FAILED:
                self.stopped_by = ""
                commands += [co.KillNodes(self._crew.all), co.Finish(target, reason, "", node)]
        return commands

    def _let_go(self, trigger: Trigger) -> co.Command:
        return co.CloseNodes(self._crew.all) if trigger is Trigger.ALL_ENDED else co.KillNodes(self._crew.all)


_GOING_ON: Final = frozenset({JobState.DEPLOYING, JobState.RUNNING})
"""States in which nodes that die are started again."""

_TAKE: dict[type[co.Event], Callable[[JobCoordinator, Any, float], list[co.Command]]] = {
    co.Placed: lambda job, event, now: job._on_placed(event.names, now),
    co.Unplaced: lambda job, event, now: job._go(Trigger.UNPLACED, now, job.why_it_waits(event.reason)),
    co.NodePrepared: lambda job, event, now: job._on_prepared(event.node, event.address, now),
    co.NodeReady: lambda job, event, now: job._on_ready(event.node, now),
    co.NodeReport: lambda job, event, now: job._on_report(event.node, event.report, now),
    co.NodeEnded: lambda job, event, now: job._on_ended(event, now),
    co.NodeFailed: lambda job, event, now: job._on_failed(event, now),
    co.NodeExited: lambda job, event, now: job._on_exited(event, now),
    co.NodeStalled: lambda job, event, now: job._on_death(event.node, Life.DYING, event.reason, now),
    co.NodePaused: lambda job, event, now: job._on_paused(event.node, event.number),
    co.NodeLost: lambda job, event, now: job._on_death(event.node, Life.AWAY, f"it was lost: {event.reason}", now),
    co.NodeBack: lambda job, event, now: job._on_back(event.node, now),
    co.LinkBroken: lambda job, event, now: job._on_broken(event, now),
    co.NodeArrived: lambda job, event, now: job._on_arrived(event.node, event.name, now),
    co.DrainAsked: lambda job, event, now: job._on_drain(event.node, now),
    co.CancelAsked: lambda job, event, now: job._on_cancel(now),
    co.AdjustAsked: lambda job, event, now: job._on_adjust_asked(event),
    co.CheckpointFound: lambda job, event, now: job._on_checkpoint(event, now),
    co.Tick: lambda job, event, now: job._on_tick(now),
}
