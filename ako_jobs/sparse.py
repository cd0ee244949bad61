"""Sparse: every worker sends what a codec makes of each gradient to all, itself included (strom_sparse_sgd.txt)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from ako_jobs.codec_settings import NONE, CodecConfig, send_whole
from ako_jobs.worker import Setting, add_joining, add_worker, finish_after
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from operators.apply import Apply
from operators.clocks import FAR, Clocks
from operators.receive import ReceiveFromPeers
from operators.source import Source, WarmUp


class Config(CodecConfig):
    """Settings of a sparse job.

    Args:
        codec: what makes messages of gradients: threshold, topk, fp16, int8 or onebit, with its parameters behind it,
            if they are to differ from their defaults: codec=threshold:tau=0.1. See docs/compression.md.
        consistency: ssp (bounded staleness; synchronous if tau is 0) or async.
        tau: with ssp, gradients of any other worker that a worker's weights may lack.
        warm_up_epochs: epochs, or a part of one, at the beginning in which only `warm_up_nodes` workers have images.
        warm_up_nodes: how many; all if left out. The other workers' data of these epochs is not seen.
        warm_up_batch: images of a mini-batch in these epochs; `batch` if left out. What it leaves out is not seen.
    """

    codec: str = "threshold"
    consistency: Literal["ssp", "async"] = "async"
    tau: int = Field(default=4, ge=0)
    warm_up_epochs: float = Field(default=0.0, ge=0)
    warm_up_nodes: PositiveInt | None = None
    warm_up_batch: PositiveInt | None = None

    @field_validator("codec")
    @classmethod
    def _is_one(cls, codec: str) -> str:
        if codec == NONE:
            message = "workers apply what a codec makes of their gradients; choose one, or run all_to_all"
            raise ValueError(message)
        return codec

    @model_validator(mode="after")
    def _warms_up(self) -> Self:
        message, asked = "", self.warm_up_nodes is not None or self.warm_up_batch is not None
        if asked and not self.warm_up_epochs:
            message = "warm_up_nodes and warm_up_batch are for the first warm_up_epochs; add warm_up_epochs=0.2"
        elif self.warm_up_epochs and not asked:
            message = "warm_up_epochs needs warm_up_nodes or warm_up_batch, or they are as the others"
        elif self.warm_up_batch is not None and self.warm_up_batch > self.batch:
            message = f"warm_up_batch={self.warm_up_batch} is above batch={self.batch}; use a smaller warm_up_batch"
        if message:
            raise ValueError(message)
        return self


def build(config: Config) -> LogicalGraph:
    """The graph: all-to-all's, but a worker's own replica changes by its own message only, before it computes again."""
    setting = Setting.of(config)
    layout, span = setting.layout, config.tau if config.consistency == "ssp" else FAR
    graph = add_worker(
        LogicalGraph(name="sparse").with_role("worker"),
        setting,
        clocks=Clocks(cells=layout.cells, origins="worker", span=span, own=True),
        local=False,
        emits="gradient",
        slack=0,
    )
    if config.warm_up_epochs:
        source = Source.model_validate_json(graph.operator("source").params)
        warm_up = WarmUp(nodes=config.warm_up_nodes, epochs=config.warm_up_epochs, batch=config.warm_up_batch)
        graph = graph.replace("source", source.model_copy(update={"warm_up": warm_up}))
    graph = (
        send_whole(graph, setting, config.parsed_codec, emits="gradient", rated=True, own=True, span=span)
        .with_operator("receive", ReceiveFromPeers(), role="worker")
        .with_operator("apply", Apply(layout=layout), role="worker")
        .connect("compute.gradients", "send.gradients")
        .connect("send", "receive.arriving", route=Route.BY_DESTINATION, loopback=True)
        .connect("receive", "apply")
    )
    return finish_after(add_joining(graph), "apply")
