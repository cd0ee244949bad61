"""Ako: decentralised training by partial gradient exchange (ako.txt, 3 and 4)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ako_jobs.config import TrainingConfig, bytes_per_second
from ako_jobs.worker import Setting, add_worker, finish_after
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from operators.accumulate import Accumulate
from operators.apply import Apply
from operators.clocks import Clocks
from operators.cost_model import CostModel
from operators.partition import Partition, Rotation
from operators.receive import ReceiveFragments
from operators.send import SendIntervals
from operators.window import Window


class Config(TrainingConfig):
    """Settings of an Ako job.

    Args:
        p: number of partitions; auto for the cost model's.
        tau: gradients that a worker may be ahead, beyond those that the rotation takes.
        every: gradients in a round of exchange.
        bandwidth: what one node can send, for p=auto.
        gradients_per_s: gradients that one node computes in a second, for p=auto.
        accumulate: false for the ablation of ako.txt 5.7: a round sends the newest gradient only.
    """

    p: int | Literal["auto"] = "auto"
    tau: int = Field(default=8, ge=0)
    every: int = Field(default=1, ge=1)
    bandwidth: str = "1gbit"
    gradients_per_s: float = Field(default=500, gt=0)
    accumulate: bool = True


def build(config: Config) -> LogicalGraph:
    """The graph: every worker sends every other one partition of its accumulated gradients per round."""
    setting = Setting.of(config)
    layout = setting.layout
    p = None if config.p == "auto" else config.p
    cost = CostModel(
        gradients_per_s=config.gradients_per_s,
        model_nbytes=4 * layout.n_weights,
        bandwidth=bytes_per_second(config.bandwidth),
    )
    graph = add_worker(
        LogicalGraph(name="ako").with_role("worker"),
        setting,
        clocks=Clocks(cells=layout.cells, origins="worker", span=(p or 1) * config.every),
        local=True,
        emits="update",
        slack=config.tau,
    )
    graph = (
        graph.with_state(
            "window", Window(layout=layout, receivers="worker", newest_only=not config.accumulate), role="worker"
        )
        .with_state("rotation", Rotation(partitions=p, receivers="worker", cost=cost), role="worker")
        .with_operator("accumulate", Accumulate(), role="worker")
        .with_operator("partition", Partition(layout=layout, every=config.every), role="worker")
        .with_operator("send", SendIntervals(layout=layout), role="worker")
        .with_operator("receive", ReceiveFragments(), role="worker")
        .with_operator("apply", Apply(layout=layout), role="worker")
        .connect("compute.gradients", "accumulate")
        .connect("accumulate", "partition")
        .connect("partition", "send")
        .connect("send", "receive", route=Route.BY_DESTINATION)
        .connect("receive", "apply")
    )
    return finish_after(graph, "apply")
