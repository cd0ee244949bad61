"""Simulated jobs leave nothing in memory for those that follow."""

from __future__ import annotations

import gc

from ako_jobs.jobs import load_job
from ako_jobs.simulate import execute_simulation, prepare_simulation
from dataflow import ClusterModel
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
