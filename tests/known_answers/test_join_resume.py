"""Checkpoints of jobs that nodes may join: whole with those that are there, and good to go on from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dataflow.engine.memory_driver import MemoryDriver
from dataflow.errors import CheckpointError
from dataflow.plan.job import JobSpec
from dataflow.plan.physical import PhysicalPlan
from tests.known_answers.rejoining import Dying, clocks_of, values
from tests.known_answers.test_resume_memory import EVERY, by_number, resumed
from tests.known_answers.training import BASE, job


def roomy(name: str, nodes: int, max_nodes: int, **settings: Any) -> PhysicalPlan:
    graph = job(name, **EVERY, **settings)
    return JobSpec(name=name, graph=graph, nodes=nodes, max_nodes=max_nodes, seed=BASE["seed"]).plan()


@pytest.mark.parametrize(("topology", "nodes"), [("all_to_all", 2), ("parameter_server", 3)])
def test_job_with_vacant_places_goes_on_bit_for_bit_where_it_was(topology: str, nodes: int) -> None:
    of = roomy(topology, nodes, nodes + 2, consistency="bsp")
    whole = MemoryDriver(of).execute()
    there = [node for node in range(nodes + 2) if node not in of.vacant]
    kept = [snapshots for snapshots in by_number(whole).values() if len(snapshots) == nodes]
    assert len(kept) >= 2
    assert all([each.node for each in sorted(snapshots, key=lambda each: each.node)] == there for snapshots in kept)
    again = MemoryDriver(of, nodes=resumed(kept[len(kept) // 2], of, of)).execute()
    for node in (0, 1):
        np.testing.assert_array_equal(values(again.nodes[node]), values(whole.nodes[node]))


@pytest.mark.parametrize(
    ("topology", "settings"), [("ako", {"p": 2, "tau": 0}), ("all_to_all", {"consistency": "bsp"})]
)
def test_job_that_others_had_joined_goes_on_with_as_many_nodes_as_it_once_began_with(
    topology: str, settings: dict[str, Any]
) -> None:
    of = roomy(topology, 2, 4, **settings)
    joined = Dying(of, [(60, 3)]).execute()
    kept = [snapshots for snapshots in by_number(joined).values() if {each.node for each in snapshots} == {0, 1, 3}]
    assert kept
    again = MemoryDriver(of, nodes=resumed(kept[0], of, of)).execute()
    assert again.ended == {0, 1}
    assert [clocks_of(node).rejected for node in again.nodes[:2]] == [0, 0]
    assert clocks_of(again.nodes[0]).made == clocks_of(again.nodes[1]).made > 0


def test_job_that_goes_on_with_more_vacant_places_divides_what_its_nodes_had_made() -> None:
    of, onto = roomy("all_to_all", 4, 4, consistency="async"), roomy("all_to_all", 2, 6, consistency="async")
    kept = [each for each in by_number(MemoryDriver(of).execute()).values() if len(each) == 4][1]
    for plan in (onto, roomy("all_to_all", 2, 4, consistency="async")):
        nodes = resumed(kept, of, plan)
        assert [clocks_of(node).made for node in nodes[:2]] == [2 * (kept[0].steps or 0)] * 2
        assert [node.positions["source"] for node in nodes[:2]] == [2 * (kept[0].steps or 0)] * 2
        assert MemoryDriver(plan, nodes=nodes).execute().ended == {0, 1}


def test_tree_does_not_go_on_without_a_node_that_was_kept() -> None:
    of, onto = roomy("tree", 4, 4), roomy("tree", 3, 4)
    kept = by_number(MemoryDriver(of).execute())
    with pytest.raises(CheckpointError, match=r"'replica' is the sum of what 4 nodes hold \(got 3\)"):
        resumed(kept[sorted(kept)[0]], of, onto)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("stopped", [True, False])
def test_tree_that_a_node_had_joined_goes_on_counting_what_that_has_made_itself(every: int, *, stopped: bool) -> None:
    of, onto = roomy("tree", 2, 4, n_sync=every), roomy("tree", 4, 4, n_sync=every)
    kept = by_number(Dying(of, [(150, 3)]).execute())
    *_, whole = (each for each in kept.values() if {snapshot.node for snapshot in each} == {0, 1, 3})
    nodes = resumed(whole, of, onto)
    begun = [clocks_of(node).made for node in nodes]
    pushed = next(int(each.tensors["replica/counts"][3]) for each in whole if each.node == 3)
    assert 0 < pushed < begun[3] - every, "it had begun behind what others had made"
    driver = MemoryDriver(onto, nodes=nodes)
    if stopped:
        driver.stop()
    driver.execute()
    for node, before in ((2, 0), (3, pushed + begun[3] % every)):  # nobody had been at place 2
        state: Any = nodes[node].states["replica"]
        assert state.sharing.own.counts[node] == before + clocks_of(nodes[node]).made - begun[node]
        assert state.sharing.missing() == 0
