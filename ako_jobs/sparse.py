"""Sparse: every worker sends what a codec makes of each gradient to all, itself included (strom_sparse_sgd.txt)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from ako_jobs.codec_settings import NONE, CodecConfig, send_whole
from ako_jobs.worker import Setting, add_worker, finish_after
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from operators.apply import Apply
from operators.clocks import FAR, Clocks
from operators.receive import ReceiveFragments


class Config(CodecConfig):
    """Settings of a sparse job.

    Args:
        codec: what makes messages of gradients: threshold, topk, fp16, int8 or onebit, with its parameters behind it,
            if they are to differ from their defaults: codec="threshold tau=0.1". See docs/compression.md.
        consistency: ssp (bounded staleness; synchronous if tau is 0) or async.
        tau: with ssp, gradients of any other worker that a worker's weights may lack.
    """

    codec: str = "threshold"
    consistency: Literal["ssp", "async"] = "async"
    tau: int = Field(default=4, ge=0)

    @field_validator("codec")
    @classmethod
    def _is_one(cls, codec: str) -> str:
        if codec == NONE:
            message = "workers apply what a codec makes of their gradients; choose one, or run all_to_all"
            raise ValueError(message)
        return codec


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
    graph = (
        send_whole(graph, setting, config.parsed_codec, updates=True, span=span)
        .with_operator("receive", ReceiveFragments(), role="worker")
        .with_operator("apply", Apply(layout=layout), role="worker")
        .connect("compute.gradients", "send")
        .connect("send", "receive", route=Route.ONE_TO_ALL, loopback=True)
        .connect("receive", "apply")
    )
    return finish_after(graph, "apply")
