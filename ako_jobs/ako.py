"""Ako: decentralised training by partial gradient exchange (ako.txt, 3 and 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt, field_validator

from ako_jobs.config import TrainingConfig
from ako_jobs.worker import Setting, add_worker, finish_after
from dataflow.errors import ConfigError
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.quantities import bytes_per_second
from operators.accumulate import Accumulate
from operators.apply import Apply
from operators.clocks import Clocks
from operators.cost_model import CostModel
from operators.layout import Layout
from operators.partition import LivePartition, Partition, Rotation
from operators.receive import ReceiveFragments
from operators.send import SendIntervals
from operators.window import Window


class Config(TrainingConfig):
    """Settings of an Ako job.

    Args:
        p: number of partitions; auto: chosen by the cost model, from what each node measures while it runs.
        tau: gradients that a worker may be ahead, beyond those that the rotation takes.
        every: gradients in a round of exchange; auto: as few as let exchanging take a tenth of a node's processor time.
        bandwidth: what one node can send, for p=auto, such as 100mbit; auto: as measured.
        accumulate: false for the ablation of ako.txt 5.7: a round sends the newest gradient only.
    """

    gone: ClassVar[Mapping[str, str]] = {
        "gradients_per_s": "leave it out: each node measures its pace while it runs; p=auto and every=auto go by that"
    }

    p: PositiveInt | Literal["auto"] = "auto"
    tau: int = Field(default=4, ge=0)
    every: PositiveInt | Literal["auto"] = "auto"
    bandwidth: str = "auto"
    accumulate: bool = True

    @field_validator("bandwidth")
    @classmethod
    def _rate(cls, value: str) -> str:
        try:
            if value != "auto":
                bytes_per_second(value)
        except ConfigError:
            message = "must be auto or a bandwidth, written like 100mbit or 1gbit"
            raise ValueError(message) from None
        return value


def build(config: Config) -> LogicalGraph:
    """The graph: every worker sends every other one partition of its accumulated gradients per round."""
    setting = Setting.of(config)
    cost = CostModel(
        model_nbytes=4 * setting.layout.n_weights * setting.tensor_scale,
        cells=setting.layout.cells,
        partitions=None if config.p == "auto" else config.p,
        every=None if config.every == "auto" else config.every,
        bandwidth=None if config.bandwidth == "auto" else bytes_per_second(config.bandwidth),
    )
    graph = add_worker(
        LogicalGraph(name="ako").with_role("worker"),
        setting,
        clocks=Clocks(cells=setting.layout.cells, origins="worker", span=cost.first(0).span),
        local=True,
        emits="update",
        slack=config.tau,
    )
    rotation = Rotation(receivers="worker", cost=cost)
    graph = add_exchange(graph, setting.layout, rotation, accumulate=config.accumulate)
    return finish_after(graph, "apply")


def add_exchange(graph: LogicalGraph, layout: Layout, rotation: Rotation, *, accumulate: bool = True) -> LogicalGraph:
    """`graph` with partial gradient exchange between its workers.

    Args:
        graph: role ``worker`` has an operator ``compute`` that emits updates, and state ``replica`` and ``clocks``.
        layout: the model's cells.
        rotation: the number of partitions, and of gradients in a round.
        accumulate: whether gradients are kept until everybody has been sent them.
    """
    kind = LivePartition if rotation.cost.live else Partition
    window = Window(layout=layout, receivers="worker", newest_only=not accumulate)
    return (
        graph.with_state("window", window, role="worker")
        .with_state("rotation", rotation, role="worker")
        .with_operator("accumulate", Accumulate(), role="worker")
        .with_operator("partition", kind(layout=layout), role="worker")
        .with_operator("send", SendIntervals(layout=layout), role="worker")
        .with_operator("receive", ReceiveFragments(), role="worker")
        .with_operator("apply", Apply(layout=layout), role="worker")
        .connect("compute.gradients", "accumulate")
        .connect("accumulate", "partition")
        .connect("partition", "send")
        .connect("send", "receive", route=Route.BY_DESTINATION)
        .connect("receive", "apply")
    )
