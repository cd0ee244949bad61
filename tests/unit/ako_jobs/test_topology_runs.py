import math
from functools import cache

import numpy as np
import pytest
from topologies import driver, made, replicas

from ako_jobs import ako, all_to_all, parameter_server, sparse
from operators.source import Source
from operators.warm_up import WarmUp


@cache
def bsp_run(job, nodes, servers=None):
    settings = {} if servers is None else {"servers": servers}
    return driver(job, nodes, consistency="bsp", **settings).execute()


IMAGES = 649  # of each of two workers: half of 1,442 training images less 144 held out
STEPS = 21  # mini-batches of 32, the last of 9


@pytest.mark.parametrize(
    ("job", "settings"),
    [
        (ako, {"p": 3}),
        (ako, {"p": 3, "accumulate": False}),
        (ako, {"p": 3, "every": 2, "tau": 0}),
        (all_to_all, {"consistency": "ssp"}),
        (all_to_all, {"consistency": "async"}),
        (sparse, {"codec": "threshold:tau=0.05"}),
        (sparse, {"consistency": "ssp", "tau": 0}),
        (parameter_server, {"servers": "all", "consistency": "ssp", "tau": 0}),
        (parameter_server, {"servers": "all", "shard": "layer"}),
        (parameter_server, {"servers": "all", "n_push": 2, "n_fetch": 4}),
    ],
)
def test_run_one_epoch_on_two_nodes_ends_everywhere(job, settings):
    run = driver(job, 2, tasks=2, **settings).execute()
    assert run.ended == {0, 1}
    assert list(run.artifacts) == ["model.safetensors"]
    node, last = run.reports[-1]
    assert (node, last.port, last.fields["step"]) == (0, "validate.results", made(run)[0])
    if job is parameter_server:
        assert_shared(run, settings.get("n_fetch", 1))
        assert last.fields["epoch"] == pytest.approx(1.0, abs=0.2)
    else:
        assert made(run) == [STEPS] * 2
        assert last.fields["images"] == 2 * IMAGES
        assert last.fields["epoch"] == 1.0
    first, second = replicas(run)
    assert first.dtype == second.dtype == np.float32
    if settings.get("accumulate", True):
        assert np.abs(first - second).max() < 1e-6  # the same updates in another order
    else:
        assert np.abs(first - second).max() > 1e-6  # some never came


def assert_shared(run, between):
    """All gradients of an epoch are made, by whoever is first, and few beyond them: those between two answers."""
    whole = -(-2 * IMAGES // 32)
    assert whole <= sum(made(run)) < whole + 2 * 2 * between


@pytest.mark.parametrize("consistency", ["ssp", "async"])
def test_run_with_a_warm_up_of_one_worker_is_counted_as_that(consistency):
    """Of 21 steps of an epoch, 11 are of 16 images of one worker, and 10 of what is left of both."""
    settings = {"warm_up_epochs": 0.5, "warm_up_nodes": 1, "warm_up_batch": 16, "consistency": consistency}
    settings |= {"tau": 1} if consistency == "ssp" else {}
    run = driver(sparse, 2, weight_decay=0.01, **settings).execute()
    assert made(run) == [STEPS] * 2
    _, last = run.reports[-1]
    assert (last.fields["images"], last.fields["epoch"]) == (11 * 16 + 2 * (IMAGES - 11 * 32), 1.0)


def test_sparse_warm_up_of_several_stages_is_for_who_reads():
    """The paper's table 1, with a tenth of its nodes and mini-batches."""
    config = sparse.Config.parse({"warm_up_epochs": "0.166,0.834", "warm_up_nodes": 1, "warm_up_batch": "2,4"})
    stages = (WarmUp(nodes=1, epochs=0.166, batch=2), WarmUp(nodes=1, epochs=0.834, batch=4))
    graph = sparse.build(config)
    assert Source.model_validate_json(graph.operator("source").params).warm_up == stages


def test_run_with_a_warm_up_is_validated_by_who_has_images():
    """The loss of a worker that has none is not a number."""
    settings = {"warm_up_epochs": "0.5,0.4", "warm_up_nodes": 1, "validate_every": 64}
    run = driver(sparse, 2, **settings).execute()
    results = [report.fields for _, report in run.reports if report.port == "validate.results"]
    assert sum(fields["epoch"] <= 0.9 for fields in results) > 2
    assert not any(math.isnan(fields["training_loss"]) for fields in results)


@pytest.mark.parametrize("epochs", [0.41, 0.44, 0.48])
def test_run_with_a_warm_up_that_ends_within_a_mini_batch_is_validated_by_who_has_images(epochs):
    settings = {"warm_up_epochs": epochs, "warm_up_nodes": 1, "batch": 16, "validate_every": 16}
    run = driver(sparse, 2, **settings).execute()
    losses = [report.fields["training_loss"] for _, report in run.reports if report.port == "validate.results"]
    assert len(losses) > STEPS
    assert not any(map(math.isnan, losses))


@pytest.mark.parametrize("codec", ["threshold:tau=0.05", "topk", "int8", "threshold:density=0.01:per_layer=true"])
@pytest.mark.parametrize(
    "settings",
    [
        {"consistency": "bsp"},
        {"consistency": "ssp", "tau": 0},
        {"shard": "layer"},
        {"n_push": 2, "n_fetch": 4},
    ],
    ids=str,
)
def test_run_with_a_codec_both_ways_ends_with_the_servers_weights_everywhere(settings, codec):
    run = driver(parameter_server, 2, servers="all", codec=codec, **settings).execute()
    if settings == {"consistency": "bsp"}:
        assert made(run) == [STEPS] * 2
    else:
        assert_shared(run, settings.get("n_fetch", 1))
    first, second = replicas(run)
    assert np.array_equal(first, second)
    assert np.array_equal(first, sum(node.states["shard"].values for node in run.nodes))


def test_run_bulk_synchronous_with_a_codec_both_ways_is_the_same_co_located_and_in_any_order():
    coded = {"consistency": "bsp", "codec": "threshold:tau=0.05"}
    together = driver(parameter_server, 2, servers="all", **coded).execute()
    for nodes, servers, order in ((4, 2, None), (2, "all", 3)):
        other = driver(parameter_server, nodes, servers=servers, order=order, **coded).execute()
        assert np.array_equal(replicas(together)[0], replicas(other)[0])


@pytest.mark.parametrize(("job", "nodes", "servers"), [(all_to_all, 2, None), (parameter_server, 2, "all")])
def test_run_bulk_synchronous_gives_identical_replicas(job, nodes, servers):
    run = bsp_run(job, nodes, servers)
    assert made(run) == [STEPS] * 2
    assert np.array_equal(*replicas(run))


def test_run_bulk_synchronous_co_located_equals_separate_servers_bit_for_bit():
    together, apart = bsp_run(parameter_server, 2, "all"), bsp_run(parameter_server, 4, 2)
    assert np.array_equal(replicas(together)[0], replicas(apart)[0])
    assert together.reports == apart.reports


def test_run_bulk_synchronous_topologies_agree_bit_for_bit():
    assert np.array_equal(replicas(bsp_run(all_to_all, 2))[0], replicas(bsp_run(parameter_server, 3, 1))[0])


@pytest.mark.parametrize(("job", "nodes", "servers"), [(all_to_all, 2, None), (parameter_server, 2, "all")])
def test_run_bulk_synchronous_any_order_of_events_gives_the_same_bits(job, nodes, servers):
    settings = {} if servers is None else {"servers": servers}
    run = driver(job, nodes, order=3, consistency="bsp", **settings).execute()
    assert np.array_equal(replicas(run)[0], replicas(bsp_run(job, nodes, servers))[0])


@pytest.mark.parametrize("job", [ako, all_to_all, parameter_server])
def test_run_one_node_equals_any_other_topology_bit_for_bit(job):
    settings = {} if job is ako else {"consistency": "bsp"}
    settings |= {"servers": "all"} if job is parameter_server else {}
    single = replicas(driver(job, 1, batch=128, **settings).execute())[0]
    assert np.array_equal(single, replicas(driver(all_to_all, 1, batch=128, consistency="async").execute())[0])


def stop(running, node, report):
    running.stop()


@pytest.mark.parametrize("order", range(4))
@pytest.mark.parametrize(("job", "settings"), [(all_to_all, {}), (parameter_server, {"servers": 2})])
def test_run_bulk_synchronous_stopped_at_any_moment_leaves_identical_replicas(job, settings, order):
    nodes = 3 if job is all_to_all else 5
    settings = settings | {"consistency": "bsp", "validate_every": 96, "warm_start": 0}
    run = driver(job, nodes, tasks=2, order=order, on_report=stop, **settings).execute()
    assert 1 <= max(made(run)) < 6
    first, *others = replicas(run)
    assert all(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize("order", range(3))
def test_run_ako_stopped_at_any_moment_delivers_everything_made(order):
    settings = {"p": 5, "validate_every": 96, "warm_start": 0}
    run = driver(ako, 3, tasks=2, order=order, on_report=stop, **settings).execute()
    first, *others = replicas(run)
    assert max(np.abs(first - other).max() for other in others) < 1e-6


def test_run_ako_more_partitions_than_cells_without_slack_does_not_wait_for_ever():
    run = driver(ako, 3, p=10_000, every=1, tau=0, warm_start=0, batch=64).execute()
    assert run.nodes[0].states["rotation"].choice.partitions == 10_000
    assert run.ended == {0, 1, 2}
