"""Workers and servers of parameter servers that die and come back: nobody waits for ever, all end with one model."""

from __future__ import annotations

import numpy as np
import pytest

from ako_jobs import parameter_server
from dataflow.engine.loading import LoadedNode
from dataflow.plan.compile import compile_graph
from dataflow.plan.job import JobSpec
from tests.known_answers.coded import SETTINGS
from tests.known_answers.rejoining import Dying, clocks_of, settled, values

SERVER, WORKER = 3, 1
"""Nodes, of which the last two of five are servers."""


def run(death: int, returns: int | None, node: int, **settings: object) -> Dying:
    config = parameter_server.Config.parse({**SETTINGS, "servers": 2, "lr": 0.01, **settings})
    plan = compile_graph(parameter_server.build(config), 5)
    driver = Dying(plan, [(turn, node) for turn in (death, returns) if turn is not None])
    driver.execute()
    assert driver.incarnations[node] == (returns is not None)
    return driver


def workers(driver: Dying) -> list[LoadedNode]:
    return [loaded for node, loaded in enumerate(driver.run.nodes) if node < 3 and node not in driver.run.buried]


@pytest.mark.parametrize("codec", ["none", "topk:density=0.1"])
@pytest.mark.parametrize("consistency", ["bsp", "ssp", "async"])
def test_worker_that_comes_back_pulls_the_model_and_ends_with_what_the_others_have(
    consistency: str, codec: str
) -> None:
    driver = run(150, 300, WORKER, consistency=consistency, codec=codec)
    loaded = workers(driver)
    assert all(settled(node) for node in loaded)
    assert [clocks_of(node).made > 0 for node in loaded] == [True] * 3
    for other in loaded[1:]:
        np.testing.assert_array_equal(values(other), values(loaded[0]))


@pytest.mark.parametrize("node", [WORKER, SERVER])
@pytest.mark.parametrize("rule", ["dana-zero", "dana-slim", "dana-dc", "lwp", "easgd"])
def test_worker_or_server_of_a_rule_that_comes_back_ends_with_what_the_others_have(rule: str, node: int) -> None:
    momentum = 0 if rule == "easgd" else 0.5
    loaded = workers(run(150, 300, node, rule=rule, momentum=momentum, lr=0.002, servers=2))
    assert len(loaded) == 3
    for other in loaded:
        assert clocks_of(other).made > 0
        assert np.isfinite(values(other)).all()
        np.testing.assert_array_equal(values(other), values(loaded[0]))


@pytest.mark.parametrize("consistency", ["bsp", "ssp", "async"])
def test_workers_go_on_when_one_of_them_dies(consistency: str) -> None:
    driver = run(150, None, WORKER, consistency=consistency)
    loaded = workers(driver)
    assert len(loaded) == 2
    np.testing.assert_array_equal(values(loaded[0]), values(loaded[1]))


@pytest.mark.parametrize("consistency", ["bsp", "ssp", "async"])
def test_server_that_comes_back_is_waited_for_and_all_end_with_one_model(consistency: str) -> None:
    loaded = workers(run(150, 300, SERVER, consistency=consistency))
    for other in loaded[1:]:
        np.testing.assert_array_equal(values(other), values(loaded[0]))


@pytest.mark.parametrize("death", [31, 80])
@pytest.mark.parametrize("consistency", ["bsp", "ssp", "async"])
def test_only_server_that_comes_back_is_waited_for_and_all_end_with_one_model(consistency: str, death: int) -> None:
    driver = run(death, death + 60, 4, consistency=consistency, servers=1)
    loaded = [node for node in driver.run.nodes if "replica" in node.states]
    assert len(loaded) == 4
    assert consistency != "bsp" or [clocks_of(node).made for node in loaded] == [clocks_of(loaded[0]).made] * 4
    for other in loaded[1:]:
        np.testing.assert_array_equal(values(other), values(loaded[0]))


@pytest.mark.parametrize("consistency", ["bsp", "ssp", "async"])
def test_servers_wait_for_workers_that_come_back_when_all_have_died(consistency: str) -> None:
    config = parameter_server.Config.parse({**SETTINGS, "lr": 0.01, "consistency": consistency})
    plan = compile_graph(parameter_server.build(config), 3)
    driver = Dying(plan, [(40, 0), (40, 1), (60, 0), (60, 1)])
    driver.execute()
    loaded = driver.run.nodes[:2]
    assert all(settled(node) for node in loaded)
    assert min(clocks_of(node).made for node in loaded) > 0
    np.testing.assert_array_equal(values(loaded[0]), values(loaded[1]))


class Ending(Dying):
    """Nobody comes back once a node has ended, as the coordinator has it."""

    def join(self, node: int) -> None:
        if not self.run.ended:
            super().join(node)


def in_any_order(turns: list[tuple[int, int]], seed: int, **settings: object) -> Ending:
    config = parameter_server.Config.parse({**SETTINGS, "servers": 2, "lr": 0.01, **settings})
    driver = Ending(compile_graph(parameter_server.build(config), 5), turns, order=np.random.default_rng(seed))
    driver.execute()
    return driver


@pytest.mark.parametrize("consistency", ["bsp", "ssp", "async"])
def test_worker_that_comes_back_as_servers_end_makes_no_gradients_and_nobody_waits(consistency: str) -> None:
    """A server that is through when it is asked answers no more, while another may have heard of the worker in time."""
    late = 0
    last = in_any_order([], 0, consistency=consistency, batch=200).run.deliveries
    for death in range(last - 70, last, 5):
        for seed in range(3):
            driver = in_any_order([(death, WORKER), (death + 1, WORKER)], seed, consistency=consistency, batch=200)
            late += WORKER not in driver.run.buried and not settled(driver.run.nodes[WORKER])
    assert late


@pytest.mark.parametrize("servers", [1, "all"])
@pytest.mark.parametrize("consistency", ["bsp", "ssp", "async"])
def test_node_without_which_the_job_cannot_end_hears_that_the_others_have_ended_before_it_came_back(
    consistency: str, servers: int | str
) -> None:
    """With `servers="all"` each is needed, and each other has a part of the model."""
    config = parameter_server.Config.parse({**SETTINGS, "lr": 0.01, "consistency": consistency, "servers": servers})
    plan = compile_graph(parameter_server.build(config), 3)
    alone = 0
    for seed in range(8):
        last = Dying(plan, [], order=np.random.default_rng(seed)).execute().deliveries
        turns = [(last - 2 - 3 * seed, WORKER), (last + 999, WORKER)]
        driver = Dying(plan, turns, order=np.random.default_rng(seed))
        driver.execute()
        assert not driver.run.buried
        alone += driver.incarnations[WORKER] == 1 and not settled(driver.run.nodes[WORKER])
    assert alone


@pytest.mark.parametrize(("death", "seed"), [(30, 1), (33, 1), (45, 0)])
def test_server_without_a_step_knows_that_a_worker_which_comes_back_begins_behind_another_servers(
    death: int, seed: int
) -> None:
    driver = in_any_order([(death, WORKER), (death + 1, WORKER)], seed, consistency="bsp", batch=200)
    assert [clocks_of(node).made for node in workers(driver)] == [3] * 3


@pytest.mark.parametrize(
    ("worker", "server", "other", "seed"),
    [(153, 146, 211, 91093), (155, 161, 208, 8774), (150, 147, 216, 50239)],
)
def test_server_that_comes_back_has_nobody_wait_for_workers_that_wait_for_others_and_push_nothing_before(
    worker: int, server: int, other: int, seed: int
) -> None:
    turns = [(worker, WORKER), (worker + 30, WORKER), (server, SERVER), (server + 1, SERVER)]
    turns += [(other + after, 4) for after in (0, 16, 46, 60)]
    loaded = workers(in_any_order(turns, seed, consistency="ssp", tau=1, batch=60, epochs=0.5))
    assert all(settled(node) for node in loaded)


@pytest.mark.parametrize("seed", [6033, 6037, 6038])
def test_worker_that_comes_back_holds_the_shard_though_its_former_life_was_answered_when_dead(seed: int) -> None:
    settings = {"consistency": "bsp", "lr": 0.5, "batch": 200, "checkpoint_every": 240, "codec": "topk:density=0.01"}
    graph = parameter_server.build(parameter_server.Config.parse({**SETTINGS, **settings, "shard": "layer"}))
    plan = JobSpec(name="pulls", graph=graph, nodes=3, max_nodes=5, seed=3).plan()
    turns = [(42, 1), (46, 3), (48, 2), (51, 3), (142, 1), (197, 3)]
    nodes = Ending(plan, turns, order=np.random.default_rng(seed)).execute().nodes
    for node in nodes[:3]:
        np.testing.assert_allclose(values(node), nodes[4].states["shard"].tensors()["values"], rtol=0, atol=1e-5)
