"""Trees that are changed, and whose nodes die, come back and come anew, at any event, while they make updates that tell
who made them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ako_jobs.models import network
from ako_jobs.tree import add_enrolling, add_sharing
from dataflow.engine.events import Adjust, Event
from dataflow.graph.logical import LogicalGraph
from dataflow.message import Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Adjustment, Emissions, EndOfData, Operator
from dataflow.plan.job import JobSpec, adjusted_nodes
from dataflow.ports import Out
from dataflow.state import Writes
from operators.course import Course, CourseState
from operators.layout import Layout
from operators.messages import Gradient
from operators.neighbours import Absorb, Push
from operators.roll import Roll, RollState
from operators.share_clocks import ShareClocks, ShareClocksState
from operators.shared_replica_state import SharedReplicaState
from operators.survivors import LostUpdatesError
from operators.topology import Topology
from tests.known_answers.changing import ChangingDriver
from tests.known_answers.shared import SharedZeros

PLACES, LIVES, WEIGHTS = 8, 16, 500
"""Nodes at most, and how often each is started at most: an element counts the updates of each life."""

Made = dict[tuple[int, int], list[np.ndarray]]

MADE: Made = defaultdict(list)
"""By node and life, the updates that it has made; of the newest run."""


class GrowingCompute(Operator):
    """Makes integer updates up to number `rounds`, once the node has joined the others."""

    source = True
    rounds: int
    gradients = Out(Gradient)
    replica = Writes()
    clocks = Writes()
    roll = Writes()
    course = Writes()

    def ready(self, roll: RollState) -> bool:
        return roll.settled or roll.idle

    def process(
        self,
        _tick: Tick,
        replica: SharedReplicaState,
        clocks: ShareClocksState,
        roll: RollState,
        course: CourseState,
        node: NodeContext,
    ) -> Emissions:
        course.number = clocks.made
        if roll.idle or clocks.made >= self.rounds:
            yield EndOfData()
            return
        clocks.made += 1
        clocks.images += 1
        update = update_of(node.index, node.incarnation, clocks.made)
        MADE[node.index, node.incarnation].append(update)
        made = update.copy()
        replica.descend(made, 1.0, scale=True)
        yield self.gradients(Gradient(clocks.made, made, 1))


@lru_cache(maxsize=4096)
def update_of(node: int, life: int, number: int) -> np.ndarray:
    """Small integers, after ones that tell whose update it is; to be read only."""
    update = np.random.default_rng([node, life, number]).integers(-9, 9, WEIGHTS).astype(np.float32)
    update[: PLACES * LIVES] = 0
    update[node * LIVES + life] = 1
    update.flags.writeable = False
    return update


def growing_job(topology: Topology, nodes: int, max_nodes: int, *, rounds: int, every: int = 1) -> JobSpec:
    """A tree job that nodes join."""
    replica = SharedZeros(
        model=network("mlp", "digits", "uniform"),
        topology=topology,
        layout=Layout.of(WEIGHTS, cells=7),
        every=every,
    )
    assert replica.grows
    graph = (
        LogicalGraph(name="growing")
        .with_role("worker")
        .with_state("replica", replica, role="worker")
        .with_state("clocks", ShareClocks(), role="worker")
        .with_state("roll", Roll(), role="worker")
        .with_state("course", Course(), role="worker")
        .with_operator("compute", GrowingCompute(rounds=rounds), role="worker")
    )
    graph = add_enrolling(add_sharing(graph, Push(every=every), Absorb()))
    return JobSpec(name="growing", graph=graph, nodes=nodes, max_nodes=max_nodes)


def random_tree(seed: int, nodes: int) -> Topology:
    """A tree over so many nodes."""
    rng = random.Random(seed)
    names = rng.sample(range(nodes), nodes)
    return Topology(kind="edges", edges=tuple((names[rng.randrange(at)], names[at]) for at in range(1, nodes)))


class GrowingDriver(ChangingDriver):
    """A driver in which nodes die, or come if they are dead, at certain events, as the coordinator lets them.

    The last one stays, until one has ended; from then on nobody is asked to leave, nor comes unless all are needed.

    Args:
        spec: of the job.
        turns: (event, node) each.
        drains: (event, node) each: the node is asked to leave.
        changes: see `ChangingDriver`.
        seed: of the order of events; None: first in, first out.
        stop: event at which all are asked to end; None: they end by themselves.
        all_may_die: also the last one that has joined, while others have come and not joined yet.
        all_needed: the job cannot end without any of them, so whoever dies comes back once others have ended, too.
    """

    def __init__(
        self,
        spec: JobSpec,
        turns: Sequence[tuple[int, int]],
        drains: Sequence[tuple[int, int]] = (),
        changes: Sequence[tuple[int, Topology]] = (),
        *,
        seed: int | None = None,
        stop: int | None = None,
        all_may_die: bool = False,
        all_needed: bool = False,
    ) -> None:
        MADE.clear()
        order = None if seed is None else np.random.default_rng(seed)
        super().__init__(spec.plan(), changes, order=order, nodes=adjusted_nodes(spec))
        stops = [] if stop is None else [(stop, 0, "stop")]
        self._turns = sorted([*((*turn, "turn") for turn in turns), *((*drain, "drain") for drain in drains), *stops])
        self.drained: set[tuple[int, int]] = set()
        self.deaths = self.joins = 0
        self.ending, self._all_may_die, self._all_needed = False, all_may_die, all_needed

    def adjust(self, adjustment: Adjustment) -> None:
        for node in sorted(self._alive() & set(self._adjusting.nodes)):
            self._put(("control", node), node, Adjust(adjustment))

    def bury(self, node: int) -> None:
        self._obey(self._adjusting.lose(node, f"node-{node}"))
        super().bury(node)

    @property
    def changed(self) -> bool:
        """Whether nodes have begun to change the tree."""
        return any(each.stage == "begun" for each in self.told)

    def _handle(self, node: int, event: Event) -> None:
        super()._handle(node, event)
        while self._turns and self.run.deliveries >= self._turns[0][0]:
            self._turn(*self._turns.pop(0)[1:])

    def _may_be_changed(self) -> bool:
        away = self.run.buried | self._leaving | self._unmet.keys()
        return super()._may_be_changed() and not away.intersection(self._adjusting.nodes)

    def _turn(self, node: int, what: str) -> None:
        run = self.run
        if what == "stop":
            self._turns = [each for each in self._turns if each[2] == "turn"]
            self._asked.clear()
            self.ending = True
            self.stop()
            return
        ending = self.ending or bool(run.ended - self._leaving)
        others = self.joined() - {node} - self._leaving
        alive = self._alive() - {node} - self._leaving
        if node in run.ended:
            return
        if node in run.buried:
            if what == "turn" and (self._all_needed or not ending) and self.incarnations[node] + 1 < LIVES:
                self.joins += 1
                self.join(node)
        elif what == "drain":
            if not (ending or self._leaving or self._adjusting.under_way) and others:
                self.drained.add((node, self.incarnations[node]))
                self.leave(node)
        elif others or self._have_joined(run.ended - self._leaving) or (self._all_may_die and alive):
            self.deaths += 1
            self.bury(node)

    def joined(self) -> set[int]:
        """Those that are there, and in the tree."""
        return self._have_joined(self._alive())

    def _have_joined(self, nodes: set[int]) -> set[int]:
        replicas = {node: self.run.nodes[node].states["replica"] for node in nodes}
        return {node for node, each in replicas.items() if not each.sharing.quiet}  # type: ignore[attr-defined]


def ends_exact_or_lost(driver: GrowingDriver) -> bool:
    """Run it: it ends, and all is in, or updates are lost as they may be; whether it has ended."""
    try:
        driver.execute()
    except LostUpdatesError:
        left = driver.deaths + len(driver.drained)
        assert driver.changed or left > 1 or not driver.joined(), "one that leaves alone loses nothing"
        return False
    assert_all_is_in(driver)
    if is_stopped_alone(driver):
        return True
    asked = [each.number for each in driver.told if each.stage == "asked"]
    assert asked == [each.number for each in driver.told if each.stage in ("settled", "dropped")]
    return True


def assert_all_is_in(driver: GrowingDriver) -> int:
    """All replicas are one: all updates of those that are there at the end, and the first ones of each other life.

    Returns:
        How many have joined late, and are there.
    """
    run = driver.run
    left = [index for index in range(len(run.nodes)) if index not in run.buried]
    replicas = {index: run.nodes[index].states["replica"] for index in left}
    there = {index: each for index, each in replicas.items() if not each.sharing.quiet}  # type: ignore[attr-defined]
    assert there
    values = next(iter(there.values())).tensors()["values"]
    want = np.zeros(WEIGHTS, np.float32)
    for (node, life), made in MADE.items():
        count = -round(float(values[node * LIVES + life]))
        alive = node in there and driver.incarnations[node] == life
        # Whoever was told the last of one that has left may have died before it had passed that on.
        passed_on = not driver.deaths and driver.drained == {(node, life)}
        assert 0 <= count <= len(made)
        assert count == len(made) or not (alive or passed_on)
        want -= np.sum([np.zeros(WEIGHTS, np.float32), *made[:count]], axis=0, dtype=np.float32)
    for index, each in there.items():
        np.testing.assert_array_equal(each.tensors()["values"], want, err_msg=f"node {index}")
        assert each.over or is_stopped_alone(driver)  # type: ignore[attr-defined]
    for index in left:
        assert index in there or not MADE[index, driver.incarnations[index]]
    return sum(driver.incarnations[index] > 0 for index in there)


def is_stopped_alone(driver: GrowingDriver) -> bool:
    """Whether the last node was asked to end: it does, and hears of nothing more, as there is nobody to wait for."""
    return driver.ending and len(driver.run.nodes) - len(driver.run.buried) == 1
