"""Starting tasks: what each chain of a node does next, and whether it may.

Invariant: a task holds all its locks from its start and waits for no other. Chains take turns, and a chain that waits
for a state element is not overtaken by one that has had its turn since; so nothing waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable

from dataflow.engine.chain import Given
from dataflow.engine.chain_state import ChainState, Offered, Role, Running, Step
from dataflow.engine.elements import NOTHING, Elements
from dataflow.engine.events import Offer, Outcome, Report, RunTask, Snapshot, Task
from dataflow.engine.inbox import Delivery
from dataflow.engine.moment import Moment
from dataflow.engine.needs import Needs
from dataflow.engine.news import Change
from dataflow.engine.read_ahead import ReadAhead
from dataflow.engine.tally import Tally
from dataflow.engine.traffic import Traffic
from dataflow.engine.turns import Turns
from dataflow.engine.wiring import Wiring
from dataflow.message import Message, Sharded, Tick
from dataflow.operators_api import Checkpoint
from dataflow.plan.physical import NodePlan
from dataflow.reports import Rates


class Starter:
    """Starts the tasks of one node.

    Args:
        here: the node as the plan has it.
        wiring: its chains.
        elements: its state elements.
        read_ahead: those of them that are ahead of the steps.
        traffic: what passes between them.
        turns: whose turn it is.
        tally: counts what chains wait.
        moment: takes the commands.
    """

    def __init__(
        self,
        here: NodePlan,
        wiring: Wiring,
        elements: Elements,
        read_ahead: ReadAhead,
        traffic: Traffic,
        turns: Turns,
        tally: Tally,
        moment: Moment,
    ) -> None:
        self._here, self._wiring, self._elements, self._read_ahead = here, wiring, elements, read_ahead
        self._traffic, self._turns, self._tally, self._moment = traffic, turns, tally, moment
        self._slots = {"compute": here.compute_tasks, "network": here.network_tasks}
        self._gated = [state for state in turns.chains if state.chain.gated]

    def ended(self, task: Task) -> None:
        """A task has ended, and makes room for another one in its pool."""
        self._slots[task.pool] += 1

    def unlock(self, elements: frozenset[str]) -> None:
        """A task that wrote these elements has been committed: the gates that look at them may have opened."""
        self._elements.unlock(elements)
        for state in self._gated:
            if state.gate_shut and not elements.isdisjoint(state.chain.needs.gate.all):
                state.gate_shut = False
                self._turns.wake(state)

    def go_on_with(self, state: ChainState) -> bool:
        """Start the next task of a gathering chain ahead of chains that run in the other pool, whose turn comes later.

        They are not overtaken for long: the shards of a step lock nothing, and a step of one task, which holds what it
        writes for as long as it takes, is not started ahead of a chain that waits for that.
        """
        if not state.chain.gather or state.ending or not self._slots[state.pool] or self._others_wait(state):
            return False
        self._elements.begin_turn()
        if not self._start(state):
            return False
        self._turns.served(state)
        return True

    def _others_wait(self, state: ChainState) -> bool:
        """Whether any other chain may wait for a slot of this one's pool, or for what its steps hold."""
        held = state.chain.needs.merge.writes if state.alone else frozenset()
        for other in self._turns.in_turn():
            waits = other.pool == state.pool or not held.isdisjoint(other.chain.needs.all.all)
            if waits and other is not state and not other.idle():
                return True
        return False

    def start_all(self) -> None:
        """Start every task that can start, and the end of every chain that is through."""
        while self._serve_next():
            pass

    def _serve_next(self) -> bool:
        """Start one task of the first chain that can; that chain goes behind the others."""
        self._elements.begin_turn()
        for state in self._turns.in_turn():
            if state.idle():
                self._turns.sleep(state)
                continue
            if not self._slots[state.pool] or state.ending:
                continue
            if self._start(state) or self._end(state):
                self._turns.served(state)
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
        if state.adjustments and self._start_adjustment(state):
            return True
        if state.news:
            heard = state.adjustments[0][0] if state.adjustments else state.news.heard
            if (news := state.news.next(heard)) is not None:
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
        self._run_message(state, delivery, self._elements.given(state.chain.needs.process), state.next_step)
        state.next_step += 1
        return True

    def _start_source(self, state: ChainState) -> bool:
        stopping = state.stopping and not state.next_shard
        if stopping or state.exhausted or state.running or not state.is_open(None) or not self._may_run(state):
            return False
        number, shard = state.next_step, state.next_shard
        shards = self._here.compute_tasks if state.chain.sharded else 1
        tick = Tick(number, shard, shards)
        self._run_message(state, Delivery("", tick), self._elements.given(state.chain.needs.process), number)
        state.next_step, state.next_shard = (number, shard + 1) if shard + 1 < shards else (number + 1, 0)
        return True

    def _start_telling(self, state: ChainState, node: int, change: Change) -> bool:
        """Run `on_left` or `on_joined` behind the last message of a node, with nothing else of the chain under way."""
        if state.running:
            return False
        chain, step, joined = state.chain, state.next_step, change is Change.JOINED
        if joined and not chain.minds_joining:
            self._traffic.told(state, node)
            return True
        needs = chain.needs.joined if joined else chain.needs.left
        if not state.has_room() or not self._elements.free(needs):
            return False
        state.telling, given = node, self._elements.given(needs, ended=change is Change.ENDED)
        tell = chain.joined if joined else chain.left
        self._run(state, "message", given, lambda: tell(node, given, step))
        return True

    def _keep(self, state: ChainState, due: Checkpoint) -> bool:
        """Take the checkpoint that a chain has asked for, once the chain could go on and nobody writes.

        What it has emitted is handled first by those that have to be drained.
        """
        elements, gate = self._elements, state.chain.needs.gate.without_writes()
        if state.running or state.gate_shut or not elements.free(gate) or not self._gate_open(state):
            return False
        if not elements.all_free() or any(each.inbox.size or each.running for each in state.drained):
            return False
        chains = self._wiring.chains
        gathers = [each.position() for each in chains.values() if each.chain.gather]
        positions = {name: each.position() for name, each in chains.items()}
        tensors = elements.kept(self._read_ahead.behind())
        state.checkpoint = None
        steps = max(gathers) + state.ahead if gathers else None
        if not state.chain.gather and due.steps is not None:  # of one that makes no more
            steps = due.steps
        here = self._here
        snapshot = Snapshot(here.index, here.name, here.roles, due.number, steps, positions, tensors)
        self._moment.commands.append(Report(snapshot))
        return True

    def _start_rates(self, state: ChainState, rates: Rates) -> bool:
        """Run `on_rates` ahead of the messages that wait, between steps."""
        if not state.has_room() or not self._elements.free(state.chain.needs.rates):
            return False
        state.rates = None
        chain, step, given = state.chain, state.next_step, self._elements.given(state.chain.needs.rates)
        self._run(state, "rates", given, lambda: chain.rates(rates, given, step))
        return True

    def _start_timer(self, state: ChainState) -> bool:
        """Run `on_timer` ahead of the messages that wait, between steps."""
        if not state.has_room() or not self._elements.free(state.chain.needs.timer):
            return False
        state.timed = False
        chain, step, given = state.chain, state.next_step, self._elements.given(state.chain.needs.timer)
        self._run(state, "timer", given, lambda: chain.timer(given, step))
        return True

    def _start_adjustment(self, state: ChainState) -> bool:
        """Run `on_adjust` ahead of the messages that wait, between steps, in its turn among what is heard of nodes."""
        heard, adjustment = state.adjustments[0]
        if state.news.waits(heard) or not state.has_room() or not self._elements.free(state.chain.needs.adjust):
            return False
        state.adjustments.popleft()
        chain, step, given = state.chain, state.next_step, self._elements.given(state.chain.needs.adjust)
        self._run(state, "adjust", given, lambda: chain.adjust(adjustment, given, step))
        return True

    def _open_step(self, state: ChainState, first: Message) -> bool:
        """Begin a step, whose shards share the snapshots taken now; a message without shards is a step of its own."""
        number, shards = (first.step, first.shards) if isinstance(first, Sharded) else (state.next_step, 1)
        state.step = Step(number, self._elements.given(state.chain.needs.process), shards)
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
        if step.shards == 1 and state.alone and self._elements.unwritten(state.chain.needs.merge.writes):
            self._run_step(state, step, delivery)
        else:
            self._run_message(state, delivery, step.given, step.number)
        return True

    def _run_step(self, state: ChainState, step: Step, delivery: Delivery) -> None:
        """Run the only shard and the merge as one task: nobody else wants to write meanwhile what the merge writes."""
        step.merging = True
        chain = state.chain
        given = self._elements.given_to_merge(step.given, chain.needs.merge)
        self._run(state, "step", given, lambda: chain.step(delivery.message, given, step.number), delivery)

    def offer(self, state: ChainState) -> None:
        """Offer the next step to whoever runs this one, if it needs nothing but what this one holds.

        Whoever begins to wait after that waits for one more step, as nothing is offered while anybody waits.
        """
        if state.offered is not None or state.step is None or not state.step.merging or not state.alone:
            return
        # What follows a task is committed with it: nothing else of the chain may be under way.
        if state.rates is not None or state.checkpoint is not None or state.adjustments or len(state.running) > 1:
            return
        delivery = None if state.news and state.news.next(state.news.heard) else state.inbox.lowest_step()
        if delivery is None or not state.has_room(2) or not state.is_open(None) or self._others_wait(state):
            return
        chain, message = state.chain, delivery.message
        number, shards = (message.step, message.shards) if isinstance(message, Sharded) else (state.next_step, 1)
        if shards > 1:
            return
        needs, elements = Needs(chain.needs.process.reads, chain.needs.merge.writes), self._elements
        task = Task(chain.plan.head, "step", state.pool, lambda: chain.step(message, elements.given(needs), number))
        state.offered = Offered(number, Running(task, needs.writes, delivery, self._traffic.joins))
        offer = Offer(state.running[-1].task, task, lambda: chain.ready(elements.given(chain.needs.gate)))
        self._moment.commands.append(offer)

    def follow(self, state: ChainState, offered: Offered) -> None:
        """Take note that the step that was offered is under way."""
        run = offered.run
        assert run.delivery is not None
        self._take_out(state, run.delivery)
        state.step, state.next_step = Step(offered.number, NOTHING, 1), offered.number + 1
        state.step.started, state.step.merging = 1, True
        self._elements.lock(run.locked)
        self._slots[run.task.pool] -= 1
        state.running.append(run)
        if state.awake:
            self._turns.served(state)

    def _take_out(self, state: ChainState, delivery: Delivery) -> None:
        """Take a delivery out of its inbox, which makes room."""
        state.inbox.take(delivery)
        for source in state.feeders:
            self._turns.wake(source)

    def _finish_step(self, state: ChainState, step: Step) -> bool:
        chain = state.chain
        if not step.parts:
            state.step = None
            return True
        if not self._elements.free(chain.needs.merge):
            return False
        step.merging = True
        given = self._elements.given_to_merge(step.given, chain.needs.merge)
        self._run(state, "merge", given, lambda: chain.merge(step.parts, given, step.number))
        return True

    def _end(self, state: ChainState) -> bool:
        """End a chain that has nothing left to do; whether that changed anything."""
        if not state.through() or not self._elements.free(state.chain.needs.end):
            return False
        state.ending = True
        self._unblocked(state)
        chain, step, given = state.chain, state.next_step, self._elements.given(state.chain.needs.end)
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
        if given.locks:
            self._elements.lock(given.locks)
        self._slots[task.pool] -= 1
        state.running.append(Running(task, given.locks, delivery, self._traffic.joins))
        self._moment.commands.append(RunTask(task))

    # What a task needs before it may start

    def _may_run(self, state: ChainState) -> bool:
        """Whether there is room for what a message makes, its state is free, and the gate is open."""
        chain = state.chain
        if state.gate_shut or not state.has_room() or not self._elements.free(chain.needs.start):
            return False
        return not chain.gated or self._gate_open(state)

    def _gate_open(self, state: ChainState) -> bool:
        """Whether the chain's `ready` predicates hold; if not, they are asked again once their state has changed."""
        uses = state.chain.needs.gate
        if state.chain.ready(self._elements.given(uses)):
            self._unblocked(state)
            return True
        state.gate_shut = bool(uses.all)
        if state.blocked_since is None and state.chain.gather:
            state.blocked_since = self._moment.now
        return False

    def _unblocked(self, state: ChainState) -> None:
        if state.blocked_since is not None:
            self._tally.waiting_s += self._moment.now - state.blocked_since
            state.blocked_since = None
