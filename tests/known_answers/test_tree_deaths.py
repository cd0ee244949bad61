"""Methods, section 4: nodes of a tree die; the others end with all updates that reached any of them, each once."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.engine.events import Event
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.errors import OperatorError
from dataflow.graph.logical import LogicalGraph
from dataflow.plan.compile import compile_graph
from operators.shared_replica_state import SharedReplicaState
from operators.topology import Topology, parse_topology
from tests.known_answers.integers import integer_gradient
from tests.known_answers.shared import SharedZeros, tree_job
from tests.known_answers.simulated import simulator

ROUNDS, WEIGHTS = 7, 997


class MortalDriver(MemoryDriver):
    """A memory driver in which nodes die at certain events; a death of the last node but one does not happen."""

    def __init__(self, graph: LogicalGraph, nodes: int, deaths: list[tuple[int, int]], seed: int | None) -> None:
        order = None if seed is None else np.random.default_rng(seed)
        super().__init__(compile_graph(graph, nodes), order=order)
        self._deaths = sorted(deaths)
        self._leaves_at: tuple[int, int] | None = None

    def _handle(self, node: int, event: Event) -> None:
        super()._handle(node, event)
        if self._leaves_at is not None and self.run.deliveries >= self._leaves_at[0]:
            (_, leaving), self._leaves_at = self._leaves_at, None
            if leaving not in self.run.buried | self.run.ended:
                self.leave(leaving)
        while self._deaths and self.run.deliveries >= self._deaths[0][0]:
            _, dying = self._deaths.pop(0)
            if dying not in self.run.buried | self.run.ended and len(self._alive()) > 1:
                self.bury(dying)

    def leave_at(self, at: int, node: int) -> None:
        """Have a node asked to leave at a certain event."""
        self._leaves_at = (at, node)

    def survivors(self) -> list[SharedReplicaState]:
        nodes = enumerate(self.run.nodes)
        found = [each.states["replica"] for index, each in nodes if index not in self.run.buried]
        assert all(isinstance(each, SharedReplicaState) for each in found)
        return found  # type: ignore[return-value]


def over(topology: Topology, **shared: object) -> LogicalGraph:
    """A tree job over any tree."""
    graph = tree_job("chain", **shared)  # type: ignore[arg-type]
    element = next(each for each in graph.elements if each.name == "replica")
    replica = SharedZeros.model_validate_json(element.params).model_copy(update={"topology": topology})
    spec = element.model_copy(update={"params": replica.model_dump_json()})
    return graph.model_copy(
        update={"elements": tuple(spec if each.name == "replica" else each for each in graph.elements)}
    )


def assert_exact(driver: MortalDriver, rounds: int) -> None:
    """All replicas are one sum: of all that survivors have made, and of the first updates of each of the dead."""
    survivors, dead = driver.survivors(), driver.run.buried
    counts = survivors[0].pulled
    for node, count in enumerate(counts):
        assert count == rounds if node not in dead else 0 <= count <= rounds
    numbers = [(node, number + 1) for node, last in enumerate(counts.tolist()) for number in range(last)]
    want = -np.sum([integer_gradient(*each, WEIGHTS) for each in numbers], axis=0, dtype=np.float32)
    for replica in survivors:
        np.testing.assert_array_equal(replica.pulled, counts)
        np.testing.assert_array_equal(replica.values, want)
        assert replica.over or len(survivors) == 1


def random_tree(seed: int, nodes: int) -> Topology:
    rng = random.Random(seed)
    names = rng.sample(range(nodes), nodes)
    return Topology(kind="edges", edges=tuple((names[rng.randrange(at)], names[at]) for at in range(1, nodes)))


@settings(max_examples=60, deadline=None)
@given(
    tree=st.integers(0, 9999),
    nodes=st.integers(2, 7),
    at=st.integers(0, 900),
    dying=st.integers(0, 6),
    seed=st.integers(0, 2**32 - 1),
    consistency=st.sampled_from(["eventual", "ssp", "assp"]),
    every=st.integers(1, 3),
)
def test_any_node_of_any_tree_may_die_at_any_moment(
    tree: int, nodes: int, at: int, dying: int, seed: int, consistency: str, every: int
) -> None:
    slack = None if consistency == "eventual" else every
    graph = over(random_tree(tree, nodes), slack=slack, every=every, consistency=consistency)
    driver = MortalDriver(graph, nodes, [(at, dying % nodes)], seed)
    known: list[np.ndarray] = []
    bury = driver.bury

    def note(node: int) -> None:
        known.extend(each.pulled for each in driver.survivors() if each.sharing.node != node)
        bury(node)

    driver.bury = note  # type: ignore[method-assign]
    driver.execute()
    assert_exact(driver, ROUNDS)
    for counts in known:  # what any survivor had of the dead is in all replicas
        assert (counts <= driver.survivors()[0].pulled).all()


@settings(max_examples=60, deadline=None)
@given(
    tree=st.integers(0, 9999),
    nodes=st.integers(3, 9),
    deaths=st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 8)), min_size=2, max_size=5),
    seed=st.integers(0, 2**32 - 1),
    consistency=st.sampled_from(["eventual", "ssp"]),
)
def test_several_nodes_that_die_leave_exact_sums_or_the_job_fails(
    tree: int, nodes: int, deaths: list[tuple[int, int]], seed: int, consistency: str
) -> None:
    """Two that die so close to each other that what they held is nowhere fail the job; nothing else does."""
    graph = over(random_tree(tree, nodes), slack=None if consistency == "eventual" else 2, consistency=consistency)
    driver = MortalDriver(graph, nodes, [(at, node % nodes) for at, node in deaths], seed)
    with contextlib.suppress(OperatorError):
        driver.execute()
        assert_exact(driver, ROUNDS)


@pytest.mark.parametrize("topology", ["chain", "star", "twin_masters", "tree(2)"])
@pytest.mark.parametrize("dying", [0, 1, 4])
def test_deaths_far_apart_are_all_made_good(topology: str, dying: int) -> None:
    graph = over(parse_topology(topology), rounds=60)
    driver = MortalDriver(graph, 6, [(250, dying), (700, (dying + 2) % 6), (1150, (dying + 3) % 6)], 5)
    driver.execute()
    assert len(driver.run.buried) == 3
    assert_exact(driver, 60)


@pytest.mark.parametrize("at_s", [0.004, 0.02, 0.035])
@pytest.mark.parametrize("topology", ["chain", "star"])
@pytest.mark.parametrize("dying", [0, 2])
def test_node_of_a_simulated_tree_dies_and_the_others_go_on(topology: str, dying: int, at_s: float) -> None:
    graph = tree_job(topology, rounds=30)
    simulation = simulator(graph, 4, latency_s=0.001, compute="constant", faults=(f"fail:{dying}@{at_s}",))
    run = simulation.run()
    assert run.state == "FINISHED", run.reason
    left = [node.states["replica"] for index, node in enumerate(run.nodes) if index != dying]
    counts = left[0].pulled  # type: ignore[attr-defined]
    assert [count == 30 for count in counts] == [node != dying for node in range(4)]
    numbers = [(node, number + 1) for node, last in enumerate(counts.tolist()) for number in range(last)]
    want = -np.sum([integer_gradient(*each, WEIGHTS) for each in numbers], axis=0, dtype=np.float32)
    for replica in left:
        np.testing.assert_array_equal(replica.tensors()["values"], want)


@settings(max_examples=60, deadline=None)
@given(
    tree=st.integers(0, 9999),
    nodes=st.integers(2, 6),
    at=st.integers(0, 600),
    leaving=st.integers(0, 5),
    seed=st.integers(0, 2**32 - 1),
    consistency=st.sampled_from(["eventual", "ssp", "assp"]),
    every=st.integers(1, 3),
)
def test_node_that_is_asked_to_leave_loses_none_of_its_updates(
    tree: int, nodes: int, at: int, leaving: int, seed: int, consistency: str, every: int
) -> None:
    slack = None if consistency == "eventual" else every
    graph = over(random_tree(tree, nodes), slack=slack, every=every, consistency=consistency)
    driver = MortalDriver(graph, nodes, [], seed)
    driver.leave_at(at, leaving % nodes)
    driver.execute()
    assert_exact(driver, ROUNDS)
    clocks = driver.run.nodes[leaving % nodes].states["clocks"]
    assert driver.survivors()[0].pulled[leaving % nodes] == clocks.made  # type: ignore[attr-defined]
