"""Jobs of every topology as graphs, and what a run of one in this process came to."""

import numpy as np

from dataflow.engine.memory_driver import MemoryDriver
from dataflow.plan.compile import compile_graph


def graph(job, **settings):
    return job.build(job.Config.parse(settings))


def driver(job, nodes, *, tasks=1, order=None, on_report=None, **settings):
    settings = {"epochs": 1, "batch": 32, "model": "mlp", "normalise": False, "seed": 5} | settings
    plan = compile_graph(graph(job, **settings), nodes, compute_tasks=tasks, seed=settings["seed"])
    order = None if order is None else np.random.default_rng(order)
    return MemoryDriver(plan, order=order, on_report=on_report)


def replicas(run):
    return [node.states["replica"].values for node in run.nodes if "replica" in node.states]


def made(run):
    return [node.states["clocks"].made for node in run.nodes if "clocks" in node.states]
