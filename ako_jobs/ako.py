"""Ako: decentralised training by partial gradient exchange (ako.txt, 3 and 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from ako_jobs.codec_settings import window, with_ledger
from ako_jobs.look_ahead import LookAheadConfig
from ako_jobs.worker import Setting, add_joining, add_worker, finish_after
from dataflow.errors import ConfigError
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.quantities import bytes_per_second
from operators.accumulate import Accumulate
from operators.apply import Apply, ApplyFromPeers
from operators.clocks import Clocks
from operators.coded_window import CodedWindow
from operators.compression import Threshold, expected_nbytes
from operators.cost_model import CostModel
from operators.layout import Layout
from operators.partition import LivePartition, Partition, Rotation
from operators.receive import ReceiveFragments, ReceiveFromPeers
from operators.send import SendIntervals, SendToPeers
from operators.window import Window

MOST = 1_000_000
"""Of partitions, and of gradients in a round."""


class Config(LookAheadConfig):
    """Settings of an Ako job.

    Args:
        p: number of partitions; auto: chosen by the cost model, from what each node measures while it runs.
        tau: gradients that a worker may be ahead, beyond those that the rotation takes; 4 if left out.
        every: gradients in a round of exchange; auto: as few as let exchanging take a tenth of a node's processor time.
        bandwidth: what one node can send, for p=auto, such as 100mbit; auto: as measured.
        accumulate: false: a round sends the newest gradient only, as in the ablation of the Ako paper (5.7).
    """

    gone: ClassVar[Mapping[str, str]] = {
        **LookAheadConfig.gone,
        "gradients_per_s": "leave it out: each node measures its pace while it runs; p=auto and every=auto go by that",
    }

    p: Annotated[int, Field(ge=1, le=MOST)] | Literal["auto"] = "auto"
    tau: int | None = Field(default=None, ge=0)
    every: Annotated[int, Field(ge=1, le=MOST)] | Literal["auto"] = "auto"
    bandwidth: str = "auto"
    accumulate: bool = True

    @model_validator(mode="after")
    def _accumulates(self) -> Self:
        if self.parsed_codec and not self.accumulate:
            message = "what a codec leaves out of a gradient is sent later, so it needs accumulate=true"
            raise ValueError(message)
        if self.look_ahead and not self.accumulate:
            message = "look_ahead needs all updates to arrive, and accumulate=false loses some; leave one out"
            raise ValueError(message)
        return self

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
    setting, codec = Setting.of(config), config.parsed_codec
    n_weights = setting.layout.n_weights
    cost = CostModel(
        model_nbytes=expected_nbytes(codec, n_weights) if codec else 4 * n_weights * setting.tensor_scale,
        in_turn=isinstance(codec, Threshold),
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
        slack=config.staleness,
        owes=codec is not None,
        optimizer=config.worker_optimizer,
    )
    rotation = Rotation(receivers="worker", cost=cost)
    kept = window(setting, codec, "worker", updates=True, newest_only=not config.accumulate)
    graph = add_exchange(graph, setting.layout, rotation, kept)
    graph = with_ledger(graph, setting, "window", local=True) if codec else graph
    graph = graph.replace("send", SendToPeers(layout=setting.layout)).replace("receive", ReceiveFromPeers())
    graph = graph.replace("apply", ApplyFromPeers(layout=setting.layout))
    return finish_after(add_joining(graph), "apply")


def add_exchange(graph: LogicalGraph, layout: Layout, rotation: Rotation, window: Window | CodedWindow) -> LogicalGraph:
    """`graph` with partial gradient exchange between its workers.

    Args:
        graph: role ``worker`` has an operator ``compute`` that emits updates, and state ``replica`` and ``clocks``.
        layout: the model's cells.
        rotation: the number of partitions, and of gradients in a round.
        window: of the workers, towards each other.
    """
    kind = LivePartition if rotation.cost.live else Partition
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
