"""The experiment of parameter_sharing_tree.txt, 4, simulated: the tables of docs/reproductions-tree.md.

    python benchmarks/reproductions/tree_paper.py [--cost 60] [--out curves.json]

Ten machines at most, each with a server and three workers. A worker computes for a second, hands its node an update of
12 MB, and waits until it is taken in, 60 times. A node takes `cost` to take in an update, to make and send a sum, or to
take in one: the C that the paper does not give.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ako_jobs.models import network
from dataflow import ClusterModel, JobSpec, LogicalGraph, Route, Simulator, StopRules, TaskKind, Tick
from dataflow.engine.events import Outcome, Task
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, EndOfData, Operator
from dataflow.ports import In, Out
from operators.layout import Layout
from operators.messages import Gradient
from operators.neighbours import Absorb, Push, ReceiveContributions, SendContributions
from operators.share_clocks import ShareClocks, ShareClocksState
from operators.shared_replica import SharedReplica
from operators.shared_replica_state import SharedReplicaState
from operators.topology import parse_topology

MODEL_NBYTES, WEIGHTS = 12_000_000, 30_000
WORKERS, UPDATES, PERIOD_S, RATE, LOOK_S = 3, 60, 1.0, 125e6, 0.1
REST_S = 240
"""Seconds after the last update for which nodes go on telling each other what has changed."""

SHAPES = {"star": "master/slave", "chain": "chain", "twin_masters": "twin masters"}


class Zeros(SharedReplica):
    """A shared replica that begins with zeros."""

    def create(self, node: NodeContext) -> SharedReplicaState:
        """No updates yet."""
        return self.begin(np.zeros(WEIGHTS, np.float32), node)


class Worker(Operator):
    """Makes so many updates, and then nothing for as long as the others need."""

    source = True
    count: int = UPDATES
    updates = Out(Gradient)

    def process(self, tick: Tick) -> Emissions:
        """An update, or nothing."""
        if tick.step == self.count + REST_S:
            yield EndOfData()
        elif tick.step < self.count:
            yield self.updates(Gradient(tick.step + 1, np.ones(WEIGHTS, np.float32), 1))


class TakeIn(Push):
    """Adds a worker's update to x, and lets the worker pull."""

    gradients = In(Gradient, capacity=1)

    def process(self, gradient: Gradient, replica: SharedReplicaState, clocks: ShareClocksState) -> Emissions:
        """Take it in."""
        replica.sharing.add(gradient.values)
        yield from map(self.notices, replica.react(clocks))


@dataclass(frozen=True)
class Curve:
    """What a run showed.

    Args:
        shape: the topology.
        nodes: how many.
        gaps: seconds, and then updates that a node's model lacks, on average, over workers.
        converged_s: seconds from the last update until all models were equal; infinite if they never were.
    """

    shape: str
    nodes: int
    gaps: list[tuple[float, float]]
    converged_s: float


def graph_of(shape: str, flow: str, updates: int, workers: int) -> LogicalGraph:
    """The job: workers and a server on every node."""
    layout = Layout.of(WEIGHTS, cells=1)
    shared: dict[str, Any] = {"flow": flow}
    replica = Zeros(model=network("mlp", "digits", "uniform"), topology=parse_topology(shape), layout=layout, **shared)
    graph = (
        LogicalGraph(name=shape)
        .with_tensor_scale(MODEL_NBYTES // (4 * WEIGHTS))
        .with_role("worker")
        .with_state("replica", replica, role="worker")
        .with_state("clocks", ShareClocks(), role="worker")
        .with_operator("push", TakeIn(), role="worker")
        .with_operator("tell", SendContributions(), role="worker")
        .with_operator("hear", ReceiveContributions(), role="worker")
        .with_operator("absorb", Absorb(period_s=PERIOD_S if flow == "period" else 0.0), role="worker")
        .connect("push.notices", "tell")
        .connect("tell", "hear", route=Route.BY_DESTINATION)
        .connect("hear", "absorb")
        .connect("absorb.notices", "tell")
    )
    for number in range(workers):
        graph = graph.with_operator(f"worker_{number}", Worker(count=updates), role="worker").connect(
            f"worker_{number}", "push"
        )
    return graph


def run(
    shape: str,
    nodes: int,
    cost_s: float,
    flow: str = "period",
    *,
    updates: int = UPDATES,
    workers: int = WORKERS,
    rate: float = RATE,
    latency_s: float = 1e-4,
) -> Curve:
    """The curve of one topology."""
    model = ClusterModel(
        rate=rate,
        latency_s=latency_s,
        compute="constant",
        tasks=workers + 1,
        byte_s=cost_s / MODEL_NBYTES,
    )
    means = {
        TaskKind(f"worker_{number}", "message", first): 1.0 for number in range(workers) for first in (True, False)
    }
    means |= {TaskKind("push", "message", first): cost_s for first in (True, False)}
    spec = JobSpec(name="tree", graph=graph_of(shape, flow, updates, workers), nodes=nodes, seed=0, stop=StopRules())
    gaps: list[tuple[float, float]] = []
    ended_s = converged_s = math.inf
    total = nodes * workers * updates

    def perform(_node: int, task: Task) -> Outcome:
        """Run a task, and look at all nodes."""
        nonlocal ended_s, converged_s
        outcome, now = task.run(), simulator._clock.now()
        if task.chain not in ("push", "hear"):
            return outcome
        shared = [node.states["replica"].sharing for node in simulator.run_so_far.nodes]  # type: ignore[attr-defined]
        made = sum(int(each.own.counts.sum()) for each in shared)
        have = [int(each.counts.sum()) for each in shared]
        if not gaps or now >= gaps[-1][0] + LOOK_S:
            gaps.append((now, (made - float(np.mean(have))) / (nodes * workers)))
        if made == total:
            ended_s = min(ended_s, now)
        if min(have) == total and converged_s == math.inf:
            converged_s = now - ended_s
            simulator.cancel()
        return outcome

    simulator = Simulator(spec, model, means, perform=perform)
    simulator.run()
    return Curve(shape, nodes, gaps, converged_s)


def table(cost_s: float, nodes: list[int], flow: str) -> list[list[Curve]]:
    """Print convergence times and largest gaps over nodes; the curves."""
    found = [[run(shape, count, cost_s, flow=flow) for shape in SHAPES] for count in nodes]
    print(f"\nC = {1000 * cost_s:g} ms, flow={flow}: seconds to converge (largest gap, in updates of each worker)\n")
    print(f"| nodes | {' | '.join(SHAPES.values())} |\n| --- |{' --- |' * len(SHAPES)}")
    for count, curves in zip(nodes, found, strict=True):
        cells = [f"{curve.converged_s:.1f} ({max(gap for _, gap in curve.gaps):.1f})" for curve in curves]
        print(f"| {count} | {' | '.join(cells)} |", flush=True)
    return found


def main() -> None:
    """Run what the page shows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cost", type=float, default=60.0, help="C in milliseconds")
    parser.add_argument("--nodes", type=int, nargs="*", default=[2, 4, 6, 8, 9, 10])
    parser.add_argument("--flow", choices=["period", "newest"], default="period")
    parser.add_argument("--out", type=Path, help="write the curves there, as JSON, for tree_picture.py")
    arguments = parser.parse_args()
    found = table(arguments.cost / 1000, arguments.nodes, arguments.flow)
    if arguments.out:
        curves = [
            {"shape": SHAPES[each.shape], "nodes": each.nodes, "gaps": each.gaps, "s": each.converged_s}
            for row in found
            for each in row
        ]
        arguments.out.write_text(json.dumps(curves))


if __name__ == "__main__":
    main()
