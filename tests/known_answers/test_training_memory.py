"""Methods, sections 1 and 2, on real images in the memory driver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import PrivateAttr

from ako_jobs import ako
from ako_jobs.worker import Setting
from dataflow.engine.loading import LoadedNode, load_nodes
from dataflow.engine.memory_driver import MemoryDriver, MemoryRun
from dataflow.graph.logical import LogicalGraph
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, Sample
from dataflow.plan.compile import compile_graph
from operators.barrier import BarrierState
from operators.data import open_data, pixels
from operators.dnn import Model
from operators.images import ImagesState
from operators.messages import Fragment
from operators.pulls_state import PullsState
from operators.serve import Serve, ServeMean
from operators.served import ServedState
from operators.vector_state import VectorState
from tests.known_answers.training import (
    BASE,
    checkpoints,
    job,
    plain_sgd,
    plain_sparse,
    plain_steps,
    replica,
    union_job,
)


def run(graph: LogicalGraph, nodes: int) -> MemoryRun:
    return MemoryDriver(compile_graph(graph, nodes, seed=BASE["seed"])).execute()


def compile_and_load(graph: LogicalGraph, nodes: int) -> list[LoadedNode]:
    return load_nodes(compile_graph(graph, nodes, seed=BASE["seed"]))


@pytest.mark.parametrize(
    ("topology", "settings", "nodes"),
    [
        ("ako", {"p": 1}, 1),
        ("ako", {"p": 2, "momentum": 0.5, "nesterov": True, "weight_decay": 0.01}, 1),
        ("all_to_all", {"consistency": "bsp", "momentum": 0.5}, 1),
        ("parameter_server", {"consistency": "bsp"}, 2),
        ("parameter_server", {"consistency": "async", "servers": "all", "weight_decay": 0.5}, 1),
        ("parameter_server", {"rule": "downpour", "n_push": 2, "n_fetch": 2, "weight_decay": 0.5}, 2),
    ],
)
def test_local_steps_of_one_worker_are_plain_sgd_with_as_many_fewer_gradients(
    topology: str, settings: dict[str, Any], nodes: int
) -> None:
    epochs = 0.222  # 36 mini-batches, of which 3 are a gradient
    done = run(job(topology, local_steps=3, epochs=epochs, **settings), nodes)
    momenta = {name: value for name, value in settings.items() if name in ("momentum", "nesterov", "weight_decay")}
    *_, want = steps = list(plain_steps(epochs=epochs, **momenta))
    (worker,) = [node for node in done.nodes if "replica" in node.states and "clocks" in node.states][:1]
    assert (len(steps), worker.states["clocks"].made) == (36, 12)  # type: ignore[attr-defined]
    np.testing.assert_allclose(replica(worker), want, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("topology", "settings", "nodes"),
    [
        ("ako", {"p": 1}, 1),
        ("ako", {"p": 5}, 1),
        ("all_to_all", {"consistency": "bsp"}, 1),
        ("all_to_all", {"consistency": "ssp"}, 1),
        ("all_to_all", {"consistency": "async"}, 1),
        ("parameter_server", {"consistency": "async"}, 2),
        ("parameter_server", {"consistency": "bsp"}, 2),
        ("parameter_server", {"consistency": "ssp", "tau": 0}, 2),
        ("parameter_server", {"consistency": "async", "servers": "all"}, 1),
    ],
)
def test_one_worker_in_memory_equals_plain_sgd_bit_for_bit(topology: str, settings: dict[str, Any], nodes: int) -> None:
    result = run(job(topology, **settings), nodes)
    np.testing.assert_array_equal(replica(result.nodes[0]), plain_sgd())


def test_one_worker_of_dana_is_nesterov_whether_the_server_or_the_worker_has_the_momentum() -> None:
    """Bit for bit; but for rounding it is what the form gives whose rate is applied to the velocity.

    What DANA-Zero's worker ends with is theta, where the velocity has not led yet.
    """
    zero, slim = (run(job("parameter_server", rule=rule, momentum=0.9), 2) for rule in ("dana-zero", "dana-slim"))
    shard, served = (zero.nodes[1].states[name] for name in ("shard", "served"))
    assert isinstance(shard, VectorState)
    assert isinstance(served, ServedState)
    ahead = shard.values
    np.testing.assert_array_equal(ahead, replica(slim.nodes[0]))
    np.testing.assert_allclose(ahead, plain_sgd(momentum=0.9, nesterov=True), rtol=0, atol=1e-5)
    assert np.abs(ahead - plain_sgd()).max() > 1e-2
    velocity = np.concatenate(
        [memory.vectors["velocity.0"] for _, memory in sorted(served.memories(), key=lambda each: each[0])]
    )
    np.testing.assert_array_equal(replica(zero.nodes[0]), ahead + np.float32(0.9) * velocity)
    assert np.abs(velocity).max() > 1e-3


@pytest.mark.parametrize(
    ("settings", "nodes"),
    [
        ({"rule": "dana-slim", "momentum": 0.9, "codec": "topk:density=0.05"}, 4),
        ({"rule": "dana-slim", "momentum": 0.9, "servers": "all"}, 3),
        ({"rule": "dana-zero", "momentum": 0.9, "consistency": "ssp", "servers": 2, "shard": "layer"}, 5),
        ({"rule": "dana-dc", "momentum": 0.9, "codec": "int8", "pull_codec": "none"}, 4),
        ({"rule": "easgd", "codec": "int8", "lr": 0.1, "momentum": 0.5}, 4),
        ({"rule": "lwp", "momentum": 0.5, "codec": "int8", "lr": 0.03}, 4),
        ({"rule": "yellowfin", "lr": 0.1, "epochs": 2}, 4),
    ],
)
def test_rules_with_codecs_several_servers_and_bounds_end_with_equal_replicas_that_learnt(
    settings: dict[str, Any], nodes: int
) -> None:
    result = run(job("parameter_server", **{"lr": 0.005, "epochs": 1, **settings}), nodes)
    workers = [node for node in result.nodes if "replica" in node.states]
    for node in workers:
        np.testing.assert_allclose(replica(node), replica(workers[0]), rtol=0, atol=1e-6)
    assert result.reports[-1][1].fields["loss"] < 2.2  # of ten classes, none of which is told from others: log(10)


def test_workers_tell_how_stale_their_gradients_were() -> None:
    plan = compile_graph(job("parameter_server", rule="dana-zero", momentum=0.5, epochs=1), 4, seed=BASE["seed"])
    driver = MemoryDriver(plan)
    driver.execute()
    for engine in driver.engines[:3]:
        samples = engine.statistics().samples
        assert 1.5 < samples["load.lag"].total / samples["load.lag"].count <= 2
        assert 0 < samples["load.gap"].maximum < 0.1
        assert samples["load.normalised_gap"].count == samples["load.gap"].count == samples["load.lag"].count // 8


@pytest.mark.parametrize(
    ("topology", "settings", "waits"),
    [
        ("ako", {"p": 1, "tau": 4}, False),
        ("all_to_all", {"consistency": "async"}, False),
        ("sparse", {"consistency": "async"}, False),
        ("tree", {}, False),
        ("all_to_all", {"consistency": "bsp"}, True),
        ("parameter_server", {"consistency": "bsp"}, True),
    ],
)
def test_every_topology_tells_lag_gap_and_normalised_gap(topology: str, settings: dict[str, Any], waits: bool) -> None:
    """Three workers, in random order: others' gradients come while one is computed, or none if all wait for all."""
    nodes = 4 if topology == "parameter_server" else 3
    plan = compile_graph(job(topology, epochs=1, **settings), nodes, seed=BASE["seed"])
    driver = MemoryDriver(plan, order=np.random.default_rng(0))
    driver.execute()
    samples = [engine.statistics().samples for engine in driver.engines[:3]]
    operator = "load" if topology == "parameter_server" else "compute"
    for told in samples:
        lag, gap, normalised = (told[f"{operator}.{name}"] for name in ("lag", "gap", "normalised_gap"))
        assert (lag.maximum, gap.maximum, normalised.maximum) == (0, 0, 0) if waits else lag.maximum >= 1
        assert (gap.maximum > 0) is (normalised.maximum > 0) is not waits
        assert lag.total / lag.count < 3
        assert 0 < gap.count <= lag.count


@pytest.mark.parametrize("consistency", ["ssp", "async"])
def test_one_sparse_worker_is_sgd_with_error_feedback_bit_for_bit(consistency: str) -> None:
    result = run(job("sparse", codec="threshold:tau=0.03", consistency=consistency), 1)
    weights, (owed,) = plain_sparse(1, 0.03)
    assert not np.array_equal(weights, plain_sgd())
    np.testing.assert_array_equal(replica(result.nodes[0]), weights)
    np.testing.assert_array_equal(result.nodes[0].states["residual"].tensors()["values"], owed)


def test_synchronous_sparse_workers_compute_on_what_all_have_sent_before() -> None:
    """Each worker adds the messages of a step up in another order, so weights and gradients differ by roundings."""
    settings = {"codec": "threshold:tau=0.03", "consistency": "ssp", "tau": 0}
    result = run(job("sparse", **settings), 3)
    weights, owed = plain_sparse(3, 0.03)
    for node, residual in zip(result.nodes, owed, strict=True):
        np.testing.assert_allclose(replica(node), weights, atol=1e-6)
        np.testing.assert_allclose(node.states["residual"].tensors()["values"], residual, atol=1e-5)


def test_checkpoint_of_a_coded_run_holds_what_is_owed_and_the_tau_and_restores_both() -> None:
    result = run(job("sparse", checkpoint_every=64), 2)
    kept = checkpoints(result.snapshots, node=1)
    last = max(kept)
    owed = {
        name.removeprefix("residual/"): tensor for name, tensor in kept[last].items() if name.startswith("residual/")
    }
    values, taus = owed["values"], owed["taus"]
    assert values.any()
    assert taus.all()
    assert [step for step in kept if not np.array_equal(kept[step]["residual/taus"], taus)]  # adapted from step to step
    residual = compile_and_load(job("sparse"), 2)[1].states["residual"]
    residual.restore(owed)
    np.testing.assert_array_equal(residual.tensors()["values"], values)
    np.testing.assert_array_equal(residual.tensors()["taus"], taus)


@pytest.mark.parametrize("topology", ["ako", "parameter_server"])
def test_checkpoint_of_a_coded_window_holds_what_is_owed_and_restores_it(topology: str) -> None:
    result = run(job(topology, codec="threshold", checkpoint_every=64), 2)
    kept = checkpoints(result.snapshots)
    owed = {
        name.removeprefix("window/"): tensor for name, tensor in kept[max(kept)].items() if name.startswith("window/")
    }
    assert owed["residual.values"].any()
    assert owed["residual.taus"].all()
    window = compile_and_load(job(topology, codec="threshold"), 2)[0].states["window"]
    window.restore(owed)
    for name in ("residual.values", "residual.taus"):
        np.testing.assert_array_equal(window.tensors()[name], owed[name])


OPTIMIZERS: list[dict[str, Any]] = [
    {"momentum": 0.9, "schedule": "cosine", "lr_min": 0.001},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "schedule": "step", "milestones": "0.1", "gamma": 0.5},
    {"weight_decay": 0.01},
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("topology", "settings", "nodes"),
    [
        ("ako", {"p": 5}, 1),
        ("all_to_all", {"consistency": "bsp"}, 1),
        ("all_to_all", {"consistency": "async"}, 1),
        ("parameter_server", {"consistency": "async"}, 2),
        ("parameter_server", {"consistency": "bsp"}, 2),
        ("parameter_server", {"consistency": "async", "servers": "all"}, 1),
    ],
)
def test_one_worker_with_momentum_equals_a_plain_loop_bit_for_bit(
    topology: str, settings: dict[str, Any], nodes: int, optimizer: dict[str, Any]
) -> None:
    result = run(job(topology, **settings, **optimizer), nodes)
    want = plain_sgd(corrected=topology == "parameter_server", **optimizer)
    np.testing.assert_array_equal(replica(result.nodes[0]), want)
    assert np.abs(want - plain_sgd()).max() > 1e-3


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("topology", "settings", "nodes"),
    [
        ("all_to_all", {}, 4),
        ("parameter_server", {"servers": 1}, 5),
        ("parameter_server", {"servers": 2, "shard": "layer"}, 6),
    ],
)
def test_bsp_momentum_in_four_workers_equals_one_momentum_of_their_mean_gradient(
    topology: str, settings: dict[str, Any], nodes: int, optimizer: dict[str, Any]
) -> None:
    four = run(job(topology, consistency="bsp", **settings, **optimizer), nodes)
    want = plain_sgd(4, corrected=topology == "parameter_server", **optimizer)
    np.testing.assert_allclose(replica(four.nodes[0]), want, rtol=0, atol=5e-6)


def test_one_worker_with_batch_normalisation_equals_plain_sgd_bit_for_bit() -> None:
    settings = {"model": "resnet20", "epochs": 0.1, "momentum": 0.5}
    one = run(job("ako", p=3, **settings), 1)
    np.testing.assert_array_equal(replica(one.nodes[0]), plain_sgd(**settings))


@pytest.mark.parametrize("seed", [None, *range(6)])
def test_checkpoint_in_any_order_holds_the_weights_of_the_steps_it_tells_of(seed: int | None) -> None:
    order = None if seed is None else np.random.default_rng(seed)
    plan = compile_graph(job("ako", p=1, checkpoint_every=3 * BASE["batch"]), 1, seed=BASE["seed"])
    snapshots = MemoryDriver(plan, order=order).execute().snapshots
    steps = list(plain_steps())
    assert [each.number for each in snapshots] == list(range(3, len(steps) + 1, 3))[: len(snapshots)]
    assert len(snapshots) >= len(steps) // 3 - 1
    for each in snapshots:  # the next step may have begun before anybody had heard of the one that it is due after
        step = each.steps or 0
        assert step in ((each.number,) if order is None else (each.number, each.number + 1))
        assert each.positions["source"] == step
        np.testing.assert_array_equal(each.tensors["replica/values"], steps[step - 1])
        assert each.tensors["clocks/made"].tolist() == [step, step * BASE["batch"]]


@pytest.mark.parametrize("seed", [None, *range(6)])
def test_validation_in_any_order_is_that_of_the_weights_of_the_step_it_is_labelled_with(seed: int | None) -> None:
    """The loss on all test images, by a network apart from the job's, of the weights of a plain loop."""
    order = None if seed is None else np.random.default_rng(seed)
    graph = job("ako", p=1, average=0, validate_every=3 * BASE["batch"])
    reports = MemoryDriver(compile_graph(graph, 1, seed=BASE["seed"]), order=order).execute().reports
    setting = Setting.of(ako.Config.parse({**BASE, "p": 1}))
    assert setting.normalise is not None
    data, model, steps = open_data(setting.data), Model(setting.model), list(plain_steps())
    images = setting.normalise.apply(pixels(data.test_images, data.scale))
    validations = [report.fields for _, report in reports if report.port == "validate.results"]
    assert len(validations) > 5
    for found in validations:
        workspace, statistics = model.workspace(len(images)), model.initial_statistics()
        loss, correct, _ = model.evaluate(
            steps[int(found["step"]) - 1], images, data.test_labels, workspace, statistics=statistics
        )
        assert found["accuracy"] == correct / len(images)
        assert found["loss"] == pytest.approx(loss / len(images), rel=1e-5)
        assert found["images"] == found["step"] * BASE["batch"]
        assert found["epoch"] == pytest.approx(found["images"] / setting.train_images)


def test_ako_with_one_partition_equals_all_to_all_bit_for_bit() -> None:
    ako = run(job("ako", p=1, every=1, tau=100, epochs=1), 4)
    everybody = run(job("all_to_all", consistency="ssp", tau=101, epochs=1), 4)
    for one, other in zip(ako.nodes, everybody.nodes, strict=True):
        np.testing.assert_array_equal(replica(one), replica(other))


@pytest.mark.parametrize(
    ("topology", "settings", "nodes"),
    [
        ("all_to_all", {}, 4),
        ("parameter_server", {"servers": 1}, 5),
        ("parameter_server", {"servers": 2, "shard": "layer"}, 6),
        ("parameter_server", {"servers": "all"}, 4),
    ],
)
def test_bsp_with_four_workers_equals_one_worker_on_the_union_batch(
    topology: str, settings: dict[str, Any], nodes: int
) -> None:
    four = run(job(topology, consistency="bsp", **settings), nodes)
    one = run(union_job(4), 1)
    np.testing.assert_allclose(replica(four.nodes[0]), replica(one.nodes[0]), rtol=0, atol=2e-6)
    assert np.abs(replica(one.nodes[0]) - plain_sgd()).max() > 1e-3


class WatchedServe(Serve):
    """Samples how far each pushed gradient is ahead of the slowest worker's last one."""

    def process(
        self,
        fragment: Fragment,
        shard: VectorState,
        pulls: PullsState,
        served: ServedState,
        images: ImagesState,
        node: NodeContext,
    ) -> Emissions:
        yield Sample("lead", fragment.high - pulls.slowest((fragment.start, fragment.stop)))
        yield from Serve.process(self, fragment, shard, pulls, served, images, node)


class WatchedServeMean(ServeMean):
    """Likewise, for the bulk-synchronous server."""

    _pushed: dict[tuple[int, int, int], int] = PrivateAttr(default_factory=dict)

    def process(self, fragment: Fragment, shard: VectorState, barrier: BarrierState, node: NodeContext) -> Emissions:
        pushed = [self._pushed.get((fragment.start, fragment.stop, worker), 0) for worker in node.members["worker"]]
        yield Sample("lead", fragment.high - min(pushed))
        self._pushed[fragment.start, fragment.stop, fragment.origin] = fragment.high
        yield from ServeMean.process(self, fragment, shard, barrier, node)


class Skewed(np.random.Generator):
    """Prefers high numbers, so that what came first is served much later than the rest."""

    def integers(self, high: int) -> int:  # type: ignore[override]
        return min(high - 1, int(high * (1 - self.random() ** 6)))


def largest_lead(**settings: Any) -> float:
    """How far any worker's gradient was ahead of the slowest worker's, over runs in several random orders."""
    graph = job("parameter_server", servers=1, **settings)
    serve = graph.operator("serve")
    kind = WatchedServeMean if settings["consistency"] == "bsp" else WatchedServe
    graph = graph.replace("serve", kind.model_validate_json(serve.params))
    leads = []
    for seed in range(5):
        driver = MemoryDriver(compile_graph(graph, 4, seed=BASE["seed"]), order=Skewed(np.random.PCG64(seed)))
        driver.execute()
        leads.append(driver.engines[3].statistics().samples["serve.lead"].maximum)
    return max(leads)


def test_ssp_zero_is_exactly_as_stale_as_bsp() -> None:
    assert largest_lead(consistency="bsp") == 1
    assert largest_lead(consistency="ssp", tau=0) == 1


def test_ssp_bounds_staleness_by_tau_and_async_does_not() -> None:
    assert largest_lead(consistency="ssp", tau=2) == 3
    assert largest_lead(consistency="async") > 3
