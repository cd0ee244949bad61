"""The engine of one node, without threads, sockets or clocks: events in, commands out.

Invariant: a task's inputs are fixed when it starts; its emissions become visible, and the locks of the state it wrote
are released, when its `TaskFinished` is handled. Outcomes of one chain are committed in the order its tasks started.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dataflow.engine.chain import Chain
from dataflow.engine.events import (
    Command,
    CreditGranted,
    Ended,
    Event,
    Failed,
    GrantCredit,
    MessageArrived,
    NodeLeft,
    Outcome,
    Report,
    RunTask,
    SendMessage,
    Started,
    StopAsked,
    StreamEnded,
    Task,
    TaskFinished,
)
from dataflow.engine.flow import Outgoing
from dataflow.engine.inbox import Delivery, Inbox, Left
from dataflow.engine.loading import LoadedNode
from dataflow.engine.reports import NodeStatistics, SampleStatistics
from dataflow.graph.routes import receivers
from dataflow.message import Message, Tick, nbytes
from dataflow.plan.physical import PhysicalPlan, StreamId
from dataflow.ports import Emission


@dataclass(slots=True)
class _Step:
    """The step a gathering chain is in."""

    number: int
    given: Mapping[str, Any]
    shards: int
    started: int = 0
    parts: dict[int, Any] = field(default_factory=dict)
    merging: bool = False


@dataclass(slots=True, eq=False)
class _Running:
    """A task that has started: its locks, the delivery it consumed, its outcome once it is there."""

    task: Task
    role: str
    locked: frozenset[str]
    delivery: Delivery | None = None
    shard: int = 0
    outcome: Outcome | None = None


class _ChainState:
    """What the engine knows about a chain while the job runs."""

    def __init__(self, chain: Chain, inputs: set[tuple[int, int]], out_edges: list[int]) -> None:
        self.chain = chain
        self.name = chain.head.id
        self.inbox = Inbox(chain.head.inputs, key="step" if chain.gather and not chain.head.source else None)
        self.open_inputs = inputs
        self.out_edges = out_edges
        self.running: deque[_Running] = deque()
        self.step: _Step | None = None
        self.next_step = 0
        self.exhausted = False
        self.ending = False
        self.ended = False
        self.blocked_since: float | None = None


class NodeEngine:
    """One node's share of a plan. `handle` is its only way to change."""

    def __init__(self, plan: PhysicalPlan, node: int, loaded: LoadedNode) -> None:
        """Take over a loaded node; nothing runs before `Started`.

        Args:
            plan: the physical plan.
            node: this node's number.
            loaded: its operators and state elements.
        """
        self._node, self._states = node, loaded.states
        self._graph, self._window = plan.graph, plan.window_nbytes
        self._members = {role: list(nodes) for role, nodes in plan.members().items()}
        self._slots = {"compute": plan.nodes[node].compute_tasks, "network": plan.nodes[node].network_tasks}
        self._tasks = plan.nodes[node].compute_tasks
        self._locked: set[str] = set()
        self._chains: dict[str, _ChainState] = {}
        self._outgoing: dict[StreamId, Outgoing] = {}
        self._chain_of: dict[str, str] = {}
        # Sources come last, or those of a busy pool would leave no task to anybody else.
        for chain_plan in sorted(plan.chains_on(node), key=lambda chain: plan.graph.operator(chain.head).source):
            chain = Chain(plan, chain_plan, loaded.operators, loaded.contexts, loaded.states)
            self._chains[chain_plan.head] = _ChainState(chain, self._inputs(chain), self._out_edges(chain))
            self._chain_of.update(dict.fromkeys(chain_plan.operators, chain_plan.head))
        for stream in plan.streams():
            if stream.source == node:
                self._outgoing[stream] = Outgoing(stream, plan.window_nbytes)
        self._commands: list[Command] = []
        self._now = 0.0
        self._started = self._stopping = self._ended = self._failed = False
        self._steps = self._finished = 0
        self._waiting_s = 0.0
        self._busy_s = dict.fromkeys(self._slots, 0.0)
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()
        self._samples: dict[str, SampleStatistics] = {}

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in an event and say what is to be done.

        Args:
            event: what happened.
            now: seconds on the driver's clock; never less than before.
        """
        self._now = now
        self._commands = []
        if self._failed:
            return []
        match event:
            case TaskFinished():
                self._task_finished(event)
            case MessageArrived(stream, message, size):
                self._received[stream.source] += size
                edge = self._graph.edges[stream.edge]
                self._push(edge.target, Delivery(edge.input, message, stream, size))
            case CreditGranted(stream, size):
                self._outgoing[stream].credit += size
                self._flush(self._outgoing[stream])
            case StreamEnded(stream):
                self._stream_ended(stream)
            case NodeLeft(node):
                self._node_left(node)
            case StopAsked():
                self._stopping = True
            case Started():
                self._started = True
        if self._started and not self._failed:
            self._pump()
        return self._commands

    def statistics(self) -> NodeStatistics:
        """What has been counted since the start."""
        return NodeStatistics(
            node=self._node,
            steps=self._steps,
            tasks=self._finished,
            busy_s=dict(self._busy_s),
            waiting_s=self._waiting_s,
            sent_nbytes=dict(self._sent),
            received_nbytes=dict(self._received),
            samples=dict(self._samples),
        )

    # What a graph says about a chain

    def _inputs(self, chain: Chain) -> set[tuple[int, int]]:
        """(edge number, source node) of everything that feeds a chain's first operator."""
        inputs: set[tuple[int, int]] = set()
        for number, edge in enumerate(self._graph.edges):
            if edge.target != chain.head.id:
                continue
            if edge.route is None:
                inputs.add((number, self._node))
            else:
                role = self._graph.operator(edge.source).role
                inputs |= {(number, n) for n in self._members[role] if edge.loopback or n != self._node}
        return inputs

    def _out_edges(self, chain: Chain) -> list[int]:
        """Numbers of the edges that leave a chain: those of its last operator."""
        return [number for number, edge in enumerate(self._graph.edges) if edge.source == chain.last.id]

    # Starting tasks

    def _pump(self) -> None:
        """Start every task that can start; end every chain that is through."""
        progress = True
        while progress:
            progress = False
            for state in self._chains.values():
                if not state.ended and (self._start(state) or self._end(state)):
                    progress = True
        if not self._ended and all(state.ended for state in self._chains.values()):
            self._ended = all(stream.closed for stream in self._outgoing.values())
            if self._ended:
                self._commands.append(Ended())

    def _start(self, state: _ChainState) -> bool:
        """Start tasks of a chain while possible; whether any was started."""
        started = False
        while self._slots[state.chain.plan.pool] > 0 and self._start_one(state):
            started = True
        return started

    def _start_one(self, state: _ChainState) -> bool:
        if state.ending:
            return False
        if state.step is not None:
            return self._continue_step(state, state.step)
        if state.chain.head.source:
            return self._start_source(state)
        if not len(state.inbox):
            return False
        if not self._free(state.chain.reads | state.chain.writes) or not self._may_emit(state) or not self._gate(state):
            return False
        if state.chain.gather:
            key = state.inbox.first_key()
            if isinstance(key, int):
                return self._open_step(state, key)
        delivery = state.inbox.pop(lambda key: self._has_credit(state, key))
        if delivery is None:
            return False
        if isinstance(delivery.message, Left):
            return self._start_leaving(state, delivery)
        self._run_message(state, delivery, state.next_step, self._given(state), "process")
        state.next_step += 1
        return True

    def _start_source(self, state: _ChainState) -> bool:
        chain = state.chain
        if self._stopping or state.exhausted or state.running:
            return False
        if not self._free(chain.reads | chain.writes) or not self._may_emit(state) or not self._gate(state):
            return False
        if chain.gather:
            return self._open_step(state, state.next_step)
        tick = Delivery("", Tick(state.next_step, 0, 1))
        self._run_message(state, tick, state.next_step, self._given(state), "process")
        state.next_step += 1
        return True

    def _open_step(self, state: _ChainState, number: int) -> bool:
        shards = self._tasks if state.chain.head.source else 0
        state.step = _Step(number, self._given(state), shards)
        state.next_step = number + 1
        return self._continue_step(state, state.step) or True

    def _continue_step(self, state: _ChainState, step: _Step) -> bool:
        """Start one more shard of the open step, or its merge."""
        if step.merging:
            return False
        if step.shards and len(step.parts) == step.shards:
            return self._start_merge(state, step)
        if state.chain.head.source:
            if step.started == step.shards:
                return False
            delivery: Delivery | None = Delivery("", Tick(step.number, step.started, step.shards))
        else:
            delivery = state.inbox.pop(lambda key: key == step.number)
        if delivery is None:
            return False
        step.started += 1
        self._run_message(state, delivery, step.number, step.given, "shard")
        return True

    def _start_merge(self, state: _ChainState, step: _Step) -> bool:
        chain = state.chain
        if not self._free(chain.merge_writes):
            return False
        step.merging = True
        if state.exhausted:
            state.step = None
            return True
        parts = [step.parts[shard] for shard in range(step.shards)]
        given = {**step.given, **{name: self._states[name] for name in chain.merge_writes}}
        self._run(state, "merge", chain.merge_writes, lambda: chain.merge(parts, given, step.number))
        return True

    def _start_leaving(self, state: _ChainState, delivery: Delivery) -> bool:
        chain, message = state.chain, delivery.message
        given = {name: self._states[name] for name in chain.leave_writes}
        self._run(state, "process", chain.leave_writes, lambda: chain.process(message, given, 0), delivery)
        return True

    def _run_message(
        self, state: _ChainState, delivery: Delivery, step: int, given: Mapping[str, Any], role: str
    ) -> None:
        chain, message = state.chain, delivery.message
        shard = getattr(message, "shard", 0)
        self._run(state, role, chain.writes, lambda: chain.process(message, given, step), delivery, shard)

    def _run(
        self,
        state: _ChainState,
        role: str,
        writes: set[str],
        work: Any,
        delivery: Delivery | None = None,
        shard: int = 0,
    ) -> None:
        pool = state.chain.plan.pool
        task = Task(state.name, pool, work)
        self._locked |= writes
        self._slots[pool] -= 1
        state.running.append(_Running(task, role, frozenset(writes), delivery, shard))
        self._commands.append(RunTask(task))

    # What a task needs before it may start

    def _free(self, elements: set[str]) -> bool:
        return self._locked.isdisjoint(elements)

    def _given(self, state: _ChainState) -> dict[str, Any]:
        """Snapshots of what a chain reads and the live elements that it writes."""
        given: dict[str, Any] = {name: self._states[name].snapshot() for name in state.chain.reads}
        given.update((name, self._states[name]) for name in state.chain.writes)
        return given

    def _gate(self, state: _ChainState) -> bool:
        """Whether the chain's `ready` predicates hold; the time they do not is waiting time."""
        chain = state.chain
        if not chain.gates:
            return True
        if not self._free(chain.gate_elements):
            return False
        if chain.ready():
            if state.blocked_since is not None:
                self._waiting_s += self._now - state.blocked_since
                state.blocked_since = None
            return True
        if state.blocked_since is None:
            state.blocked_since = self._now
        return False

    def _may_emit(self, state: _ChainState) -> bool:
        """Whether the inboxes downstream have room, and the streams of an unkeyed sender too."""
        keyed = any(port.key for port in state.chain.head.inputs)
        for number in state.out_edges:
            edge = self._graph.edges[number]
            if edge.route is None:
                if not self._chains[self._chain_of[edge.target]].inbox.room(edge.input):
                    return False
            elif not keyed and any(out.waiting_nbytes >= self._window for out in self._streams(number)):
                return False
        return True

    def _has_credit(self, state: _ChainState, key: object) -> bool:
        """Whether a message made for the receiver `key` could be sent at once."""
        if key is None or not state.chain.last.sends:
            return True
        streams = [StreamId(number, self._node, key) for number in state.out_edges if isinstance(key, int)]
        return all(self._outgoing[stream].is_open() for stream in streams if stream in self._outgoing)

    def _streams(self, edge: int) -> list[Outgoing]:
        return [out for stream, out in self._outgoing.items() if stream.edge == edge and not out.closed]

    # Committing

    def _task_finished(self, event: TaskFinished) -> None:
        state = self._chains[event.task.chain]
        running = next(run for run in state.running if run.task is event.task)
        pool = event.task.pool
        self._slots[pool] += 1
        self._busy_s[pool] += event.busy_s
        self._finished += 1
        if event.error is not None:
            self._failed = True
            self._commands.append(Failed(event.error))
            return
        running.outcome = event.outcome
        while state.running and state.running[0].outcome is not None:
            self._commit(state, state.running.popleft())

    def _commit(self, state: _ChainState, run: _Running) -> None:
        outcome = run.outcome or Outcome()
        self._locked -= run.locked
        for name, emission in outcome.emissions:
            self._emit(name, emission)
        self._commands += [Report(report) for report in outcome.reports]
        self._commands += [Report(artifact) for artifact in outcome.artifacts]
        for name, sample in outcome.samples:
            known = self._samples.get(f"{name}.{sample.name}", SampleStatistics(0, 0.0, float("-inf"), 0.0))
            self._samples[f"{name}.{sample.name}"] = known.plus(sample.value)
        if run.delivery is not None:
            self._consumed(run.delivery)
        if outcome.end_of_data:
            state.exhausted = True
        if run.role == "shard" and state.step is not None:
            state.step.parts[run.shard] = outcome.part
            message = run.delivery.message if run.delivery else None
            state.step.shards = state.step.shards or int(getattr(message, "shards", 1))
        elif run.role == "merge":
            state.step = None
            self._steps += 1
        elif run.role == "end":
            self._close(state)

    def _emit(self, name: str, emission: Emission) -> None:
        for number, edge in enumerate(self._graph.edges):
            if (edge.source, edge.output) != (name, emission.port):
                continue
            if edge.route is None:
                self._push(edge.target, Delivery(edge.input, emission.message))
                continue
            members = [
                node
                for node in self._members[self._graph.operator(edge.target).role]
                if edge.loopback or node != self._node
            ]
            key = getattr(emission.message, edge.key) if edge.key else None
            credit = {node: self._credit(number, node) for node in members}
            for node in receivers(edge.route, members, to=emission.to, key=key, credit=credit):
                self._send(number, node, emission.message)

    def _credit(self, edge: int, node: int) -> int:
        out = self._outgoing.get(StreamId(edge, self._node, node))
        return out.credit if out else self._window

    def _send(self, edge: int, node: int, message: Message) -> None:
        stream = StreamId(edge, self._node, node)
        if node == self._node:
            target = self._graph.edges[edge]
            self._push(target.target, Delivery(target.input, message, stream, nbytes(message)))
            return
        self._outgoing[stream].add(message)
        self._flush(self._outgoing[stream])

    def _push(self, operator: str, delivery: Delivery) -> None:
        replaced = self._chains[self._chain_of[operator]].inbox.push(delivery)
        if replaced is not None:
            self._consumed(replaced)

    def _consumed(self, delivery: Delivery) -> None:
        if delivery.stream is not None and delivery.stream.source != self._node:
            self._commands.append(GrantCredit(delivery.stream, delivery.nbytes))

    def _flush(self, out: Outgoing) -> None:
        commands = out.flush()
        for command in commands:
            if isinstance(command, SendMessage):
                self._sent[out.stream.target] += command.nbytes
        self._commands += commands

    # Ending

    def _stream_ended(self, stream: StreamId) -> None:
        edge = self._graph.edges[stream.edge]
        state = self._chains[self._chain_of[edge.target]]
        if (stream.edge, stream.source) in state.open_inputs:
            state.open_inputs.discard((stream.edge, stream.source))
            if state.chain.minds_leaving:
                state.inbox.push(Delivery(edge.input, Left(stream.source)))

    def _node_left(self, node: int) -> None:
        for members in self._members.values():
            if node in members:
                members.remove(node)
        for stream in [stream for stream in self._outgoing if stream.target == node]:
            self._outgoing[stream].drop()
        for number, edge in enumerate(self._graph.edges):
            if edge.route is not None and edge.target in self._chain_of:
                self._stream_ended(StreamId(number, node, self._node))

    def _end(self, state: _ChainState) -> bool:
        """End a chain that has nothing left to do; whether that changed anything."""
        chain = state.chain
        through = (self._stopping or state.exhausted) if chain.head.source else not state.open_inputs
        if state.ending or not through or state.running or state.step is not None or len(state.inbox):
            return False
        if self._slots[chain.plan.pool] == 0 or not self._free(chain.end_writes):
            return False
        state.ending = True
        given = {name: self._states[name] for name in chain.end_writes}
        reads = set().union(*(member.uses("on_end", writes=False) for member in chain.members))
        given.update((name, self._states[name].snapshot()) for name in reads)
        self._run(state, "end", chain.end_writes, lambda: chain.end(given, state.next_step))
        return True

    def _close(self, state: _ChainState) -> None:
        state.ended = True
        for number in state.out_edges:
            edge = self._graph.edges[number]
            if edge.route is None:
                self._chains[self._chain_of[edge.target]].open_inputs.discard((number, self._node))
                continue
            if edge.loopback:
                self._stream_ended(StreamId(number, self._node, self._node))
            for out in self._streams(number):
                out.closing = True
                self._flush(out)
