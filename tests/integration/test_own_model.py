"""A user's own `torch.nn.Module` with batch normalisation trains under every topology, and is kept and used."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from ako_jobs.jobs import load_job, prepare
from ako_jobs.predict import load_model
from ako_jobs.run import run
from ako_jobs.worker import Setting
from dataflow import JobState
from dataflow.cli.main import main
from dataflow.engine.memory_driver import MemoryDriver, MemoryRun
from dataflow.node_context import NodeContext
from dataflow.plan.compile import compile_graph
from dataflow.runtime.checkpoint_store import newest_whole
from dataflow.runtime.folders import LocalFolder
from operators.dnn import TorchSpec, build_network
from operators.vector_state import VectorState
from tests.known_answers.training import batches, replica

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'ako-dataflow[torch]'")
torch.set_num_threads(1)  # as in a job process

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RESNET = str(EXAMPLES / "resnet20_job.py")
OWN = str(EXAMPLES / "own_model_job.py")
FLOOR = 0.5
"""Test accuracy to reach: guessing gives 0.1 with a standard deviation of 0.016 on 355 images."""


def run_in_memory(job: str, settings: dict[str, Any], nodes: int = 2, tasks: int = 1) -> MemoryRun:
    prepared = prepare(load_job(job), settings, nodes)
    return MemoryDriver(compile_graph(prepared.graph, nodes, compute_tasks=tasks, seed=prepared.spec.seed)).execute()


def accuracies(result: MemoryRun) -> list[float]:
    return [report.fields["accuracy"] for _, report in result.reports if report.port == "validate.results"]


def statistics(result: MemoryRun, node: int) -> np.ndarray:
    state = result.nodes[node].states["statistics"]
    assert isinstance(state, VectorState)
    return state.values


def test_resnet20_has_the_weights_of_the_paper() -> None:
    config: Any = load_job(RESNET).config
    network = build_network(config.parse({}).network())
    # Convolutions without biases and two weights per channel for normalisation; He et al. say 0.27 million.
    stages = [
        3 * 16 * 9 + 2 * 16,
        6 * 16 * 16 * 9 + 6 * 2 * 16,
        (16 + 5 * 32) * 32 * 9 + 6 * 2 * 32,
        (32 + 5 * 64) * 64 * 9 + 6 * 2 * 64,
        64 * 10 + 10,
    ]
    assert network.n_weights == sum(stages) == 269_722
    assert network.n_statistics == 2 * (7 * 16 + 6 * 32 + 6 * 64) + 3 * 19  # means, variances, 19 counters


@pytest.mark.parametrize("rule", ["dana-slim", "dana-zero", "dana-dc", "nag-asgd", "multi-asgd", "lwp"])
def test_dana_job_has_the_papers_hyperparameters_for_every_rule(rule: str) -> None:
    found: Any = load_job(f"{RESNET}:dana").config
    config = found.parse({"rule": rule})
    told = (config.lr, config.momentum, config.batch, config.weight_decay, config.epochs, config.warmup)
    assert told == (0.1, 0.9, 128, 1e-4, 160, 5)
    assert (config.schedule, config.milestone_epochs(), config.gamma) == ("step", (80, 120), 0.1)
    assert (config.data, config.network().arguments["depth"], config.warm_start, config.holdout) == (
        "cifar10",
        20,
        0,
        0,
    )
    assert [config.server_rule.weight_decay, config.worker_optimizer.weight_decay].count(1e-4) == 1
    prepare(load_job(f"{RESNET}:dana"), {"rule": rule, "data": "digits", "model": "resnet8"}, 3)


@pytest.mark.parametrize(
    ("job", "settings"),
    [
        (RESNET, {"p": 2}),
        (f"{RESNET}:parameter_server", {"consistency": "async"}),
        (f"{RESNET}:parameter_server", {"servers": "all", "shard": "layer", "consistency": "bsp", "lr": 0.1}),
        (f"{RESNET}:all_to_all", {"consistency": "ssp"}),
    ],
)
def test_resnet8_on_two_nodes_learns_under_every_topology(job: str, settings: dict[str, Any]) -> None:
    base = {"model": "resnet8", "data": "digits", "epochs": 0.6, "batch": 16, "lr": 0.05, "warm_start": 0}
    result = run_in_memory(job, base | settings)
    assert result.ended == {0, 1}
    assert accuracies(result)[-1] > FLOOR


def test_own_module_on_one_node_equals_a_plain_pytorch_loop() -> None:
    settings = {"epochs": 0.3, "batch": 16, "warm_start": 0, "dropout": 0, "lr": 0.05, "seed": 4, "p": 1}
    result = run_in_memory(OWN, settings, nodes=1)
    config: Any = load_job(OWN).config
    setting = Setting.of(config.parse(settings))
    network = build_network(setting.model)
    start = network.initial(np.random.default_rng(np.random.SeedSequence(4, spawn_key=(0,))))
    named = network.tensors(start, network.initial_statistics())
    module = sys.modules["own_model_job"].small_net(channels=1, width=16, dropout=0)
    module.load_state_dict({name: torch.tensor(tensor) for name, tensor in named.items()})
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05)
    for batch in batches(setting, NodeContext(seed=4)):
        optimiser.zero_grad()
        logits = module(torch.tensor(batch.images))
        torch.nn.functional.cross_entropy(logits, torch.tensor(batch.labels)).backward()
        optimiser.step()
    ours = network.tensors(replica(result.nodes[0]), statistics(result, 0))
    for name, tensor in module.state_dict().items():
        np.testing.assert_allclose(ours[name], tensor.numpy(), rtol=1e-3, atol=1e-5, err_msg=name)
    assert int(ours["1.num_batches_tracked"]) == 25  # 0.3 of ceil(1298 / 16) = 82 steps, rounded
    assert np.abs(replica(result.nodes[0]) - start).max() > 0.01


def test_own_module_statistics_are_each_nodes_own_and_count_its_batches() -> None:
    settings = {"epochs": 0.5, "batch": 16, "warm_start": 0, "dropout": 0.5}
    result = run_in_memory(OWN, settings, tasks=2)
    network = build_network(load_job(OWN).config.parse(settings).network())  # type: ignore[attr-defined]
    weights = np.zeros(network.n_weights, np.float32)
    named = [network.tensors(weights, statistics(result, node)) for node in range(2)]
    made = [node.states["clocks"].made for node in result.nodes]  # type: ignore[attr-defined]
    assert [int(each["1.num_batches_tracked"]) for each in named] == made
    assert min(made) > 10
    assert not np.array_equal(named[0]["1.running_mean"], named[1]["1.running_mean"])


def test_own_module_with_dropout_trains_bit_identically_from_the_same_seed() -> None:
    settings = {"epochs": 0.2, "batch": 16, "warm_start": 0.02, "dropout": 0.5, "p": 2}
    one, other = (run_in_memory(OWN, settings, tasks=2) for _ in range(2))
    assert one.artifacts["model.safetensors"] == other.artifacts["model.safetensors"]


def test_own_module_on_two_node_processes_is_trained_kept_and_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(OWN, tmp_path / "elsewhere_job.py")
    job = str(tmp_path / "elsewhere_job.py")
    settings = {"epochs": 1.5, "batch": 16, "lr": 0.05, "p": 2, "checkpoint_every": 1000}
    settings["checkpoint_dir"] = str(tmp_path / "kept")
    result = run(job, settings, nodes=2, out=tmp_path / "out")
    assert result.state is JobState.FINISHED, result.reason
    accuracy = result.reports[-1]["accuracy"]
    assert accuracy > FLOOR

    trained = load_model(tmp_path / "out", job=job)
    assert trained.test()[0] / trained.test()[1] == accuracy
    assert main(["predict", str(tmp_path / "out"), "--job", job]) == 0
    assert f"{accuracy:.2%}" in capsys.readouterr().out

    assert isinstance(trained.spec, TorchSpec)
    module = load_job(job).config.parse({}).network()  # type: ignore[attr-defined]
    assert module.factory == trained.spec.factory == "elsewhere_job:small_net"
    file = safetensors.numpy.load(result.artifacts["model.safetensors"])
    assert file["1.num_batches_tracked"].dtype == np.int64
    assert np.array_equal(
        file["1.running_var"], build_network(trained.spec).tensors(trained.weights, trained.statistics)["1.running_var"]
    )
    manifest, _ = newest_whole(LocalFolder(tmp_path / "kept" / result.job))
    assert all("statistics/values" in file.tensors for file in manifest.files)
