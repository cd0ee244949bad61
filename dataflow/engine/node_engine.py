"""The engine of one node, without threads, sockets or clocks: events in, commands out.

Invariant: a task's inputs are fixed when it starts; its emissions become visible, and the locks of the state it wrote
are released, when its `TaskFinished` is handled. Outcomes of one chain are committed in the order its tasks started.

Nothing waits for ever: a task holds all its locks from its start and waits for no other, chains take turns, and a
chain that waits for a state element is not overtaken by one that has had its turn since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from dataflow.engine.blame import reraise
from dataflow.engine.chain import Chain, Given, Needs
from dataflow.engine.chain_state import ChainState, Offered, Role, Running, Step
from dataflow.engine.events import (
    Command,
    CreditGranted,
    Ended,
    Event,
    Failed,
    GoOn,
    GrantCredit,
    Measured,
    MessageArrived,
    NodeJoined,
    NodeLeft,
    Offer,
    Outcome,
    Report,
    RunTask,
    SendEnd,
    SendMessage,
    SetTimer,
    Snapshot,
    Started,
    StopAsked,
    StreamEnded,
    Task,
    TaskFinished,
    TimerFired,
)
from dataflow.engine.flow import Crossing, UnderWay
from dataflow.engine.inbox import Delivery
from dataflow.engine.inputs import Inputs, Source
from dataflow.engine.loading import LoadedNode, Members
from dataflow.engine.news import Change, Happening
from dataflow.engine.tally import Tally
from dataflow.engine.turns import Turns
from dataflow.errors import AkoError, OperatorError
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import reached
from dataflow.message import Message, Sharded, Tick
from dataflow.plan.physical import PhysicalPlan
from dataflow.ports import Emission
from dataflow.reports import NodeStatistics, Rates


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
        self._node, self._name, self._states = node, plan.nodes[node].name, loaded.states
        self._tasks, self._roles = plan.nodes[node].compute_tasks, plan.nodes[node].roles
        self._slots = {"compute": self._tasks, "network": plan.nodes[node].network_tasks}
        incarnation = next((context.incarnation for context in loaded.contexts.values()), 0)
        self._tally = Tally(node, incarnation, self._slots)
        self._locked: set[str] = set()
        self._reserved: set[str] = set()
        self._commands: list[Command] = []
        self._to_self: deque[Event] = deque()
        self._gone: set[int] = set()
        self._joins = 0
        self._under_way = UnderWay()
        self._now = self._started_s = 0.0
        self._started = self._ended = self._failed = False
        chains = [Chain(plan, chain, loaded.operators, loaded.contexts) for chain in plan.chains_on(node)]
        self._build(plan, loaded.members, chains, loaded.positions)

    def _build(self, plan: PhysicalPlan, members: Members, chains: list[Chain], positions: Mapping[str, int]) -> None:
        """Look up, once, where every edge comes from and goes to."""
        graph = plan.graph
        self._chains = {
            chain.plan.head: ChainState(chain, Inputs.feeding(graph, members, chain.head, self._node))
            for chain in chains
        }
        # Those that chains wait for come before sources, whose work can always wait.
        self._turns = sorted(self._chains.values(), key=lambda state: state.source)
        self._awake = Turns(self._turns)
        self._repeating = [state for state in self._turns if state.chain.repeats]
        self._gated = [state for state in self._turns if state.chain.gated]
        self._entries = {
            number: (self._chains[edge.target], edge.input)
            for number, edge in enumerate(graph.edges)
            if edge.target in self._chains
        }
        sending = {chain.last.id for chain in chains}
        self._crossings = {
            number: Crossing(
                number,
                edge,
                self._node,
                reached(edge.route, members[graph.operator(edge.target).role]),
                plan.window_nbytes,
                graph.tensor_scale,
            )
            for number, edge in plan.stream_edges().items()
            if edge.source in sending
        }
        self._leaving: dict[tuple[str, str], list[int]] = {}
        for state in self._chains.values():
            leaving = [number for number, edge in enumerate(graph.edges) if edge.source == state.chain.last.id]
            for number in leaving:
                self._leaving.setdefault((state.chain.last.id, graph.edges[number].output), []).append(number)
            local = [self._entries[number] for number in leaving if number not in self._crossings]
            crossings = [self._crossings[number] for number in leaving if number in self._crossings]
            state.connect([(target.inbox, port) for target, port in local], crossings)
            for target, _ in local if state.source else ():
                target.feeders.append(state)
            state.look_around(self._turns)
            state.next_step = positions.get(state.name, 0)
        for state in self._turns:
            state.gathers = self._gathers(graph, state) if state.source else []

    def _gathers(self, graph: LogicalGraph, source: ChainState) -> list[ChainState]:
        """The chains on this node that make steps of what a source gives."""
        reached, ahead = [], [source]
        for state in ahead:
            ids = state.chain.plan.operators
            targets = (edge.target for edge in graph.edges if edge.source in ids and edge.route is None)
            for target in [self._chains[name] for name in targets if name in self._chains]:
                if target.chain.gather:
                    reached.append(target)
                elif target not in ahead:
                    ahead.append(target)
        return reached

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in an event and say what is to be done.

        Args:
            event: what happened.
            now: seconds on the driver's clock; never less than before.
        """
        self._now, self._commands = now, []
        if self._failed:
            return []
        try:
            self._take(event)
            while self._to_self:
                self._take(self._to_self.popleft())
            if isinstance(event, TaskFinished) and self._go_on_with(self._chains[event.task.chain]):
                self._commands.append(GoOn())
            elif self._started:
                self._pump()
            for state in self._repeating:
                self._offer(state)
        except AkoError as error:
            self._failed = True
            self._commands.append(Failed(error))
        return self._commands

    @property
    def minds_rates(self) -> bool:
        """Whether any of its operators wants to know how fast the node is, and so needs to be given `Measured`."""
        return any(state.chain.minds_rates for state in self._turns)

    def statistics(self, now: float | None = None) -> NodeStatistics:
        """What has been counted from the start until `now`, or until the last event."""
        until_s = self._now if now is None else now
        waiting_s = sum(until_s - state.blocked_since for state in self._turns if state.blocked_since is not None)
        return self._tally.statistics(waiting_s, until_s - self._started_s if self._started else 0.0)

    def _take(self, event: Event) -> None:
        _TAKE[type(event)](self, event)

    def _begin(self, _: Started) -> None:
        self._started, self._started_s = True, self._now
        for state in self._turns:
            self._set_timer(state)

    def _stop(self, _: StopAsked) -> None:
        for state in self._turns:
            state.stopping = True
            self._awake.wake(state)

    def _go_on(self, _: GoOn) -> None:
        """Nothing has changed; what can start is started after every event."""

    # Starting tasks

    def _go_on_with(self, state: ChainState) -> bool:
        """Start the next task of a gathering chain ahead of chains that run in the other pool, whose turn comes later.

        They are not overtaken for long: the shards of a step lock nothing, and a step of one task, which holds what it
        writes for as long as it takes, is not started ahead of a chain that waits for that.
        """
        if not state.chain.gather or state.ending or not self._slots[state.pool] or self._others_wait(state):
            return False
        self._reserved.clear()
        if not self._start(state):
            return False
        self._awake.served(state)
        return True

    def _others_wait(self, state: ChainState) -> bool:
        """Whether any other chain may wait for a slot of this one's pool, or for what its steps hold."""
        held = state.chain.merge_needs.writes if state.alone else frozenset()
        for other in self._awake.in_turn():
            waits = other.pool == state.pool or not held.isdisjoint(other.chain.uses.all)
            if waits and other is not state and not other.idle():
                return True
        return False

    def _pump(self) -> None:
        """Start every task that can start; end every chain that is through."""
        while self._serve_next():
            pass
        if not self._ended and not self._turns and all(crossing.closed for crossing in self._crossings.values()):
            self._ended = True
            self._commands.append(Ended())

    def _serve_next(self) -> bool:
        """Start one task of the first chain that can; that chain goes behind the others."""
        self._reserved.clear()
        for state in self._awake.in_turn():
            if state.idle():
                self._awake.sleep(state)
                continue
            if not self._slots[state.pool] or state.ending:
                continue
            if self._start(state) or self._end(state):
                self._awake.served(state)
                return True
        return False

    def _start(self, state: ChainState) -> bool:
        if state.step is not None:
            return self._continue_step(state, state.step)
        if state.checkpoint is not None:
            return self._keep(state, state.checkpoint)
        if state.rates is not None and self._start_rates(state, state.rates):
            return True
        if state.timed and self._start_timer(state):
            return True
        if state.news and (news := state.news.next()) is not None:
            return self._start_telling(state, *news)
        if state.source:
            return self._start_source(state)
        gather = state.chain.gather
        delivery = state.inbox.lowest_step() if gather else state.inbox.first(state.is_open)
        if delivery is None or (gather and not state.is_open(None)) or not self._may_run(state):
            return False
        if gather:
            return self._open_step(state, delivery.message)
        self._take_out(state, delivery)
        self._run_message(state, delivery, self._given(state.chain.process_needs), state.next_step)
        state.next_step += 1
        return True

    def _start_source(self, state: ChainState) -> bool:
        stopping = state.stopping and not state.next_shard
        if stopping or state.exhausted or state.running or not state.is_open(None) or not self._may_run(state):
            return False
        number, shard = state.next_step, state.next_shard
        shards = self._tasks if state.chain.sharded else 1
        tick = Tick(number, shard, shards)
        self._run_message(state, Delivery("", tick), self._given(state.chain.process_needs), number)
        state.next_step, state.next_shard = (number, shard + 1) if shard + 1 < shards else (number + 1, 0)
        return True

    def _start_telling(self, state: ChainState, node: int, change: Change) -> bool:
        """Run `on_left` or `on_joined` behind the last message of a node, with nothing else of the chain under way."""
        if state.running:
            return False
        chain, step, joined = state.chain, state.next_step, change is Change.JOINED
        if joined and not chain.minds_joining:
            self._told(state, node)
            return True
        needs = chain.joined_needs if joined else chain.left_needs
        if not state.has_room() or not self._free(needs):
            return False
        state.telling, given = node, self._given(needs)
        tell = chain.joined if joined else chain.left
        self._run(state, "message", given, lambda: tell(node, given, step))
        return True

    def _keep(self, state: ChainState, number: int) -> bool:
        """Take the checkpoint that a chain has asked for, once the chain could go on and nobody writes."""
        gate = state.chain.gate_uses.without_writes()
        if state.running or state.gate_shut or not self._free(gate) or not self._gate_open(state):
            return False
        if self._locked:
            self._reserved |= self._states.keys()
            return False
        gathers = [each.position() for each in self._chains.values() if each.chain.gather]
        positions = {name: each.position() for name, each in self._chains.items()}
        tensors = {}
        for name, element in self._states.items():
            try:
                kept = element.kept()
            except Exception as error:
                reraise(error, f"state element {name!r}", type(element), self._name)
            tensors.update({f"{name}/{key}": tensor for key, tensor in kept.items()})
        state.checkpoint = None
        steps = max(gathers) + state.ahead if gathers else None
        snapshot = Snapshot(self._node, self._name, self._roles, number, steps, positions, tensors)
        self._commands.append(Report(snapshot))
        return True

    def _start_rates(self, state: ChainState, rates: Rates) -> bool:
        """Run `on_rates` ahead of the messages that wait, between steps."""
        if not state.has_room() or not self._free(state.chain.rates_needs):
            return False
        state.rates = None
        chain, step, given = state.chain, state.next_step, self._given(state.chain.rates_needs)
        self._run(state, "rates", given, lambda: chain.rates(rates, given, step))
        return True

    def _start_timer(self, state: ChainState) -> bool:
        """Run `on_timer` ahead of the messages that wait, between steps."""
        if not state.has_room() or not self._free(state.chain.timer_needs):
            return False
        state.timed = False
        chain, step, given = state.chain, state.next_step, self._given(state.chain.timer_needs)
        self._run(state, "timer", given, lambda: chain.timer(given, step))
        return True

    def _open_step(self, state: ChainState, first: Message) -> bool:
        """Begin a step, whose shards share the snapshots taken now; a message without shards is a step of its own."""
        number, shards = (first.step, first.shards) if isinstance(first, Sharded) else (state.next_step, 1)
        state.step = Step(number, self._given(state.chain.process_needs), shards)
        state.next_step = number + 1
        return self._continue_step(state, state.step)

    def _continue_step(self, state: ChainState, step: Step) -> bool:
        """Start one more shard of the open step, or its merge, or close it; whether that changed anything."""
        if step.merging:
            return False
        if state.complete(step):
            return self._finish_step(state, step)
        if step.started == step.shards:
            return False
        delivery = state.inbox.of_step(step.number) if step.started else state.inbox.lowest_step()
        if delivery is None:
            return False
        self._take_out(state, delivery)
        step.started += 1
        if step.shards == 1 and state.alone and self._locked.isdisjoint(state.chain.merge_needs.writes):
            self._run_step(state, step, delivery)
        else:
            self._run_message(state, delivery, step.given, step.number)
        return True

    def _run_step(self, state: ChainState, step: Step, delivery: Delivery) -> None:
        """Run the only shard and the merge as one task: nobody else wants to write meanwhile what the merge writes."""
        step.merging = True
        chain, given = state.chain, self._given_to_merge(state, step)
        self._run(state, "step", given, lambda: chain.step(delivery.message, given, step.number), delivery)

    def _offer(self, state: ChainState) -> None:
        """Offer the next step to whoever runs this one, if it needs nothing but what this one holds.

        Whoever begins to wait after that waits for one more step, as nothing is offered while anybody waits.
        """
        if state.offered is not None or state.step is None or not state.step.merging or not state.alone:
            return
        # What follows a task is committed with it: nothing else of the chain may be under way.
        if state.rates is not None or state.checkpoint is not None or len(state.running) > 1:
            return
        delivery = None if state.news and state.news.next() else state.inbox.lowest_step()
        if delivery is None or not state.has_room(2) or not state.is_open(None) or self._others_wait(state):
            return
        chain, message = state.chain, delivery.message
        number, shards = (message.step, message.shards) if isinstance(message, Sharded) else (state.next_step, 1)
        if shards > 1:
            return
        needs = Needs(chain.process_needs.reads, chain.merge_needs.writes)
        task = Task(chain.plan.head, "step", state.pool, lambda: chain.step(message, self._given(needs), number))
        state.offered = Offered(number, Running(task, needs.writes, delivery, self._joins))
        self._commands.append(Offer(state.running[-1].task, task, lambda: chain.ready(self._given(chain.gate_uses))))

    def _follow(self, state: ChainState, offered: Offered) -> None:
        """Take note that the step that was offered is under way."""
        run = offered.run
        assert run.delivery is not None
        self._take_out(state, run.delivery)
        state.step, state.next_step = Step(offered.number, _NOTHING, 1), offered.number + 1
        state.step.started, state.step.merging = 1, True
        self._locked |= run.locked
        self._slots[run.task.pool] -= 1
        state.running.append(run)
        if state.awake:
            self._awake.served(state)

    def _take_out(self, state: ChainState, delivery: Delivery) -> None:
        """Take a delivery out of its inbox, which makes room."""
        state.inbox.take(delivery)
        for source in state.feeders:
            self._awake.wake(source)

    def _finish_step(self, state: ChainState, step: Step) -> bool:
        chain = state.chain
        if not step.parts:
            state.step = None
            return True
        if not self._free(chain.merge_needs):
            return False
        step.merging = True
        given = self._given_to_merge(state, step)
        self._run(state, "merge", given, lambda: chain.merge(step.parts, given, step.number))
        return True

    def _end(self, state: ChainState) -> bool:
        """End a chain that has nothing left to do; whether that changed anything."""
        if not state.through() or not self._free(state.chain.end_needs):
            return False
        state.ending = True
        self._unblocked(state)
        chain, step, given = state.chain, state.next_step, self._given(state.chain.end_needs)
        self._run(state, "end", given, lambda: chain.end(given, step))
        return True

    def _run_message(self, state: ChainState, delivery: Delivery, given: Given, step: int) -> None:
        chain, message = state.chain, delivery.message
        role: Role = "shard" if chain.gather else "message"
        self._run(state, role, given, lambda: chain.process(message, given, step), delivery)

    def _run(
        self,
        state: ChainState,
        role: Role,
        given: Given,
        work: Callable[[], Outcome],
        delivery: Delivery | None = None,
    ) -> None:
        task = Task(state.name, role, state.pool, work)
        if given.live:
            self._locked.update(given.live)
        self._slots[task.pool] -= 1
        state.running.append(Running(task, given.live.keys(), delivery, self._joins))
        self._commands.append(RunTask(task))

    # What a task needs before it may start

    def _may_run(self, state: ChainState) -> bool:
        """Whether there is room for what a message makes, its state is free, and the gate is open."""
        chain = state.chain
        if state.gate_shut or not state.has_room() or not self._free(chain.start_needs):
            return False
        return not chain.gated or self._gate_open(state)

    def _free(self, needs: Needs) -> bool:
        """Whether nobody writes these elements; if not, those that come after in this turn leave them alone."""
        if not needs.all or (self._locked.isdisjoint(needs.all) and self._reserved.isdisjoint(needs.writes)):
            return True
        self._reserved |= needs.all
        return False

    def _given(self, needs: Needs) -> Given:
        """Snapshots of what is read and the live elements of what is written."""
        if not needs.all:
            return _NOTHING
        return Given(
            {name: self._snapshot(name) for name in needs.reads},
            {name: self._states[name] for name in needs.writes},
        )

    def _given_to_merge(self, state: ChainState, step: Step) -> Given:
        """The snapshots that the step's shards were given, and what the merge writes."""
        return Given(step.given.snapshots, {name: self._states[name] for name in state.chain.merge_needs.writes})

    def _snapshot(self, name: str) -> Any:
        state = self._states[name]
        try:
            return state.snapshot()
        except Exception as error:
            reraise(error, f"state element {name!r}", type(state), self._name)

    def _gate_open(self, state: ChainState) -> bool:
        """Whether the chain's `ready` predicates hold; if not, they are asked again once their state has changed."""
        uses = state.chain.gate_uses
        if state.chain.ready(self._given(uses)):
            self._unblocked(state)
            return True
        state.gate_shut = bool(uses.all)
        if state.blocked_since is None:
            state.blocked_since = self._now
        return False

    def _unblocked(self, state: ChainState) -> None:
        if state.blocked_since is not None:
            self._tally.waiting_s += self._now - state.blocked_since
            state.blocked_since = None

    # Committing

    def _task_finished(self, event: TaskFinished) -> None:
        task, tally = event.task, self._tally
        state = self._chains[task.chain]
        self._slots[task.pool] += 1
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
            self._follow(state, offered)

    def _commit(self, state: ChainState, run: Running, outcome: Outcome) -> None:
        if run.locked:
            self._unlock(run.locked)
        self._publish(state, run, outcome)
        if run.delivery is not None:
            self._consumed(run.delivery)
        if outcome.end_of_data and state.source:
            state.exhausted = True
        elif outcome.end_of_data:
            self._end_outputs(state)
        if state.telling is not None:  # with nothing else of the chain under way, so this was it
            self._told(state, state.telling)
        if outcome.checkpoint is not None:
            state.checkpoint = outcome.checkpoint
            if state.step is not None:  # a node that joined late has made fewer steps than it counts
                state.ahead = outcome.checkpoint - state.step.number - 1
        role = run.task.role
        if role == "shard" and state.step is not None:
            state.step.finished += 1
            state.step.parts += outcome.parts
        elif role in ("merge", "step"):
            state.step = None
            self._tally.steps += outcome.merged
        elif role == "end":
            self._close(state)
            return
        self._awake.wake(state)

    def _publish(self, state: ChainState, run: Running, outcome: Outcome) -> None:
        """Make what a task yielded visible."""
        if outcome.emissions and state.silent:
            what = "an operator has emitted something after it had yielded EndOfData"
            raise OperatorError(what, where=f"node {self._name}, operator {outcome.emissions[0][0]}")
        for name, emission in outcome.emissions:
            self._emit(name, emission, run.joins)
        for report in outcome.reports:
            self._commands.append(Report(report))
        for artifact in outcome.artifacts:
            self._commands.append(Report(artifact))
        for name, sample in outcome.samples:
            self._tally.sample(name, sample)

    def _unlock(self, elements: AbstractSet[str]) -> None:
        self._locked -= elements
        for state in self._gated:
            if state.gate_shut and not elements.isdisjoint(state.chain.gate_uses.all):
                state.gate_shut = False
                self._awake.wake(state)

    def _emit(self, operator: str, emission: Emission, joins: int) -> None:
        for number in self._leaving[operator, emission.port]:
            crossing = self._crossings.get(number)
            if crossing is not None:
                self._send(crossing.send(emission, joins))
            else:
                self._deliver((number, None), Delivery(self._entries[number][1], emission.message))

    def _send(self, commands: Iterable[SendMessage | SendEnd]) -> None:
        """Pass on what is for others; what this node sends to itself comes back in as an event."""
        for command in commands:
            target = command.stream.target
            if target == self._node:
                if isinstance(command, SendMessage):
                    self._to_self.append(MessageArrived(command.stream, command.message, command.nbytes))
                else:
                    self._to_self.append(StreamEnded(command.stream))
                continue
            if isinstance(command, SendMessage):
                self._tally.sent_nbytes[target] += command.nbytes
            self._commands.append(command)

    def _credit_granted(self, event: CreditGranted) -> None:
        stream = event.stream
        self._send(self._crossings[stream.edge].grant(stream.target, event.nbytes))

    def _message_arrived(self, event: MessageArrived) -> None:
        stream, size = event.stream, event.nbytes
        source = stream.source
        if source in self._gone:
            return
        if source != self._node:
            self._tally.received_nbytes[source] += size
        state, port = self._entries[stream.edge]
        delivery = Delivery(port, event.message, stream, size)
        if state.news or state.ending:
            self._hear(state, source, delivery)
        else:
            self._deliver((stream.edge, source), delivery)

    def _deliver(self, source: Source, delivery: Delivery) -> None:
        state, _ = self._entries[source[0]]
        replaced = state.inbox.push(delivery)
        self._awake.wake(state)
        if state.chain.gather:
            state.saw(source, delivery)
        if replaced is not None:
            self._consumed(replaced)

    def _consumed(self, delivery: Delivery) -> None:
        """Return the credit that a message held."""
        stream = delivery.stream
        if stream is None or not delivery.nbytes:
            return
        if stream.source == self._node:
            self._to_self.append(CreditGranted(stream, delivery.nbytes))
        else:
            self._commands.append(GrantCredit(stream, delivery.nbytes))

    def _measured(self, event: Measured) -> None:
        """Keep the rates for the chains that mind, in the place of older ones that none of their tasks has taken.

        Streams have no more under way than their links carry in a moment: what would queue is made later, of more.
        """
        for peer, link in event.rates.links.items():
            nbytes = self._under_way.nbytes(peer, link)
            if nbytes is not None:
                for crossing in self._crossings.values():
                    self._send(crossing.limit(peer, nbytes))
        for state in self._turns:
            if state.chain.minds_rates and not state.ending:
                state.rates = event.rates
                self._awake.wake(state)

    def _timer_fired(self, event: TimerFired) -> None:
        """Have a chain's operators called, once if they have not been since the last time, and set the next timer."""
        state = self._chains[event.chain]
        if state not in self._turns or state.ending or state.silent:
            return
        state.timed = True
        self._awake.wake(state)
        self._set_timer(state)

    def _set_timer(self, state: ChainState) -> None:
        if state.chain.timer_s:
            self._commands.append(SetTimer(state.name, state.chain.timer_s))

    # Ending

    def _stream_ended(self, event: StreamEnded) -> None:
        edge, node, _ = event.stream
        self._hear(self._entries[edge][0], node, (edge, node))

    def _hear(self, state: ChainState, node: int, what: Happening) -> None:
        """Have a chain take in what has happened of a node; whoever sends to one that is ending comes too late."""
        if not state.ending:
            self._deliver_all(state, state.news.hear(node, what))
        elif isinstance(what, Delivery):
            self._consumed(what)

    def _told(self, state: ChainState, node: int) -> None:
        """A chain's operators have been told that a node has left or joined."""
        state.telling = None
        self._deliver_all(state, state.news.told(node))

    def _deliver_all(self, state: ChainState, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            assert delivery.stream is not None
            self._deliver((delivery.stream.edge, delivery.stream.source), delivery)
        self._awake.wake(state)

    def _node_left(self, event: NodeLeft) -> None:
        if event.node in self._gone:
            return
        self._gone.add(event.node)
        for crossing in self._crossings.values():
            crossing.drop(event.node)
        for state in self._turns:
            state.forget(event.node)
            self._hear(state, event.node, Change.BURIED)

    def _node_joined(self, event: NodeJoined) -> None:
        """A node that is a member from the start, as another incarnation than its first, makes no difference."""
        if event.node not in self._gone:
            return
        self._gone.remove(event.node)
        self._joins += 1
        for crossing in self._crossings.values():
            self._send(crossing.join(event.node, self._joins))
        for state in self._turns:
            if state.chain.minds_joining or state.open_inputs.of(event.node):
                self._hear(state, event.node, Change.JOINED)

    def _close(self, state: ChainState) -> None:
        """Tell everybody downstream that a chain has ended."""
        self._turns.remove(state)
        if state.awake:
            self._awake.sleep(state)
        for other in self._turns:
            other.look_around(self._turns)
        self._end_outputs(state)

    def _end_outputs(self, state: ChainState) -> None:
        """Tell everybody downstream that nothing more comes from a chain, unless they know."""
        if state.silent:
            return
        state.silent = True
        last, leaving = state.chain.last.id, self._leaving.items()
        for number in [number for (name, _), numbers in leaving if name == last for number in numbers]:
            if number in self._crossings:
                self._send(self._crossings[number].close())
            else:
                state = self._entries[number][0]
                state.open_inputs.end((number, None))
                self._awake.wake(state)


_NOTHING = Given({}, {})

_TAKE: Final[Mapping[type, Callable[[NodeEngine, Any], None]]] = {
    TaskFinished: NodeEngine._task_finished,
    MessageArrived: NodeEngine._message_arrived,
    CreditGranted: NodeEngine._credit_granted,
    StreamEnded: NodeEngine._stream_ended,
    NodeLeft: NodeEngine._node_left,
    NodeJoined: NodeEngine._node_joined,
    Measured: NodeEngine._measured,
    TimerFired: NodeEngine._timer_fired,
    GoOn: NodeEngine._go_on,
    StopAsked: NodeEngine._stop,
    Started: NodeEngine._begin,
}
