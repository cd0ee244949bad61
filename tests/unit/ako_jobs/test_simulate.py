"""Simulated jobs: what is told of those whose nodes fail; and they leave nothing in memory for those that follow."""

from __future__ import annotations

import gc
from itertools import pairwise
from typing import Any

from ako_jobs.jobs import load_job
from ako_jobs.simulate import execute_simulation, prepare_simulation
from dataflow import ClusterModel
from dataflow.sim.faults import parse_fault
from operators.compute import Compute


def computing() -> int:
    """How many compute operators there are in memory."""
    return sum(issubclass(type(each), Compute) for each in gc.get_objects())


def test_nodes_of_one_simulation_are_gone_when_the_next_one_ends() -> None:
    simulation = prepare_simulation(load_job("ako"), {"epochs": "1"}, 2, ClusterModel(compute="constant", step_s=0.01))
    gc.collect()
    before = computing()
    found = []
    for _ in range(3):
        assert execute_simulation(simulation).state == "FINISHED"
        found.append(computing() - before)
    assert found[1:] == [found[0]] * 2


def test_record_counts_what_a_node_did_before_it_failed_and_was_started_again() -> None:
    model = ClusterModel(compute="constant", step_s=0.01, faults=(parse_fault("fail:1@0.5+0.3"),), statistics_s=0.05)
    simulation = prepare_simulation(load_job("ako"), {"epochs": 3, "batch": 16, "warm_start": 0}, 3, model)
    record: Any = execute_simulation(simulation).record
    (died,) = record["earlier"]
    assert (died["node"], died["incarnation"]) == (1, 0)
    assert died["steps"] > 10
    counted = [point["gradients"] for point in record["series"]]
    assert all(before <= after for before, after in pairwise(counted))
    assert (
        record["totals"]["gradients"] == counted[-1] == died["steps"] + sum(each["steps"] for each in record["nodes"])
    )


def test_gap_of_replicas_is_measured_at_every_validation_also_where_workers_make_unlike_numbers_of_gradients() -> None:
    model = ClusterModel(compute="constant", step_s=0.01, speeds={1: 0.5})
    simulation = prepare_simulation(load_job("parameter_server"), {"epochs": 3, "servers": 1}, 3, model)
    record: Any = execute_simulation(simulation).record
    counts = [each["samples"].get("divergence.rms", {}).get("count", 0) for each in record["nodes"]]
    assert counts == [len(record["reports"]), 0, 0]
