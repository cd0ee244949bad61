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
from dataflow import JobState
from dataflow.cli.main import main
from dataflow.engine.memory_driver import MemoryDriver, MemoryRun
from dataflow.errors import ConfigError, DataError
from dataflow.plan.compile import compile_graph
from operators.dnn import TorchSpec, build_network
from operators.vector_state import VectorState

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
    checkpoints = [name for name in result.artifacts if name.startswith("checkpoints/")]
    assert {name.split("-step-")[0] for name in checkpoints} == {"checkpoints/node-0", "checkpoints/node-1"}
    assert "statistics" in safetensors.numpy.load(result.artifacts[checkpoints[0]])


def test_load_model_of_a_module_that_is_not_found_says_to_name_the_job(tmp_path: Path) -> None:
    spec = TorchSpec(factory="module_of_nobody:make", input=(1, 8, 8), classes=10)
    data = safetensors.numpy.save({"w": np.zeros(1, np.float32)}, {"model": spec.model_dump_json()})
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(DataError, match=r"module_of_nobody:make, which is not found .*--job FILE"):
        load_model(tmp_path)


def test_load_job_whose_file_needs_pytorch_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_torch_job.py").write_text("from torch import nn\n")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=r"needs_torch_job.py raised ModuleNotFoundError.*pip install 'ako-dataflow"):
        load_job(str(tmp_path / "needs_torch_job.py"))
