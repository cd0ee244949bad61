"""Workers that die and come back while they make integer gradients, so that it is known what every replica holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from ako_jobs.ako import add_exchange
from ako_jobs.worker import add_joining
from dataflow.engine.loading import LoadedNode
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.message import Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, EndOfData, Operator
from dataflow.plan.physical import PhysicalPlan
from dataflow.ports import Out
from dataflow.state import Writes
from operators.apply import ApplyFromPeers, ApplyMean
from operators.barrier import Barrier
from operators.clocks import Clocks, ClocksState
from operators.cost_model import CostModel
from operators.course import Course, CourseState
from operators.kept import CAP_NBYTES, Kept
from operators.layout import Layout
from operators.messages import Gradient
from operators.partition import Rotation
from operators.receive import ReceiveFromPeers
from operators.roll import Roll, RollState
from operators.schedule import Schedule
from operators.send import SendGradients, SendToPeers
from operators.vector_state import VectorState
from operators.window import Window
from tests.known_answers.integers import RestlessPartition, Zeros, integer_gradient

WEIGHTS, CELLS, ROUNDS = 60, 6, 12
LAYOUT = Layout.of(WEIGHTS, cells=CELLS)


def gradient(node: int, incarnation: int, number: int) -> np.ndarray:
    """The integer gradient of an incarnation of a node: multiples of 12, so that the mean of up to 4 is exact."""
    return 12 * integer_gradient(node + 1000 * incarnation, number, WEIGHTS)


class RejoiningCompute(Operator):
    """Makes integer updates up to number `rounds`, within the staleness bound, once the node has caught up."""

    source = True
    rounds: int
    slack: int | None = None
    local: bool = True
    gradients = Out(Gradient)
    replica = Writes()
    clocks = Writes()
    roll = Writes()
    course = Writes()

    def ready(self, clocks: ClocksState, roll: RollState) -> bool:
        return roll.idle or (roll.settled and (self.slack is None or clocks.made <= clocks.slowest() + self.slack))

    def process(
        self,
        _tick: Tick,
        replica: VectorState,
        clocks: ClocksState,
        roll: RollState,
        course: CourseState,
        node: NodeContext,
    ) -> Emissions:
        course.number = clocks.made
        if roll.idle or clocks.made >= self.rounds:
            course.closed = True
            yield EndOfData()
            return
        clocks.made += 1
        update = gradient(node.index, node.incarnation, clocks.made)
        if self.local:
            replica.values -= update
        yield self.gradients(Gradient(clocks.made, update, 1))

    def on_end(self, clocks: ClocksState, course: CourseState) -> Emissions:
        course.number, course.closed = clocks.made, True
        yield from ()


def rejoining_job(
    p: int,
    *,
    slack: int | None = None,
    every: int = 1,
    restless: bool = False,
    rounds: int = ROUNDS,
    cap_nbytes: int = CAP_NBYTES,
) -> LogicalGraph:
    """Partial gradient exchange; p=0: every gradient whole to everybody; p=-1: the mean of all of them."""
    bsp = p < 0
    graph = (
        LogicalGraph(name="rejoining")
        .with_role("worker")
        .with_state("replica", Zeros(n_weights=WEIGHTS), role="worker")
        .with_state("statistics", Zeros(n_weights=3), role="worker")
        .with_state("roll", Roll(), role="worker")
        .with_state("course", Course(), role="worker")
        .with_state("clocks", Clocks(cells=CELLS, origins="worker", span=max(0, p * every), own=bsp), role="worker")
        .with_operator(
            "compute", RejoiningCompute(rounds=rounds, slack=0 if bsp else slack, local=not bsp), role="worker"
        )
    )
    if p <= 0:
        apply = ApplyMean(layout=LAYOUT, schedule=Schedule(lr=1)) if bsp else ApplyFromPeers(layout=LAYOUT)
        if bsp:
            graph = graph.with_state("barrier", Barrier(contributors="worker"), role="worker")
        graph = (
            graph.with_state("window", Kept(receivers="worker", own=bsp, cap_nbytes=cap_nbytes), role="worker")
            .with_operator("send", SendGradients(layout=LAYOUT), role="worker")
            .with_operator("receive", ReceiveFromPeers(), role="worker")
            .with_operator("apply", apply, role="worker")
            .connect("compute.gradients", "send.gradients")
            .connect("send", "receive.arriving", route=Route.BY_DESTINATION, loopback=bsp)
            .connect("receive", "apply.fragments")
        )
        graph = add_joining(graph)
        return graph.connect("listen.settled", "apply.begun") if bsp else graph
    cost = CostModel(model_nbytes=4 * WEIGHTS, cells=CELLS, partitions=p, every=every)
    window = Window(layout=LAYOUT, receivers="worker")
    graph = add_exchange(graph, LAYOUT, Rotation(receivers="worker", cost=cost), window)
    if restless:
        graph = graph.replace("partition", RestlessPartition(layout=LAYOUT))
    graph = graph.replace("send", SendToPeers(layout=LAYOUT)).replace("receive", ReceiveFromPeers())
    return add_joining(graph.replace("apply", ApplyFromPeers(layout=LAYOUT)))


class Dying(MemoryDriver):
    """Buries nodes and has them join again once so many events have been handled; without an order, when none waits.

    Args:
        plan: see `MemoryDriver`.
        turns: (events, node): the node dies, or comes back if it is dead.
        drains: (events, node): the node is asked to leave, if it is there and another one that is not asked stays.
        kwargs: see `MemoryDriver`.
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        turns: Sequence[tuple[int, int]],
        drains: Sequence[tuple[int, int]] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(plan, **kwargs)
        self._drains = sorted(drains)
        self._asked: set[int] = set()
        self.left: list[tuple[int, int, range]] = []
        """(node, incarnation, numbers of the gradients made) of those that left by request."""
        self._turns = sorted(turns)
        self.deaths: list[tuple[int, int, range]] = []
        """(node, incarnation, numbers of the gradients made) of those that died."""

    def _step(self) -> bool:
        while self._drains and self._drains[0][0] <= self.run.deliveries:
            self._ask(self._drains.pop(0)[1])
        while self._turns and self._turns[0][0] <= self.run.deliveries and (self._order or not self._events):
            _, node = self._turns.pop(0)
            if node in self.run.ended:
                continue
            if node in self.run.buried:
                self.join(node)
            else:
                self.bury(node)
        if super()._step():
            return True
        if self._drains:
            self._ask(self._drains.pop(0)[1])
            return True
        self._turns = [(0, node) for _, node in self._turns]  # nothing more happens before the next
        return bool(self._turns) and bool(self.run.buried)

    def bury(self, node: int) -> None:
        before, left = self.run.nodes[node], node in self._leaving and node in self.run.ended
        if "course" in before.states:  # a worker
            numbers = range(first(before) + 1, clocks_of(before).made + 1)
            (self.left if left else self.deaths).append((node, self.incarnations[node], numbers))
        self._asked.discard(node)
        super().bury(node)

    def _ask(self, node: int) -> None:
        there = set(range(len(self.run.nodes))) - self.run.buried - self.run.ended - self._asked
        if node in there and len(there) > 1:
            self._asked.add(node)
            self.leave(node)


def assert_every_replica_is_accounted_for(driver: Dying) -> None:
    """What a live replica holds is all that live nodes have made, and of each that died some prefix, cell by cell."""
    nodes = driver.run.nodes
    live = [node for node in range(len(nodes)) if node not in driver.run.buried and settled(nodes[node])]
    if any(driver.incarnations[node] and not borrowed(nodes[node]) for node in live):
        return  # nobody was there to go on from: two trainings that have nothing to do with each other
    there = {node: (driver.incarnations[node], nodes[node]) for node in live}
    assert_accounted_for(there, driver.deaths, driver.left)


def assert_accounted_for(
    live: Mapping[int, tuple[int, LoadedNode]],
    deaths: Sequence[tuple[int, int, range]],
    left: Sequence[tuple[int, int, range]] = (),
) -> None:
    """As `assert_every_replica_is_accounted_for`.

    Args:
        live: by node, its incarnation and itself.
        deaths: node, incarnation and gradients made of those that died.
        left: the same of those that left by request: everybody has all that they made.
    """
    made = np.zeros(WEIGHTS, np.float32)
    for node, incarnation, numbers in left:
        made += sum((gradient(node, incarnation, number) for number in numbers), np.zeros(WEIGHTS, np.float32))
    for node, (incarnation, loaded) in live.items():
        for number in range(first(loaded) + 1, clocks_of(loaded).made + 1):
            made += gradient(node, incarnation, number)
    for node, (_, loaded) in live.items():
        assert clocks_of(loaded).rejected == 0
        rest = -values(loaded) - made
        for cell in range(CELLS):
            where = LAYOUT.weights(cell, cell + 1)
            assert _is_sum_of_prefixes(rest[where], where, deaths), (node, cell)


def _is_sum_of_prefixes(rest: np.ndarray, where: slice, deaths: Sequence[tuple[int, int, range]]) -> bool:
    if not deaths:
        return not rest.any()
    prefixes = []
    for node, incarnation, numbers in deaths:
        parts = [np.zeros(where.stop - where.start, np.int64)]
        for number in numbers:
            parts.append(parts[-1] + gradient(node, incarnation, number)[where].astype(np.int64))
        prefixes.append(parts)
    last = {part.tobytes() for part in prefixes[-1]}
    left = rest.astype(np.int64)
    return any((left - sum(choice, np.zeros_like(left))).tobytes() in last for choice in product(*prefixes[:-1]))


def first(node: LoadedNode) -> int:
    """The number behind which a node began."""
    course = node.states["course"]
    assert isinstance(course, CourseState)
    return course.base


def settled(node: LoadedNode) -> bool:
    """Whether a node has caught up."""
    roll = node.states["roll"]
    assert isinstance(roll, RollState)
    return roll.settled


def borrowed(node: LoadedNode) -> bool:
    """Whether a node has been lent a model."""
    roll = node.states["roll"]
    assert isinstance(roll, RollState)
    return roll.lent


def clocks_of(node: LoadedNode) -> ClocksState:
    """A node's clocks."""
    clocks = node.states["clocks"]
    assert isinstance(clocks, ClocksState)
    return clocks


def values(node: LoadedNode) -> np.ndarray:
    """A node's weights."""
    return _vector(node.states)


def _vector(states: Mapping[str, object]) -> np.ndarray:
    replica = states["replica"]
    assert isinstance(replica, VectorState)
    return replica.values
