"""What an engine knows about a chain while the job runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dataflow.engine.chain import Chain, Given
from dataflow.engine.events import Outcome, Task
from dataflow.engine.flow import Crossing
from dataflow.engine.inbox import Delivery, Inbox
from dataflow.engine.inputs import Inputs, Source
from dataflow.engine.news import News
from dataflow.message import Sharded
from dataflow.operators_api import Adjustment, Checkpoint
from dataflow.reports import Rates

Role = Literal["message", "shard", "merge", "step", "rates", "timer", "adjust", "end"]


@dataclass(init=False, slots=True, eq=False)
class Step:
    """The step a gathering chain is in.

    Args:
        number: of the step.
        given: what all its shards were given.
        shards: how many there are.
        started: shards that have been started.
        finished: shards whose parts have been taken in.
        parts: the parts by shard.
        merging: the merge has been started, perhaps in one task with the only shard.
    """

    number: int
    given: Given
    shards: int
    started: int
    finished: int
    parts: list[tuple[int, Any]]
    merging: bool

    def __init__(self, number: int, given: Given, shards: int) -> None:
        self.number, self.given, self.shards = number, given, shards
        self.started = self.finished = 0
        self.parts, self.merging = [], False


@dataclass(init=False, slots=True, eq=False)
class Running:
    """A task that has started: its locks, the delivery it consumed, its outcome once it is there.

    `joins` is how many nodes had joined by then.
    """

    task: Task
    locked: frozenset[str]
    delivery: Delivery | None
    joins: int
    outcome: Outcome | None

    def __init__(self, task: Task, locked: frozenset[str], delivery: Delivery | None, joins: int) -> None:
        self.task, self.locked, self.delivery, self.joins, self.outcome = task, locked, delivery, joins, None


class Offered:
    """A step of one shard that has been offered behind the one under way; its delivery still waits in the inbox."""

    def __init__(self, number: int, run: Running) -> None:
        self.number, self.run = number, run


class ChainState:
    """A chain's inbox, its running tasks and its place in its own life.

    `feeders` are the sources on this node whose messages come to it, `gathers` the chains on it that make steps of what
    this source gives, `drained` those that a checkpoint waits for. `rates` are the newest that its operators have not
    been given. `checkpoint` is one that is due before the chain goes on, and `ahead` how much that counts
    from is more than the steps made here. `telling` is the node of which operators are being told the first of the
    `news`. `timed` says that their time has come, `adjustments` are what they are still to hear of changes of the job,
    each with how much news had been heard before it.
    `silent` says that the chain emits nothing more, `alone` that no other chain that has not ended writes what this
    one's merge writes. `turn` and `awake` are for `dataflow.engine.turns`.
    """

    def __init__(self, chain: Chain, inputs: Inputs) -> None:
        """Nothing has arrived yet.

        Args:
            chain: the chain.
            inputs: everything that feeds its first operator.
        """
        self.chain, self.open_inputs = chain, inputs
        self.name, self.pool, self.source = chain.plan.head, chain.plan.pool, chain.head.source
        self.inbox = Inbox(chain.head.inputs, by_step=chain.gather)
        self.news = News(chain, inputs, self.inbox)
        self.telling: int | None = None
        self.ahead = 0
        self.running: deque[Running] = deque()
        self.step: Step | None = None
        self.rates: Rates | None = None
        self.adjustments: deque[tuple[int, Adjustment]] = deque()
        self.offered: Offered | None = None
        self.next_step = self.next_shard = 0
        self.exhausted = self.stopping = self.ending = self.silent = self.timed = False
        self.gate_shut = False
        self.alone = False
        self.turn = 0
        self.awake = False
        self.blocked_since: float | None = None
        self.checkpoint: Checkpoint | None = None
        self.gathers: list[ChainState] = []
        self.feeders: list[ChainState] = []
        self.drained: list[ChainState] = []
        self._keys = {port.key for port in chain.head.inputs}
        self._local: list[tuple[Inbox, str]] = []
        self._crossings: list[tuple[Crossing, bool]] = []
        self._steps: dict[Source, int] = {}

    def look_around(self, others: Iterable[ChainState]) -> None:
        """Find out whether the chain is alone among those that have not ended."""
        written = self.chain.needs.merge.writes
        self.alone = not written or all(
            other is self or written.isdisjoint(other.chain.needs.all.writes) for other in others
        )

    def connect(self, local: Sequence[tuple[Inbox, str]], crossings: Sequence[Crossing]) -> None:
        """Say where the chain's emissions go: inboxes with their ports, and edges that cross nodes."""
        self._local = list(local)
        self._crossings = [(crossing, crossing.goes_by(self._keys)) for crossing in crossings]

    def idle(self) -> bool:
        """Whether there is nothing to start, nor to end, until something happens that wakes the chain.

        That is: something arrives, its task finishes, its gate may have opened, a source has room again, or is stopped.
        """
        if self.step is not None:
            return self.step.merging
        if self.checkpoint is not None:
            return bool(self.running) or self.gate_shut
        if self.rates is not None or self.timed or self.adjustments or (self.news and not self.ending):
            return False
        if self.source:
            waits = bool(self.running) or self.gate_shut or not self.has_room()
            return waits and not (self.exhausted or self.stopping)
        if self.inbox.size:
            return self.gate_shut
        return bool(self.open_inputs) or self.ending

    def has_room(self, messages: int = 1) -> bool:
        """Whether every inbox downstream has room for so many messages."""
        return not self._local or all(inbox.room(port, messages) for inbox, port in self._local)

    def is_open(self, key: Any) -> bool:
        """Whether a message made for `key` could be sent at once."""
        return not self._crossings or all(
            crossing.is_open(key if keyed else None) for crossing, keyed in self._crossings
        )

    def saw(self, source: Source, delivery: Delivery) -> None:
        """Note how far an input of a gathering chain has come."""
        if isinstance(delivery.message, Sharded):
            self._steps[source] = max(self._steps.get(source, 0), delivery.message.step)

    def forget(self, node: int) -> None:
        """Owe a node that has left no credit for its messages, nor expect any step of it that it was in."""
        for delivery in (*self.inbox.of_node(node), *self.news.held(node)):
            delivery.nbytes = 0
        for run in self.running:
            if run.delivery is not None and run.delivery.stream is not None and run.delivery.stream.source == node:
                run.delivery.nbytes = 0
        self._steps = {source: step for source, step in self._steps.items() if source[1] != node}

    def position(self) -> int:
        """The number of the step to go on with: of a source, the first that no chain has made a step of yet."""
        if self.gathers:
            return min(gather.position() for gather in self.gathers)
        return self.next_step if self.step is None else self.step.number

    def through(self) -> bool:
        """Whether nothing will come any more and nothing is under way, nor to be kept."""
        if self.ending or self.running or self.step is not None or self.rates is not None:
            return False
        if self.checkpoint is not None or self.inbox.size or self.news or self.adjustments:
            return False
        if self.source:
            return self.exhausted or (self.stopping and not self.next_shard)
        return not self.open_inputs

    def complete(self, step: Step) -> bool:
        """Whether every part of a step is there that will ever come.

        A shard whose message an operator upstream swallowed, or whose node has left, never comes: the step is
        complete once every open input has gone on to a later one.
        """
        if step.finished < step.started or not step.started:
            return False
        return step.started == step.shards or (
            self.inbox.of_step(step.number) is None
            and all(self._steps.get(source, -1) > step.number for source in self.open_inputs)
        )
