"""The engine of one node, without threads, sockets or clocks: events in, commands out.

Invariant: a task's inputs are fixed when it starts; its emissions become visible, and the locks of the state it wrote
are released, when its `TaskFinished` is handled. Outcomes of one chain are committed in the order its tasks started.

Its parts: `Wiring` says where everything goes, `Traffic` has messages go there, `Starter` starts tasks, on `Elements`
that are free, of the chain whose turn it is in `Turns`. What is left here is what becomes of a task that has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from dataflow.engine.chain_state import ChainState, Running
from dataflow.engine.elements import Elements
from dataflow.engine.events import (
    Adjust,
    Command,
    CreditGranted,
    Ended,
    Event,
    Failed,
    GoOn,
    LeaveAsked,
    Measured,
    MessageArrived,
    NodeJoined,
    NodeLeft,
    Outcome,
    Report,
    SetTimer,
    Started,
    StopAsked,
    StreamEnded,
    TaskFinished,
    TimerFired,
)
from dataflow.engine.leaving import Leaving
from dataflow.engine.loading import LoadedNode
from dataflow.engine.moment import Moment
from dataflow.engine.read_ahead import ReadAhead
from dataflow.engine.starting import Starter
from dataflow.engine.tally import Tally
from dataflow.engine.traffic import Traffic
from dataflow.engine.turns import Turns
from dataflow.engine.wiring import Wiring
from dataflow.errors import AkoError, OperatorError
from dataflow.operators_api import Sample
from dataflow.plan.physical import PhysicalPlan
from dataflow.ports import Emission
from dataflow.reports import NodeStatistics


class NodeEngine:
    """One node's share of a plan. `handle` is its only way to change."""

    def __init__(self, plan: PhysicalPlan, node: int, loaded: LoadedNode) -> None:
        """Take over a loaded node; nothing runs before `Started`.

        Args:
            plan: the physical plan.
            node: this node's number.
            loaded: its operators and state elements.

        Raises:
            OperatorError: an operator cannot work as it is declared.
        """
        here = plan.nodes[node]
        incarnation = next((context.incarnation for context in loaded.contexts.values()), 0)
        pools = {"compute": here.compute_tasks, "network": here.network_tasks}
        self._name, self._moment, self._tally = here.name, Moment(), Tally(node, incarnation, pools)
        wiring, elements = Wiring(plan, node, loaded), Elements(here.name, loaded.states)
        self._graph, self._nodes, self._wiring = plan.graph, len(plan.nodes), wiring
        self._leaving: Leaving | None = None
        self._chains, self._turns = wiring.chains, Turns(wiring.in_order)
        self._repeating = [state for state in wiring.in_order if state.chain.repeats]
        # With its type, since mypyc comes to the table of events below before it comes here.
        self._traffic: Traffic = Traffic(wiring, self._turns, self._tally, self._moment)
        self._read_ahead = ReadAhead(wiring, elements, loaded.states)
        self._starter = Starter(
            here, wiring, elements, self._read_ahead, self._traffic, self._turns, self._tally, self._moment
        )
        self._started_s = 0.0
        self._started = self._ended = self._failed = False

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in an event and say what is to be done.

        Args:
            event: what happened.
            now: seconds on the driver's clock; never less than before.
        """
        commands, starter, to_self = self._moment.begin(now), self._starter, self._traffic.to_self
        if self._failed:
            return commands
        try:
            self._take(event)
            while to_self:
                self._take(to_self.popleft())
            if isinstance(event, TaskFinished) and starter.go_on_with(self._chains[event.task.chain]):
                commands.append(GoOn())
            elif self._started:
                starter.start_all()
                if self._leaving is not None and self._leaving.has_made_all(self._turns.chains):
                    self._leaving = None
                    self._traffic.turn_deaf(self._nodes)
                    starter.start_all()
                self._end_if_through()
            for state in self._repeating:
                starter.offer(state)
        except AkoError as error:
            self._failed = True
            commands.append(Failed(error))
        return commands

    @property
    def minds_rates(self) -> bool:
        """Whether any of its operators wants to know how fast the node is, and so needs to be given `Measured`."""
        return any(state.chain.minds_rates for state in self._turns.chains)

    def statistics(self, now: float | None = None) -> NodeStatistics:
        """What has been counted from the start until `now`, or until the last event."""
        until_s = self._moment.now if now is None else now
        blocked = [state.blocked_since for state in self._turns.chains if state.blocked_since is not None]
        waiting_s = sum(until_s - since_s for since_s in blocked)
        return self._tally.statistics(waiting_s, until_s - self._started_s if self._started else 0.0)

    def _take(self, event: Event) -> None:
        _TAKE[type(event)](self, event)

    def _begin(self, _: Started) -> None:
        self._started, self._started_s = True, self._moment.now
        self._read_ahead.begin()
        for state in self._turns.chains:
            self._set_timer(state)

    def _stop(self, _: StopAsked) -> None:
        for state in self._turns.chains:
            state.stopping = state.stopping or not state.chain.ends_itself
            self._turns.wake(state)

    def _leave(self, _: LeaveAsked) -> None:
        self._leaving = Leaving(self._graph, self._wiring)
        for state in self._turns.chains:
            self._leaving.stop(state)
            self._turns.wake(state)

    def _go_on(self, _: GoOn) -> None:
        """Nothing has changed; what can start is started after every event."""

    def _end_if_through(self) -> None:
        if not self._ended and not self._turns.chains and self._traffic.closed:
            self._ended = True
            self._moment.commands.append(Ended())

    def _task_finished(self, event: TaskFinished) -> None:
        task, tally = event.task, self._tally
        state = self._chains[task.chain]
        self._starter.ended(task)
        tally.busy_s[task.pool] += event.busy_s
        tally.tasks += 1
        if event.error is not None:
            raise event.error
        runs, offered, state.offered = state.running, state.offered, None
        if runs[0].task is not task:
            next(run for run in runs if run.task is task).outcome = event.outcome
            return
        self._commit(state, runs.popleft(), event.outcome)
        while runs and (outcome := runs[0].outcome) is not None:
            self._commit(state, runs.popleft(), outcome)
        if event.followed:
            assert offered is not None
            self._starter.follow(state, offered)

    def _commit(self, state: ChainState, run: Running, outcome: Outcome) -> None:
        if run.locked:
            self._starter.unlock(run.locked)
            if run.delivery is not None:
                self._read_ahead.note(state, run.delivery.message)
        self._publish(state, run, outcome)
        if run.delivery is not None:
            self._traffic.consumed(run.delivery)
        if outcome.end_of_data and state.source:
            state.exhausted = True
        elif outcome.end_of_data:
            self._traffic.end_outputs(state)
        if state.telling is not None:  # with nothing else of the chain under way, so this was it
            self._traffic.told(state, state.telling)
        if (due := outcome.checkpoint) is not None:
            state.checkpoint = due
            if state.step is not None:  # a node that joined late has made fewer steps than it counts
                state.ahead = (due.number if due.steps is None else due.steps) - state.step.number - 1
        role = run.task.role
        if role == "shard" and state.step is not None:
            state.step.finished += 1
            state.step.parts += outcome.parts
        elif role in ("merge", "step"):
            state.step = None
            self._tally.steps += outcome.merged
        elif role == "end":
            self._turns.end(state)
            self._traffic.end_outputs(state)
            return
        self._turns.wake(state)

    def _publish(self, state: ChainState, run: Running, outcome: Outcome) -> None:
        """Make what a task yielded visible."""
        for name, effect in outcome.effects:
            if isinstance(effect, Emission):
                if state.silent:
                    what = "an operator has emitted something after it had yielded EndOfData"
                    raise OperatorError(what, where=f"node {self._name}, operator {name}")
                self._traffic.emit(name, effect, run.joins)
            elif isinstance(effect, Sample):
                self._tally.sample(name, effect)
            else:
                self._moment.commands.append(Report(effect))

    def _measured(self, event: Measured) -> None:
        """Keep the rates for the chains that mind, in the place of older ones that none of their tasks has taken."""
        self._traffic.limit(event.rates)
        for state in self._turns.chains:
            if state.chain.minds_rates and not state.ending:
                state.rates = event.rates
                self._turns.wake(state)

    def _adjust(self, event: Adjust) -> None:
        """Keep what is to be changed for the chains that mind; who says nothing more does not hear of it."""
        for state in self._turns.chains:
            if state.chain.minds_adjusting and not (state.ending or state.silent):
                state.adjustments.append((state.news.heard, event.adjustment))
                self._turns.wake(state)

    def _timer_fired(self, event: TimerFired) -> None:
        """Have a chain's operators called, once if they have not been since the last time, and set the next timer."""
        state = self._chains[event.chain]
        if state not in self._turns.chains or state.ending or state.silent:
            return
        state.timed = True
        self._turns.wake(state)
        self._set_timer(state)

    def _set_timer(self, state: ChainState) -> None:
        if state.chain.timer_s:
            self._moment.commands.append(SetTimer(state.name, state.chain.timer_s))


_TAKE: Final[Mapping[type, Callable[[NodeEngine, Any], None]]] = {
    TaskFinished: NodeEngine._task_finished,
    MessageArrived: lambda engine, event: engine._traffic.message_arrived(event),
    CreditGranted: lambda engine, event: engine._traffic.credit_granted(event),
    StreamEnded: lambda engine, event: engine._traffic.stream_ended(event),
    NodeLeft: lambda engine, event: engine._traffic.node_left(event),
    NodeJoined: lambda engine, event: engine._traffic.node_joined(event),
    Measured: NodeEngine._measured,
    Adjust: NodeEngine._adjust,
    TimerFired: NodeEngine._timer_fired,
    GoOn: NodeEngine._go_on,
    StopAsked: NodeEngine._stop,
    LeaveAsked: NodeEngine._leave,
    Started: NodeEngine._begin,
}
