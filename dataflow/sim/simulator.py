"""The simulator's driver: the engines of all nodes, and the job's coordinator, under one virtual clock.

A task's function runs when the task starts, as its inputs are fixed then; its outcome is given to the engine when the
task ends. Everything that happens is an event of the clock, so equal arguments give equal runs, bit for bit.
"""

from __future__ import annotations

import gc
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dataflow.engine import coordination as co
from dataflow.engine.adjusting import tells_of_change
from dataflow.engine.coordinator import JobCoordinator
from dataflow.engine.events import (
    Adjust,
    CreditGranted,
    Ended,
    Event,
    Failed,
    GoOn,
    GrantCredit,
    LeaveAsked,
    Measured,
    MessageArrived,
    NodeJoined,
    Offer,
    Outcome,
    Report,
    RunTask,
    SendEnd,
    SendMessage,
    SetTimer,
    StopAsked,
    StreamEnded,
    Task,
    TaskFinished,
    TimerFired,
)
from dataflow.engine.job_life import ENDED, JobState
from dataflow.engine.loading import LoadedNode, load_node, load_nodes
from dataflow.engine.node_engine import NodeEngine
from dataflow.engine.recording import RecordedEngine
from dataflow.errors import AkoError, BeginAnewError
from dataflow.observe.events import AdjustmentStep, JobEvent, NodeChange
from dataflow.operators_api import Adjustment, Artifact
from dataflow.plan.job import JobSpec, adjusted_nodes, irreplaceable_nodes, needed_nodes
from dataflow.plan.physical import PhysicalPlan, StreamId
from dataflow.reports import NodeStatistics, OperatorReport
from dataflow.sim.clock import Action, VirtualClock
from dataflow.sim.cores import Cores
from dataflow.sim.costs import SPREADS, Spread, TaskKind, TaskTimes
from dataflow.sim.elasticity import Elasticity
from dataflow.sim.endings import Endings
from dataflow.sim.lives import Lives
from dataflow.sim.machine import Machine, Part
from dataflow.sim.meter import Meter
from dataflow.sim.model import ClusterModel
from dataflow.sim.network import SimNetwork
from dataflow.sim.pace import Pace

_Waiting = tuple[int, Cores, bool, float, float, Action, Any]
"""A node, its cores, whether these compute something or do something else, the mark of that, when it came up, and what
is to be done once it is done."""

COLLECTED: Final = 200_000
"""Objects made between two collections of garbage, at least; as many as nodes consist of, if these are more: what is
under way among them comes and goes by the hundred thousand, and none of it is garbage."""


@dataclass
class SimRun:
    """A simulated job.

    Args:
        plan: what was run.
        nodes: the loaded nodes, with their live state; of one that was started again, its last incarnation.
        state: how the job ended; RUNNING before it has.
        reason: why, if it failed.
        error: of the first node that failed.
        stopped_by: what made it stop.
        elapsed_s: virtual seconds; of nodes that never drained, those until nothing happened on them any more.
        messages: how many were sent from node to node.
        artifacts: files of the job's results by name.
        statistics: the last ones of every node.
    """

    plan: PhysicalPlan
    nodes: list[LoadedNode] = field(default_factory=list)
    state: JobState = JobState.SUBMITTED
    reason: str = ""
    error: AkoError | None = None
    stopped_by: str = ""
    elapsed_s: float = 0.0
    messages: int = 0
    artifacts: dict[str, bytes] = field(default_factory=dict)
    statistics: list[NodeStatistics] = field(default_factory=list)


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
        spec = model.simulated(spec)
        plan = spec.plan(compute_tasks=model.tasks)
        self.run_so_far = SimRun(plan)
        self._model, self._on_event, self._perform, self._record = model, on_event, perform, spec.record
        self._clock = VirtualClock()
        # What happens to every task: a method would be bound anew each time.
        self._at_fed: Action = self._feed
        self._at_received: Action = self._receive
        self._at_packed: Action = self._hand_over
        self._at_done: Action = self._done
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
        self._messages_cost = model.message_s > 0 or model.byte_s > 0
        slices = random.Random(f"slices {spec.seed}")
        self._phases_s = [slices.uniform(0.0, model.slice_s) for _ in range(spec.places)]
        self._machine = Machine(model.cores) if model.cores else None
        self._cores = [self._make_cores(node) for node in range(spec.places)]
        self._besides: list[deque[_Waiting]] = [deque() for _ in self._cores]
        """By node whose cores are not even, what it is to do besides computing, in the order in which that came up."""
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
        self._events = 0
        self._happened_s = 0.0
        self._timer_at_s: float | None = None
        self._cancelled = self._has_frozen = False

    def run(self) -> SimRun:
        """Run the job to its end, whatever that is; a job that fails is returned as such.

        Raises:
            AkoError: an operator cannot be made or opened.
        """
        gc.collect()  # the nodes of a simulation before this one, whose models hang together with them
        often = gc.get_threshold()
        gc.set_threshold(COLLECTED, *often[1:])
        try:
            return self._run()
        finally:
            gc.set_threshold(*often)
            if self._has_frozen:
                gc.unfreeze()

    def _run(self) -> SimRun:
        run, clock, before = self.run_so_far, self._clock, _collections()
        run.nodes = load_nodes(run.plan)
        for loaded in run.nodes:
            loaded.open()
        self._engines = self._make_engines()
        if any(engine.minds_rates for engine in self._engines):
            self._meters = [Meter(run.plan) for _ in self._engines]
        else:
            self._rates_at_s = math.inf
        clock.at(0.0, self._coordinate, co.Placed(tuple(node.name for node in run.plan.nodes)))
        clock.at(0.0, self._declare, priority=1)  # deploying takes no time: nothing fails before it is over
        clock.at(min(self._statistics_at_s, self._rates_at_s), self._now_and_then)
        if _collections() > before:
            self._has_frozen = True
            gc.collect()
            gc.set_threshold(max(COLLECTED, len(gc.get_objects())), *gc.get_threshold()[1:])
            gc.freeze()  # or every full collection would look through all nodes
        clock.run()
        while run.state not in ENDED:
            self._coordinate(self._what_stopped_it())
            clock.run()
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
        self._cores[node] = self._make_cores(node)
        self._besides[node].clear()
        if self._meters:
            self._meters[node] = Meter(run.plan)

    def _make_cores(self, node: int) -> Cores:
        model, pace = self._model, Pace(self._model.faults, node)
        if pace.even and not model.cpu and not self._machine:
            return Cores(model.tasks)
        machine = self._machine or Machine(model.tasks + 1 if model.cpu else model.tasks)
        if not model.cpu:
            return Part(machine, pace)
        quota_s = model.cpu * model.slice_s
        return Part(machine, pace, quota_s, model.slice_s, self._phases_s[node], min(model.tasks + 1, machine.cores))

    def _keep_rest(self, engine: NodeEngine) -> None:
        if isinstance(engine, RecordedEngine) and (rest := engine.rest()):
            self.run_so_far.artifacts[rest.name] = rest.data

    def _arrived(self, source: int, target: int, event: Event) -> None:
        nbytes = event.nbytes if type(event) is MessageArrived else None
        if self._meters and nbytes is not None and source != target:
            self._meters[source].arrived(target, nbytes, self._clock.now())
            self._meters[target].exchanged(self._times.message_s(target, nbytes))
        if type(event) is StreamEnded:
            self._endings.arrived(event.stream)
        incarnations = self._lives.incarnations
        if self._messages_cost and source != target:
            received = target, event, incarnations[target], source, incarnations[source]
            self._handle(target, nbytes, self._at_received, received)
        else:
            self._feed((target, event, incarnations[target]))

    def _receive(self, received: tuple[int, Event, int, int, int]) -> None:
        """Give an engine what its node has dealt with, unless the sender has been started again meanwhile."""
        target, event, incarnation, source, its_incarnation = received
        if self._lives.incarnations[source] == its_incarnation:
            self._feed((target, event, incarnation))

    def _join_at(self, at_s: float, node: int, event: NodeJoined, epoch: int) -> None:
        """Give an engine the news at a certain time that a node has joined, with the membership of this epoch."""
        self._clock.at(at_s, self._join, (node, event, self._lives.incarnations[node], epoch))

    def _join(self, joined: tuple[int, NodeJoined, int, int]) -> None:
        node, event, incarnation, epoch = joined
        if not self._lives.is_there(node, incarnation) or node in self._endings.ended:
            return
        if (awake_s := self._awake_s(node)) > self._clock.now():
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
        if (awake_s := self._awake_s(node)) > now:
            self._clock.at(awake_s, self._at_fed, happened)
            return
        self._happened_s = now
        for command in self._engines[node].handle(event, now):
            _CARRY_OUT[type(command)](self, node, command)

    def _awake_s(self, node: int) -> float:
        """The first moment from now on at which a node does not stand still, as far as it is known."""
        cores, now = self._cores[node], self._clock.now()
        return now if cores.even else cores.awake_s(now)

    def _send(self, node: int, command: SendMessage) -> None:
        stream, nbytes = command.stream, command.nbytes
        self.run_so_far.messages += 1
        if self._meters and node != stream.target:
            self._meters[node].sent(stream.target, self._clock.now())
            self._meters[node].exchanged(self._times.message_s(node, nbytes))
        arrival = MessageArrived(stream, command.message, nbytes)
        if not self._lives.knows(node, stream.target):
            return
        if self._messages_cost and node != stream.target:
            self._pack(node, stream, arrival, nbytes)
        else:
            self._network.send(node, stream.target, arrival, nbytes)

    def _send_end(self, node: int, command: SendEnd) -> None:
        stream = command.stream
        if not self._lives.knows(node, stream.target):
            return
        self._endings.sent(stream)
        if self._messages_cost and node != stream.target:
            self._pack(node, stream, StreamEnded(stream), None)
        else:
            self._network.send(node, stream.target, StreamEnded(stream), 0)

    def _pack(self, node: int, stream: StreamId, event: Event, nbytes: int | None) -> None:
        """Have a node make a message of so many bytes, or anything else, ready to be sent."""
        lives = self._lives.incarnations[stream.source], self._lives.incarnations[stream.target]
        self._handle(node, nbytes, self._at_packed, (stream, event, nbytes or 0, lives))

    def _hand_over(self, packed: tuple[StreamId, Event, int, tuple[int, int]]) -> None:
        """Give the network what a node has packed, unless one of the two has failed since."""
        stream, event, nbytes, lives = packed
        now = self._lives.incarnations[stream.source], self._lives.incarnations[stream.target]
        if stream.source not in self._lives.dead and lives == now:
            self._network.send(stream.source, stream.target, event, nbytes)

    def _handle(self, node: int, nbytes: int | None, action: Action, argument: Any) -> None:
        """Do something once a node has dealt with a message of so many bytes; with anything else, has come to it."""
        self._beside(node, 0.0 if nbytes is None else self._times.message_s(node, nbytes), action, argument)

    def _beside(self, node: int, work_s: float, action: Action, argument: Any) -> None:
        """Do something once a node has done work besides computing."""
        now, cores = self._clock.now(), self._cores[node]
        if cores.even:
            self._clock.at(cores.done_s(now, work_s), action, argument)
        else:
            waiting = node, cores, False, cores.beside(now, work_s), now, action, argument
            self._besides[node].append(waiting)
            if len(self._besides[node]) == 1:
                self._wait(waiting)

    def _wait(self, waiting: _Waiting) -> None:
        """Look again once something besides computing that comes first may be done.

        What is behind it is looked at only then: it may be done at the same moment, and never before.
        """
        now = self._clock.now()
        self._clock.at(waiting[1].beside_s(now, waiting[3]), self._at_done, waiting)

    def _done(self, waiting: _Waiting) -> None:
        """Do what was to be done, unless what else the node did has held up the work."""
        node, cores, computing, mark, since_s, action, argument = waiting
        if cores is not self._cores[node]:
            return
        now = self._clock.now()
        done_s = cores.computed_s(now, mark) if computing else cores.beside_s(now, mark)
        if done_s > now:
            self._clock.at(done_s, self._at_done, waiting)
            return
        if computing:
            cores.end(now, mark)
        else:
            besides = self._besides[node]
            besides.popleft()
            if besides:
                self._wait(besides[0])
        if not cores.even:
            took_s = now - since_s if computing else cores.turn_s(now, since_s)
            finished = argument[1]
            if isinstance(finished, TaskFinished) and finished.busy_s:  # the rest is its engine's
                finished.busy_s *= took_s / (finished.busy_s + self._times.engine_s(node))
        action(argument)

    def _grant(self, node: int, command: GrantCredit) -> None:
        if self._lives.knows(node, command.stream.source):
            self._network.signal(node, command.stream.source, CreditGranted(command.stream, command.nbytes))

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
            self._beside(node, work_s + engine_s, self._at_fed, happened)
            return
        now, cores = self._clock.now(), self._cores[node]
        mark = cores.compute(now, work_s + engine_s)
        waiting = node, cores, True, mark, now, self._at_fed, happened
        self._clock.at(cores.computed_s(now, mark), self._at_done, waiting)


_CARRY_OUT: Final[Mapping[type, Callable[[Simulator, int, Any], None]]] = {
    RunTask: Simulator._start,
    SendMessage: Simulator._send,
    GrantCredit: Simulator._grant,
    SendEnd: Simulator._send_end,
    GoOn: Simulator._go_on,
    Offer: Simulator._leave_alone,
    SetTimer: Simulator._set_timer,
    Report: Simulator._report,
    Ended: Simulator._node_ended,
    Failed: Simulator._node_failed,
}


def _collections() -> int:
    """How often the youngest objects have been collected in this process."""
    return int(gc.get_stats()[0]["collections"])
