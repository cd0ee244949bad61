"""Cluster models, as values and from the command line."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from dataflow.cli.main import main
from dataflow.errors import ConfigError
from dataflow.graph.logical import LogicalGraph
from dataflow.plan.job import JobSpec
from dataflow.sim.elasticity import as_simulated
from dataflow.sim.faults import parse_fault
from dataflow.sim.model import ClusterModel


def test_rates_of_gives_every_node_its_own_or_the_common_one() -> None:
    assert ClusterModel(rate=100.0, rates={1: 7.0}).rates_of(3) == [100.0, 7.0, 100.0]


def test_model_with_every_kind_of_fault_survives_json() -> None:
    texts = ("fail:2@10", "pause:2@10+1.5", "slow:2@10+5x4", "cut:0-2@10+3", "cut:0-2@10", "leave:2@10", "join@10")
    model = ClusterModel(faults=tuple(map(parse_fault, texts)), rates={1: 5.0}, speeds={0: 0.5})
    assert ClusterModel.model_validate_json(model.model_dump_json()) == model


@pytest.mark.parametrize(
    "said",
    [
        {"rate": 0},
        {"rate": -1},
        {"rate": 0.5},
        {"rate": 1e16},
        {"rate": float("nan")},
        {"rates": {0: 0}},
        {"rates": {-1: 100}},
        {"latency_s": -1},
        {"latency_s": float("inf")},
        {"step_s": 0},
        {"speeds": {0: 0}},
        {"tasks": 0},
        {"compute": "fast"},
        {"bandwidth": 5},
    ],
)
def test_model_that_no_cluster_has_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ClusterModel.model_validate(said)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (ClusterModel(rates={4: 100}), "a bandwidth is given for a node that does not exist (got 4); nodes: 0 to 3"),
        (ClusterModel(speeds={9: 2}), "a speed is given for a node that does not exist (got 9); nodes: 0 to 3"),
        (ClusterModel(faults=(parse_fault("fail:4@1"),)), "nodes: 0 to 3"),
        (ClusterModel(step_s=0.1), "use compute=constant or gamma"),
    ],
)
def test_check_of_a_model_that_does_not_fit_the_nodes_raises(model: ClusterModel, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        model.check(4)
    assert said in str(raised.value)


def test_check_of_a_model_that_fits_is_silent() -> None:
    ClusterModel(rates={3: 100}, speeds={0: 2}, compute="gamma", step_s=0.1).check(4)


def _joined(nodes: int, max_nodes: int | None, *faults: str) -> int:
    """Places of a job of so many nodes that is simulated with these faults."""
    graph = LogicalGraph(name="joined").with_role("worker")
    spec = JobSpec(name="joined", graph=graph, nodes=nodes, max_nodes=max_nodes)
    return as_simulated(spec, ClusterModel(faults=tuple(map(parse_fault, faults)))).places


def test_job_has_places_for_others_only_if_somebody_joins() -> None:
    assert _joined(3, 5) == _joined(3, 5, "leave:1@1") == 3
    assert _joined(3, 5, "join@0", "join@0") == _joined(3, 5, "leave:1@1", *["join@1"] * 3) == 5
    assert _joined(3, 3, "fail:2@1", "join@1") == 3


@pytest.mark.parametrize(
    ("max_nodes", "faults", "said"),
    [
        (None, ["join@1"], "a node joins at second 1, and nobody may join this job; set max_nodes=4,"),
        (5, ["join@1", "leave:6@1"], "nodes: 0 to 4"),
        (5, ["leave:3@1"], "nodes: 0 to 2"),
        (4, ["join@1", "join@2"], "(got 1 of max_nodes are free at the start, 1 join, and 0 leave or fail before)"),
        (3, ["join@1", "leave:2@2"], "nobody can join at second 1: no place is open"),
    ],
)
def test_who_cannot_join_is_refused(max_nodes: int | None, faults: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        _joined(3, max_nodes, *faults)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--bandwidth", "0mbit"], "not a bandwidth (got 0mbit); write it like 100mbit or 1gbit"),
        (["--bandwidth", "0.001kbit"], "not a bandwidth"),
        (["--bandwidth", "9" * 300 + "gbit"], "not a bandwidth"),
        (["--bandwidth", "-1mbit"], "not a bandwidth"),
        (["--bandwidth", "fast"], "not a bandwidth"),
        (["--bandwidth", "4=1mbit"], "a bandwidth is given for a node that does not exist (got 4); nodes: 0 to 3"),
        (["--bandwidth", "x=1mbit"], "write it like 3=10mbit"),
        (["--latency", "soon"], "not a time (got soon); write it like 100us, 5ms or 2s"),
        (["--step-time", "0ms"], "--step-time: "),
        (["--speed", "0=0"], "--speed: "),
        (["--compute", "quick"], "--compute: "),
        (["--fault", "fail:4@1"], "nodes: 0 to 3"),
        (["--fault", "fail:4"], "write it like fail:2@10"),
        (["--master", "127.0.0.1:7461"], "leave out --master"),
    ],
)
def test_run_sim_with_a_cluster_that_cannot_be_is_one_error_and_exit_2(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "ako", "--nodes", "4", "--sim", *options]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.startswith("error: ")
    assert shown.count("\n") == 1


@pytest.mark.parametrize("option", [["--nodes", "0"], ["--tasks", "0"], ["--nodes", "-3"]])
def test_run_sim_of_no_nodes_or_tasks_is_wrong_usage(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "ako", "--sim", *option]) == 2
    assert f"invalid value for '{option[0]}'" in capsys.readouterr().err


def test_run_with_options_of_a_simulated_cluster_without_sim_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "ako", "--bandwidth", "1gbit"]) == 2
    assert "add --sim, or leave them out" in capsys.readouterr().err
