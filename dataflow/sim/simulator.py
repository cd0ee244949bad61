"""The simulator's driver: the engines of all nodes, and the job's coordinator, under one virtual clock.

A task's function runs when the task starts, as its inputs are fixed then; its outcome is given to the engine when the
task ends. Everything that happens is an event of the clock, so equal arguments give equal runs, bit for bit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from dataflow.engine import coordination as co
from dataflow.engine.adjusting import tells_of_change
from dataflow.engine.coordinator import JobCoordinator
from dataflow.engine.events import (
    Adjust,
    Ended,
    Event,
    Failed,
    GoOn,
    GrantCredit,
    LeaveAsked,
    Measured,
    NodeJoined,
    Offer,
    Outcome,
    Report,
    RunTask,
    SendEnd,
    SendMessage,
    SetTimer,
    StopAsked,
    Task,
    TaskFinished,
    TimerFired,
)
from dataflow.engine.job_life import ENDED, JobState
from dataflow.engine.loading import load_node, load_nodes
from dataflow.engine.node_engine import NodeEngine
from dataflow.engine.recording import RecordedEngine
from dataflow.errors import AkoError, BeginAnewError
from dataflow.observe.events import AdjustmentStep, JobEvent, NodeChange
from dataflow.operators_api import Adjustment, Artifact
from dataflow.plan.job import JobSpec, adjusted_nodes, irreplaceable_nodes, needed_nodes
from dataflow.reports import OperatorReport
from dataflow.sim.clock import Action, VirtualClock
from dataflow.sim.costs import SPREADS, Spread, TaskKind, TaskTimes
from dataflow.sim.elasticity import Elasticity, as_simulated
from dataflow.sim.endings import Endings
from dataflow.sim.garbage import Garbage
from dataflow.sim.lives import Lives
from dataflow.sim.messages import Messages
from dataflow.sim.meter import Meter
from dataflow.sim.model import ClusterModel
from dataflow.sim.network import SimNetwork
from dataflow.sim.processors import Processors
from dataflow.sim.run import SimRun


class Simulator:
    """Runs one job in virtual time.

    Args:
        spec: the job.
        model: the cluster.
        means: seconds of tasks by kind; see `dataflow.sim.profile`.
        on_event: told of the job's events as they happen, as the watcher of a real job is.
        perform: runs a task's function, given the number of its node.
    """

    def __init__(
        self,
        spec: JobSpec,
        model: ClusterModel,
        means: Mapping[TaskKind, float],
        on_event: Callable[[JobEvent], None] = lambda event: None,
        perform: Callable[[int, Task], Outcome] = lambda node, task: task.run(),
    ) -> None:
        spec = as_simulated(spec, model)
        plan = spec.plan(compute_tasks=model.tasks)
        self.run_so_far = SimRun(plan)
        self._model, self._on_event, self._perform, self._record = model, on_event, perform, spec.record
        self._clock = VirtualClock()
        # What happens to every task: a method would be bound anew each time.
        self._at_fed: Action = self._feed
        self._coordinator = JobCoordinator(
            spec.places,
            spec.stop,
            min_nodes=spec.min_nodes,
            needed=needed_nodes(spec),
            irreplaceable=irreplaceable_nodes(spec),
            adjusted=adjusted_nodes(spec),
            vacant=plan.vacant,
            rng=random.Random(spec.seed),
        )
        uneven = spec.seed if model.shares == "tcp" else None
        self._network = SimNetwork(self._clock, model.rates_of(spec.places), model.latency_s, self._arrived, uneven)
        self._times = TaskTimes(
            means,
            plan,
            spread=SPREADS.get(model.compute, Spread(task=model.variation)),
            speeds=model.speeds,
            seed=spec.seed,
            engine_s=model.engine_s,
            message_s=model.message_s,
            byte_s=model.byte_s,
        )
        self._processors = Processors(self._clock, model, self._times, spec.places, spec.seed)
        self._engines: list[NodeEngine] = []
        self._meters: list[Meter] = []
        self._statistics_at_s, self._rates_at_s = model.statistics_s, model.rates_s
        self._endings = Endings(self._clock, model.latency_s, self._tell_end)
        self._lives = Lives(
            self._clock,
            self._network,
            spec.places,
            model.latency_s,
            self._feed_at,
            self._join_at,
            self._coordinate,
            plan.vacant,
        )
        self._elasticity = Elasticity(plan, self._clock, self._coordinator, self._lives, self._coordinate, self._warn)
        self._messages = Messages(
            self._clock,
            self._network,
            self._processors,
            self._times,
            self._lives,
            self._endings,
            self._meters,
            self._at_fed,
        )
        self._events = 0
        self._happened_s = 0.0
        self._timer_at_s: float | None = None
        self._cancelled = False

    def run(self) -> SimRun:
        """Run the job to its end, whatever that is; a job that fails is returned as such.

        Raises:
            AkoError: an operator cannot be made or opened.
        """
        with Garbage() as garbage:
            return self._run(garbage)

    def _run(self, garbage: Garbage) -> SimRun:
        run, clock = self.run_so_far, self._clock
        run.nodes = load_nodes(run.plan)
        for loaded in run.nodes:
            loaded.open()
        self._engines = self._make_engines()
        if any(engine.minds_rates for engine in self._engines):
            self._meters += [Meter(run.plan) for _ in self._engines]
        else:
            self._rates_at_s = math.inf
        clock.at(0.0, self._coordinate, co.Placed(tuple(node.name for node in run.plan.nodes)))
        clock.at(0.0, self._declare, priority=1)  # deploying takes no time: nothing fails before it is over
        clock.at(min(self._statistics_at_s, self._rates_at_s), self._now_and_then)
        garbage.spare()
        clock.run()
        while run.state not in ENDED:
            self._coordinate(self._what_stopped_it())
            clock.run()
        run.messages = self._messages.count
        run.statistics = [
            engine.statistics() for node, engine in enumerate(self._engines) if self._lives.has_machine(node)
        ]
        for engine in self._engines:
            self._keep_rest(engine)
        return run

    def _declare(self, _: None) -> None:
        self._lives.declare(self._model.faults, self._model.detection_s)
        self._elasticity.declare(self._model)

    def cancel(self) -> None:
        """Cancel the job, at any moment, also from a signal handler; `run` returns what there is."""
        self._cancelled = True
        self._clock.stop()

    def _make_engines(self) -> list[NodeEngine]:
        digest = self.run_so_far.plan.digest() if self._record else ""
        return [self._make_engine(node, digest) for node in range(len(self.run_so_far.nodes))]

    def _make_engine(self, node: int, digest: str) -> NodeEngine:
        plan, loaded, incarnation = self.run_so_far.plan, self.run_so_far.nodes[node], self._lives.incarnations[node]
        if not self._record:
            return NodeEngine(plan, node, loaded)
        return RecordedEngine(plan, node, loaded, digest=digest, chunk_s=math.inf, incarnation=incarnation)

    def _what_stopped_it(self) -> co.Event:
        """Why the clock has stopped before the job's end."""
        if self._cancelled:
            self._cancelled = False
            return co.CancelAsked()
        waiting = [node for node in range(len(self._engines)) if node not in self._endings.ended | self._lives.dead]
        self._lives.dead.add(waiting[0])
        names = ", ".join(self.run_so_far.plan.nodes[node].name for node in waiting)
        return co.NodeFailed(waiting[0], f"nodes wait for each other for ever: {names}")

    # The coordinator

    def _coordinate(self, event: co.Event) -> None:
        now = self._clock.now()
        for command in self._coordinator.handle(event, now):
            self._obey(command, now)
        self._elasticity.look_around()

    def _obey(self, command: co.Command, now: float) -> None:
        run, at = self.run_so_far, self._clock.at
        match command:
            case co.Deploy(node, incarnation):
                if incarnation:
                    self._revive(node, incarnation)
                if node not in self._lives.dead:
                    at(now, self._coordinate, co.NodePrepared(node, run.plan.nodes[node].name))
            case co.Connect(node, members):
                self._lives.meet(node, members)
                self._endings.meet(node, members.addresses)
            case co.Start(node):
                self._lives.start(node)
            case co.StopNodes(nodes):
                self._ask(nodes, StopAsked())
            case co.Leave(node):
                self._ask((node,), LeaveAsked())
            case co.CloseNodes(nodes) if self._coordinator.state not in ENDED:
                for node in nodes:
                    self._lives.die(node)
            case co.KillNodes(nodes):
                self._lives.kill(nodes)
            case co.AdjustNodes(nodes, number, stage, text):
                self._ask(nodes, Adjust(Adjustment(number, stage, text)))
            case _:
                self._obey_about_job(command, now)

    def _ask(self, nodes: Iterable[int], event: Event) -> None:
        """Have nodes hear what the coordinator wants of them."""
        for node in nodes:
            self._feed_at(self._clock.now() + self._model.latency_s, node, event)

    def _obey_about_job(self, command: co.Command, now: float) -> None:
        run, at = self.run_so_far, self._clock.at
        match command:
            case co.ChangeNode(node, life, incarnation, _, reason):
                self._tell(now, node=node, change=NodeChange(node, life, incarnation, reason, now))
            case co.TellAdjustment(number, stage, reason, touched, inside_s, outside_s):
                step = AdjustmentStep(number, stage, reason, touched, inside_s, outside_s)
                self._tell(now, adjustment=step)
            case co.SetTimer() if run.state is JobState.DEPLOYING:
                pass  # deploying takes no time
            case co.SetTimer(at_s):
                self._timer_at_s = at_s
                at(at_s, self._tick, at_s)
            case co.ChangeState(state, reason):
                run.state = state
                self._tell(now, state=state, reason=reason)
            case co.Finish(state, reason, stopped_by):
                run.state, run.reason, run.stopped_by = state, reason, stopped_by
                # A finished job with a reason was waited for in vain: its nodes were killed.
                run.elapsed_s = self._happened_s if state is JobState.FINISHED and reason else now
                self._tell(run.elapsed_s, state=state, reason=reason, stopped_by=stopped_by)
                self._clock.stop()

    def _tick(self, at_s: float) -> None:
        if at_s == self._timer_at_s:
            self._coordinate(co.Tick())

    def _warn(self, text: str) -> None:
        self._tell(self._clock.now(), warning=text)

    def _tell(self, at_s: float, **what: Any) -> None:
        """Tell of an event that is kept."""
        self._on_event(JobEvent(index=self._events, wall_s=at_s, elapsed_s=at_s, **what))
        self._events += 1

    def _now_and_then(self, _: None) -> None:
        """Do what is done again and again as long as anything goes on."""
        # Not while nothing happens, which may be for years.
        now, next_s = self._clock.now(), self._clock.next_s
        if now >= self._statistics_at_s:
            self._tell_statistics(now, next_s)
            self._statistics_at_s = max(now, next_s) + self._model.statistics_s
        if now >= self._rates_at_s:
            if next_s <= now + self._model.rates_s:
                self._measure(now)
            self._rates_at_s = max(now, next_s) + self._model.rates_s
        if next_s < math.inf:
            self._clock.at(min(self._statistics_at_s, self._rates_at_s), self._now_and_then)

    def _tell_statistics(self, now: float, next_s: float) -> None:
        """Tell what every node has counted; of a lull, when it began."""
        at_s = now if next_s <= now + self._model.statistics_s else self._happened_s
        for node, engine in enumerate(self._engines):
            if self._lives.has_machine(node):
                statistics = engine.statistics()
                self._on_event(JobEvent(index=self._events, wall_s=at_s, elapsed_s=at_s, statistics=statistics))

    def _measure(self, now: float) -> None:
        """Have every node hear how fast it has been."""
        for node, (meter, engine) in enumerate(zip(self._meters, self._engines, strict=True)):
            self._feed((node, Measured(meter.read(engine.statistics(now), now)), self._lives.incarnations[node]))

    # The engines

    def _revive(self, node: int, incarnation: int) -> None:
        """Start a node again, which has forgotten everything."""
        run = self.run_so_far
        self._keep_rest(self._engines[node])
        self._lives.revive(node, incarnation)
        self._endings.forget(node)
        run.nodes[node] = load_node(run.plan, node, incarnation=incarnation)
        run.nodes[node].open()
        self._engines[node] = self._make_engine(node, run.plan.digest() if self._record else "")
        self._processors.renew(node)
        if self._meters:
            self._meters[node] = Meter(run.plan)

    def _keep_rest(self, engine: NodeEngine) -> None:
        if isinstance(engine, RecordedEngine) and (rest := engine.rest()):
            self.run_so_far.artifacts[rest.name] = rest.data

    def _arrived(self, source: int, target: int, event: Event) -> None:
        self._messages.arrived(source, target, event)

    def _join_at(self, at_s: float, node: int, event: NodeJoined, epoch: int) -> None:
        """Give an engine the news at a certain time that a node has joined, with the membership of this epoch."""
        self._clock.at(at_s, self._join, (node, event, self._lives.incarnations[node], epoch))

    def _join(self, joined: tuple[int, NodeJoined, int, int]) -> None:
        node, event, incarnation, epoch = joined
        if not self._lives.is_there(node, incarnation) or node in self._endings.ended:
            return
        if (awake_s := self._processors.awake_s(node)) > self._clock.now():
            self._clock.at(awake_s, self._join, joined)
            return
        self._lives.hear(node, event.node, event.incarnation, epoch)
        self._feed((node, event, incarnation))

    def _feed_at(self, at_s: float, node: int, event: Event) -> None:
        """Give an engine an event at a certain time."""
        self._clock.at(at_s, self._at_fed, (node, event, self._lives.incarnations[node]))

    def _feed(self, happened: tuple[int, Event, int]) -> None:
        """Give an engine that has not ended an event, once its node is awake, and do what it says."""
        node, event, incarnation = happened
        if not self._lives.is_there(node, incarnation) or node in self._endings.ended:
            return
        now = self._clock.now()
        if (awake_s := self._processors.awake_s(node)) > now:
            self._clock.at(awake_s, self._at_fed, happened)
            return
        self._happened_s = now
        for command in self._engines[node].handle(event, now):
            _CARRY_OUT[type(command)](self, node, command)

    def _go_on(self, node: int, command: GoOn) -> None:
        self._feed_at(self._clock.now(), node, command)

    def _set_timer(self, node: int, command: SetTimer) -> None:
        self._feed_at(self._clock.now() + command.after_s, node, TimerFired(command.chain))

    def _leave_alone(self, node: int, command: Offer) -> None:
        """Engines start the task when the one before it ends, which takes no time here."""

    def _report(self, node: int, command: Report) -> None:
        what = command.what
        if isinstance(what, Artifact):
            self.run_so_far.artifacts[what.name] = what.data
        elif isinstance(what, OperatorReport):
            if not tells_of_change(what):
                self._tell(self._clock.now(), node=node, report=what)
            self._inform(co.NodeReport(node, what))

    def _node_ended(self, node: int, _: Ended) -> None:
        self._endings.end(node)

    def _tell_end(self, node: int) -> None:
        """Have the coordinator hear that a node has ended, unless it has died meanwhile."""
        if node in self._endings.ended - self._lives.dead:
            self._coordinate(co.NodeEnded(node, self._engines[node].statistics(), self._lives.epochs[node]))

    def _node_failed(self, node: int, command: Failed) -> None:
        error = command.error
        self.run_so_far.error = self.run_so_far.error or error
        self._inform(co.NodeFailed(node, str(error), error.where, isinstance(error, BeginAnewError)))

    def _inform(self, event: co.Event) -> None:
        """Have the coordinator hear from a node."""
        self._clock.at(self._clock.now() + self._model.latency_s, self._coordinate, event)

    def _start(self, node: int, command: RunTask) -> None:
        """Run a task's function, and have it end after the time that it takes."""
        task, error = command.task, None
        try:
            outcome = self._perform(node, task)
        except AkoError as raised:
            outcome, error = Outcome(), raised
        work_s, engine_s = self._times.seconds(node, task), self._times.engine_s(node)
        if self._meters:
            self._meters[node].ran(task.chain, task.pool, work_s)
        happened = node, TaskFinished(task, outcome, work_s, error), self._lives.incarnations[node]
        if task.pool != "compute":
            self._processors.beside(node, work_s + engine_s, self._at_fed, happened)
        else:
            self._processors.compute(node, work_s + engine_s, self._at_fed, happened)


_CARRY_OUT: Final[Mapping[type, Callable[[Simulator, int, Any], None]]] = {
    RunTask: Simulator._start,
    SendMessage: lambda simulator, node, command: simulator._messages.send(node, command),
    GrantCredit: lambda simulator, node, command: simulator._messages.grant(node, command),
    SendEnd: lambda simulator, node, command: simulator._messages.send_end(node, command),
    GoOn: Simulator._go_on,
    Offer: Simulator._leave_alone,
    SetTimer: Simulator._set_timer,
    Report: Simulator._report,
    Ended: Simulator._node_ended,
    Failed: Simulator._node_failed,
}
