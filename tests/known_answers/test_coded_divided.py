"""With a codec, from a checkpoint onto fewer nodes or more, with vacant places, or where one had died: what is owed."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from dataflow.engine.events import Snapshot
from dataflow.engine.loading import LoadedNode
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.plan.job import JobSpec
from dataflow.plan.physical import PhysicalPlan
from tests.known_answers.coded import WEIGHTS, applies_whole, coded_job, owed
from tests.known_answers.rejoining import Dying
from tests.known_answers.test_coded_resumed import EVERY, clocks_of, gradients, replica_of
from tests.known_answers.test_resume_memory import by_number, resumed

CODEC = "threshold:tau=0.5"
PEERS = ("ako p=3 every=1", "all_to_all async", "sparse async")
PLACES = [((4, 4), (3, 4)), ((4, 4), (2, 4)), ((4, None), (3, 6)), ((4, None), (2, None))]
WITH_A_SERVER = [((5, 5), (4, 5)), ((5, None), (4, 7))]
BARRIERS = ("all_to_all bsp", "parameter_server bsp")


@cache
def plan(job: str, nodes: int, max_nodes: int | None = None, **settings: Any) -> PhysicalPlan:
    graph = coded_job(job, CODEC, checkpoint_every=EVERY, **settings)
    return JobSpec(name=job.split(maxsplit=1)[0], graph=graph, nodes=nodes, max_nodes=max_nodes).plan()


def workers(nodes: list[LoadedNode], of: PhysicalPlan) -> dict[int, LoadedNode]:
    """Those that are there."""
    return {index: node for index, node in enumerate(nodes) if "compute" in node.operators and index not in of.vacant}


def what_was_owed(kept: Snapshot) -> np.ndarray:
    names = ("residual/values", "window/residual.values")
    return sum((kept.tensors[name] for name in names if name in kept.tensors), np.zeros(WEIGHTS, np.float32))


@cache
def whole_checkpoint(job: str, nodes: int, max_nodes: int | None = None, **settings: Any) -> list[Snapshot]:
    """The third checkpoint of a run of `plan`, or the last if there are fewer; to be read only."""
    of = plan(job, nodes, max_nodes, **settings)
    found = by_number(MemoryDriver(of, order=np.random.default_rng(3)).execute())
    return [found[number] for number in sorted(found) if len(found[number]) == len(of.nodes)][:3][-1]


def assert_adds_up(job: str, there: dict[int, LoadedNode], model: np.ndarray, made: np.ndarray) -> None:
    """What replicas hold and what is owed is `model` less all of `made`, in units of what is owed."""
    local = applies_whole(job)
    sent = made - sum(owed(node) for node in there.values())
    for index, node in there.items():
        assert clocks_of(node).rejected == 0
        want = model - (sent + owed(node) if local else sent / 2)
        np.testing.assert_array_equal(replica_of(node), want, err_msg=f"node {index}")


def goes_on(job: str, onto: PhysicalPlan, nodes: list[LoadedNode]) -> tuple[dict[int, LoadedNode], np.ndarray]:
    """The workers at the end, and what they have made since, in units of what is owed."""
    begun = {index: clocks_of(node).made for index, node in workers(nodes, onto).items()}
    run = MemoryDriver(onto, nodes=nodes, order=np.random.default_rng(4)).execute()
    there = workers(run.nodes, onto)
    made = sum(gradients(index, begun[index], clocks_of(node).made) for index, node in there.items())
    return there, made / 2 if applies_whole(job) else made


@pytest.mark.parametrize(
    ("job", "before", "after", "settings"),
    [(job, *each, {}) for job in PEERS for each in PLACES]
    + [("parameter_server async", *each, {"servers": 1}) for each in WITH_A_SERVER],
)
def test_nothing_is_lost_where_a_whole_checkpoint_goes_on_with_vacant_places(
    job: str, before: tuple[int, int | None], after: tuple[int, int | None], settings: dict[str, Any]
) -> None:
    of, onto = plan(job, *before, **settings), plan(job, *after, **settings)
    kept = whole_checkpoint(job, *before, **settings)
    made = sum(gradients(each.node, 0, each.steps or 0) for each in kept)
    nodes = resumed(kept, of, onto)
    there, since = goes_on(job, onto, nodes)
    assert_adds_up(job, there, np.zeros(WEIGHTS), (made / 2 if applies_whole(job) else made) + since)


@cache
def after_a_death(job: str, nodes: int, *, comes_back: bool = False, **settings: Any) -> list[Snapshot]:
    """A checkpoint without node 2, which has died, or with it where it has come back; to be read only."""
    of = plan(job, nodes, **settings)
    driver = Dying(of, [(120, 2), (220, 2)][: 1 + comes_back])
    driver.execute()
    found = by_number(driver.run)
    there = set(range(len(of.nodes))) - (set() if comes_back else {2})
    number = next(
        number
        for number in sorted(found)
        if {each.node for each in found[number]} == there
        and (not comes_back or not all(each.tensors["ledger/whole"][0] for each in found[number]))
    )
    return found[number]


@pytest.mark.parametrize("job", PEERS)
@pytest.mark.parametrize("comes_back", [False, True])
def test_all_go_on_from_one_replica_where_a_worker_had_died(job: str, *, comes_back: bool) -> None:
    """What it gave before its death is in no account: it is what one of the others had of it, for everybody."""
    of = plan(job, 4)
    kept = after_a_death(job, 4, comes_back=comes_back)
    first = next(each for each in kept if each.node == 0)
    was_owed = {each.node: what_was_owed(each) for each in kept}
    assert was_owed[0].any()
    model = first.tensors["replica/values"] + (was_owed[0] if applies_whole(job) else 0)
    nodes = resumed(kept, of, of)
    for index, node in enumerate(nodes):
        np.testing.assert_array_equal(owed(node), was_owed.get(index, np.zeros(WEIGHTS)))
        np.testing.assert_array_equal(replica_of(node), model - (owed(node) if applies_whole(job) else 0))
        assert node.states["ledger"].tensors()["whole"].tolist() == [1]
    ended, since = goes_on(job, of, nodes)
    assert_adds_up(job, ended, model, sum(was_owed.values()) + since)


@pytest.mark.parametrize("job", PEERS[1:])
def test_accounts_are_whole_again_once_a_job_has_gone_on_after_a_death(job: str) -> None:
    of = plan(job, 4)
    nodes = resumed(after_a_death(job, 4), of, of)
    model = replica_of(nodes[0]) + (owed(nodes[0]) if applies_whole(job) else 0)
    made = sum(owed(node) for node in nodes)
    begun = [clocks_of(node).made for node in nodes]
    later = by_number(MemoryDriver(of, nodes=nodes, order=np.random.default_rng(2)).execute())
    again = next(later[number] for number in sorted(later) if len(later[number]) == 4)
    given = sum(gradients(each.node, begun[each.node], each.steps or 0) for each in again)
    ended, since = goes_on(job, of, resumed(again, of, of))
    assert_adds_up(job, ended, model, made + (given / 2 if applies_whole(job) else given) + since)


@pytest.mark.parametrize("job", [*BARRIERS, "parameter_server ssp"])
def test_whoever_takes_a_dead_workers_place_is_waited_for(job: str) -> None:
    nodes_and_servers: dict[str, int] = {"nodes": 4} if job.startswith("all") else {"nodes": 5, "servers": 1}
    of = plan(job, **nodes_and_servers)
    nodes = resumed(after_a_death(job, **nodes_and_servers), of, of)
    run = MemoryDriver(of, nodes=nodes, order=np.random.default_rng(4)).execute()
    ended = workers(run.nodes, of)
    made = [clocks_of(node).made for node in ended.values()]
    assert max(made) - min(made) <= (0 if "bsp" in job else 2)  # tau is 1, and one is under way
    for node in ended.values():
        np.testing.assert_array_equal(replica_of(node), replica_of(ended[0]))


@pytest.mark.parametrize("job", BARRIERS)
@pytest.mark.parametrize("after", [2, 3, 6])
def test_what_is_owed_with_a_barrier_is_divided_among_other_nodes(job: str, after: int) -> None:
    of, onto = plan(job, 4), plan(job, after)
    kept = whole_checkpoint(job, 4)
    nodes = resumed(kept, of, onto)
    total = sum(what_was_owed(each) for each in kept)
    assert total.any()
    np.testing.assert_array_equal(sum(owed(node) for node in nodes), total)
    assert all(np.count_nonzero(owed(node)) < np.count_nonzero(total) for node in nodes)
    MemoryDriver(onto, nodes=nodes, order=np.random.default_rng(4)).execute()


@pytest.mark.parametrize("job", BARRIERS)
def test_what_is_owed_with_a_barrier_stays_where_it_was_on_as_many_nodes(job: str) -> None:
    of = plan(job, 4)
    kept = whole_checkpoint(job, 4)
    for each, node in zip(sorted(kept, key=lambda each: each.node), resumed(kept, of, of), strict=True):
        np.testing.assert_array_equal(owed(node), what_was_owed(each))
