"""All-to-all: every worker sends every gradient whole to every other worker (ako.txt 2 and 5)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from ako_jobs.codec_settings import send_whole
from ako_jobs.look_ahead import LookAheadConfig
from ako_jobs.worker import Setting, add_joining, add_worker, finish_after
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.operators_api import Operator
from operators.apply import ApplyFromPeers, ApplyMean
from operators.barrier import Barrier
from operators.clocks import Clocks
from operators.receive import ReceiveFromPeers


class Config(LookAheadConfig):
    """Settings of an all-to-all job.

    Args:
        consistency: bsp (all wait for all; the mean is applied), ssp (bounded staleness) or async.
        tau: with ssp, gradients that a worker may be ahead of the slowest; 4 if left out.
    """

    consistency: Literal["bsp", "ssp", "async"] = "ssp"
    tau: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _has_updates_under_way(self) -> Self:
        if self.look_ahead and self.consistency == "bsp":
            message = "with consistency=bsp no update is under way to look ahead of; use nesterov=true, or ssp or async"
            raise ValueError(message)
        return self


def build(config: Config) -> LogicalGraph:
    """The graph: Ako's without accumulate and partition; with a barrier if bulk-synchronous."""
    setting = Setting.of(config)
    layout, bsp, waits = setting.layout, config.consistency == "bsp", config.consistency != "async"
    graph = add_worker(
        LogicalGraph(name="all_to_all").with_role("worker"),
        setting,
        clocks=Clocks(cells=layout.cells, origins="worker", own=bsp),
        local=not bsp,
        emits="gradient" if bsp else "update",
        owes=config.parsed_codec is not None and not bsp,
        slack={"bsp": 0, "ssp": config.staleness, "async": None}[config.consistency],
        waits=waits,
        optimizer=config.worker_optimizer,
    )
    if bsp:
        graph = graph.with_state("barrier", Barrier(contributors="worker"), role="worker")
    apply: Operator = ApplyMean(layout=layout, schedule=setting.schedule)
    if not bsp:
        apply = ApplyFromPeers(layout=layout, checkpoints=setting.late_checkpoints(waits=waits))
    graph = (
        send_whole(
            graph,
            setting,
            config.parsed_codec,
            emits="gradient" if bsp else "update",
            rated=not bsp,
            own=bsp,
            alike=bsp,
        )
        .with_operator("receive", ReceiveFromPeers(), role="worker")
        .with_operator("apply", apply, role="worker")
        .connect("compute.gradients", "send.gradients")
        .connect("send", "receive.arriving", route=Route.BY_DESTINATION, loopback=bsp)
        .connect("receive", "apply.fragments")
    )
    graph = add_joining(graph)
    return finish_after(graph.connect("listen.settled", "apply.begun") if bsp else graph, "apply")
