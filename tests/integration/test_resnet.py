"""The package's residual network, with batch normalisation, trains under every topology, and is kept and used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from ako_jobs.jobs import load_job, prepare
from ako_jobs.models import network
from ako_jobs.predict import load_model
from ako_jobs.run import run
from dataflow import JobState
from dataflow.cli.main import main
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.plan.compile import compile_graph
from dataflow.testing.in_process import run_in_process
from dataflow.transport.grpc_connection import GrpcNetwork
from operators.dnn import Model
from operators.vector_state import VectorState

SETTINGS: dict[str, Any] = {"model": "resnet20", "data": "digits", "epochs": 0.6, "batch": 16, "warm_start": 0}
FLOOR = 0.5
"""Test accuracy to reach: guessing gives 0.1 with a standard deviation of 0.016 on 355 images."""


@pytest.mark.parametrize(
    ("job", "settings"),
    [
        ("ako", {"p": 2}),
        ("parameter_server", {"servers": 1, "consistency": "async"}),
        ("parameter_server", {"servers": "all", "shard": "layer", "consistency": "bsp", "momentum": 0.5}),
        ("all_to_all", {"consistency": "ssp"}),
    ],
)
@pytest.mark.parametrize("tasks", [1, 2])
def test_resnet20_on_two_nodes_learns_under_every_topology(job: str, settings: dict[str, Any], tasks: int) -> None:
    prepared = prepare(load_job(job), SETTINGS | settings, 2)
    result = MemoryDriver(compile_graph(prepared.graph, 2, compute_tasks=tasks, seed=0)).execute()
    assert result.ended == {0, 1}
    accuracies = [report.fields["accuracy"] for _, report in result.reports if report.port == "validate.results"]
    assert accuracies[-1] > FLOOR


def test_resnet20_statistics_over_grpc_are_each_nodes_own() -> None:
    prepared = prepare(load_job("parameter_server"), SETTINGS | {"servers": "all", "consistency": "bsp"}, 2)
    physical = compile_graph(prepared.graph, 2, compute_tasks=1, seed=0)
    result = run_in_process(physical, lambda _node: GrpcNetwork(token="secret"))
    start = Model(network("resnet20", "digits", "uniform")).initial_statistics()
    states = [node.states["statistics"] for node in result.nodes]
    found = [state.values for state in states if isinstance(state, VectorState)]
    assert len(found) == 2
    for statistics in found:
        assert np.isfinite(statistics).all()
        assert (statistics != start).mean() > 0.99
    assert not np.array_equal(*found)


def test_resnet20_on_two_node_processes_is_trained_kept_and_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run("ako", SETTINGS | {"p": 2, "epochs": 1.5}, nodes=2, out=tmp_path / "out")
    assert result.state is JobState.FINISHED, result.reason
    accuracy = result.reports[-1]["accuracy"]
    assert accuracy > FLOOR

    trained = load_model(tmp_path / "out")
    assert trained.test()[0] / trained.test()[1] == accuracy
    assert main(["predict", str(tmp_path / "out")]) == 0
    assert f"{accuracy:.2%}" in capsys.readouterr().out

    file = safetensors.numpy.load(result.artifacts["model.safetensors"])
    model = Model(network("resnet20", "digits", "uniform"))
    assert file.keys() == {each.name for each in (*model.ranges, *model.statistic_ranges)}
    assert file["batch_norm1.mean"].shape == file["batch_norm1.variance"].shape == (16,)
    assert np.array_equal(file["batch_norm1.mean"], trained.statistics[:16])
    # with the statistics of the start the same weights are worth less: those of the file are what they need
    trained.statistics[:] = model.initial_statistics()
    assert trained.test()[0] / trained.test()[1] < accuracy


def test_plan_of_resnet20_shows_the_statistics(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "ako", "model=resnet20", "data=digits", "--nodes", "2"]) == 0
    assert (
        "state statistics     local     written by compute, borrow; read by keep_model, examine, lend"
        in capsys.readouterr().out
    )
