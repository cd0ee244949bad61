"""Sparse: every worker sends what a codec makes of each gradient to all, itself included (strom_sparse_sgd.txt)."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from ako_jobs.codec_settings import NONE, CodecConfig, send_whole
from ako_jobs.config import numbers
from ako_jobs.worker import Setting, add_joining, add_worker, finish_after
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from operators.apply import ApplyFromPeers
from operators.clocks import FAR, Clocks
from operators.receive import ReceiveFromPeers
from operators.source import Source
from operators.warm_up import WarmUp


class Config(CodecConfig):
    """Settings of a sparse job.

    Args:
        codec: what makes messages of gradients: threshold, topk, fp16, int8 or onebit, with its parameters behind it,
            if they are to differ from their defaults: codec=threshold:tau=0.1. See docs/compression.md.
        consistency: ssp (bounded staleness; synchronous if tau is 0) or async.
        tau: with ssp, gradients of any other worker that a worker's weights may lack; 4 if left out.
        warm_up_epochs: epochs, or a part of one, of each stage at the beginning, such as 0.2 or 0.17,0.83.
        warm_up_nodes: workers that have images in the warm-up, or in each of its stages, such as 10 or 5,10; all if
            left out. The other workers' data of these epochs is not seen.
        warm_up_batch: images of a mini-batch in the warm-up, or in each of its stages, such as 8 or 4,8; `batch` if
            left out. What it leaves out is not seen.
    """

    codec: str = "threshold"
    consistency: Literal["ssp", "async"] = "async"
    tau: int | None = Field(default=None, ge=0)
    warm_up_epochs: str | None = None
    warm_up_nodes: str | None = None
    warm_up_batch: str | None = None

    @field_validator("warm_up_epochs", "warm_up_nodes", "warm_up_batch", mode="before")
    @classmethod
    def _as_typed(cls, value: object) -> object:
        return str(value) if isinstance(value, int | float) else value

    @field_validator("warm_up_epochs")
    @classmethod
    def _are_epochs(cls, value: str | None) -> str | None:
        try:
            each = numbers(value)
        except ValueError:
            each = (0.0,)
        if not all(0 < epochs < math.inf for epochs in each):
            message = "must be epochs above 0, for each stage; write them like 0.2 or 0.17,0.83"
            raise ValueError(message)
        return value

    @field_validator("warm_up_nodes", "warm_up_batch")
    @classmethod
    def _are_counts(cls, value: str | None) -> str | None:
        if value is not None and not all(part.strip().isdecimal() and int(part) for part in value.split(",")):
            message = "must be a positive integer, or one for each stage; write them like 8 or 4,8"
            raise ValueError(message)
        return value

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
        stages = len(numbers(self.warm_up_epochs))
        for key in ("warm_up_nodes", "warm_up_batch"):
            given = len(numbers(getattr(self, key)))
            if not message and given > 1 and given != stages:
                message = f"{key} is for {given} stages, and warm_up_epochs for {stages}; write as many, or one"
        if not message and self.warm_up_nodes and sum(numbers(self.warm_up_epochs)) >= self.epochs:
            within = f"and epochs={self.epochs:g} are all: the others would never see their data"
            message = f"warm_up_nodes have images for warm_up_epochs={self.warm_up_epochs}, {within}"
        if not message and self.warm_up_batch and self.local_steps > 1:
            message = "warm_up_batch is of gradients of one mini-batch; leave out local_steps or warm_up_batch"
        largest = max((stage.batch or 0 for stage in self.warm_up()), default=0) if not message else 0
        if largest > self.batch:
            message = f"warm_up_batch={largest} is above batch={self.batch}; use a smaller warm_up_batch"
        if message:
            raise ValueError(message)
        return self

    def warm_up(self) -> tuple[WarmUp, ...]:
        """The stages with which training begins."""
        epochs = numbers(self.warm_up_epochs)
        nodes, batch = (_each(text, len(epochs)) for text in (self.warm_up_nodes, self.warm_up_batch))
        return tuple(
            WarmUp(epochs=each[0], nodes=each[1], batch=each[2]) for each in zip(epochs, nodes, batch, strict=True)
        )


def _each(text: str | None, stages: int) -> tuple[int | None, ...]:
    """The number for each stage: one for all, or as many."""
    if text is None:
        return (None,) * stages
    found = tuple(int(part) for part in text.split(","))
    return found * stages if len(found) == 1 else found


def build(config: Config) -> LogicalGraph:
    """The graph: all-to-all's, but a worker's own replica changes by its own message only, before it computes again."""
    setting = Setting.of(config)
    layout, waits = setting.layout, config.consistency != "async"
    span = config.staleness if waits else FAR
    apply = ApplyFromPeers(layout=layout, checkpoints=setting.late_checkpoints(waits=waits))
    graph = add_worker(
        LogicalGraph(name="sparse").with_role("worker"),
        setting,
        clocks=Clocks(cells=layout.cells, origins="worker", span=span, own=True),
        local=False,
        emits="gradient",
        slack=0,
        waits=waits,
    )
    if warm_up := config.warm_up():
        source = Source.model_validate_json(graph.operator("source").params)
        graph = graph.replace("source", source.model_copy(update={"warm_up": warm_up}))
    graph = (
        send_whole(graph, setting, config.parsed_codec, emits="gradient", rated=True, own=True, span=span)
        .with_operator("receive", ReceiveFromPeers(), role="worker")
        .with_operator("apply", apply, role="worker")
        .connect("compute.gradients", "send.gradients")
        .connect("send", "receive.arriving", route=Route.BY_DESTINATION, loopback=True)
        .connect("receive", "apply")
    )
    return finish_after(add_joining(graph), "apply")
