"""Tree: workers tell their neighbours in a tree the sum of all updates on their side (parameter_sharing_tree.txt)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import PositiveInt, field_validator, model_validator

from ako_jobs.codec_settings import CodecConfig
from ako_jobs.worker import Setting, add_worker, finish_after
from dataflow.errors import ConfigError
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.quantities import duration
from operators.attend import Attend
from operators.enrol import Enrol, Stay
from operators.neighbours import Absorb, Push, PushMean, ReceiveContributions, SendContributions
from operators.share_clocks import ShareClocks
from operators.shared_replica import SharedReplica
from operators.topology import parse_topology


class Config(CodecConfig):
    """Settings of a tree job.

    Args:
        topology: who talks to whom: chain, star, twin_masters, tree(2) with up to two nodes below each, or a file with
            an edge such as 0 1 on each line.
        then: what the topology is changed to while the job runs, written as it is; it stays if left out.
        change_after: gradients of a worker after which it changes its neighbours; by itself, and nobody waits.
        consistency: bsp (all wait for all; the mean is applied), ssp (no worker is `bound` updates ahead of the
            slowest), assp (nobody's model has `bound` updates more than the poorest one) or eventual (nobody waits).
        bound: with ssp and assp, updates; at least `n_sync`.
        n_sync: gradients between two pushes of a worker's updates, and pulls of what others have told its node.
        flow: newest: neighbours are told of each change as soon as they have taken in what they were told before;
            period: again and again, whatever waits to be sent, as the paper does.
        period: with flow=period, time between two looks at what neighbours have not been told, such as 1s or 100ms.
        waves: neighbours: everybody is told of every change at once; root: changes go up to the first node and back
            (in-network aggregation, for comparison).
    """

    gone: ClassVar[Mapping[str, str]] = {
        **CodecConfig.gone,
        "tau": "the threshold of a codec is a part of it, codec=threshold:tau=0.1; updates to be ahead by are `bound`",
    }

    topology: str = "chain"
    then: str | None = None
    change_after: PositiveInt | None = None
    consistency: Literal["bsp", "ssp", "assp", "eventual"] = "eventual"
    bound: PositiveInt = 4
    n_sync: PositiveInt = 1
    flow: Literal["newest", "period"] = "newest"
    period: str = "1s"
    waves: Literal["neighbours", "root"] = "neighbours"

    @field_validator("topology", "then")
    @classmethod
    def _is_one(cls, text: str | None) -> str | None:
        try:
            if text is not None:
                parse_topology(text)
        except ConfigError as error:
            message = f"{error.what}; {error.fix}" if error.fix else error.what
            raise ValueError(message) from None
        return text

    @field_validator("period")
    @classmethod
    def _is_a_time(cls, text: str) -> str:
        try:
            seconds = duration(text)
        except ConfigError:
            seconds = 0.0
        if not seconds > 0:
            message = "must be a time above 0, written like 1s or 100ms"
            raise ValueError(message)
        return text

    @model_validator(mode="after")
    def _does_not_wait_for_itself(self) -> Self:
        message = ""
        if self.consistency == "bsp" and self.n_sync > 1:
            message = "bsp pushes every gradient; leave out n_sync, or use another consistency"
        elif self.consistency in ("ssp", "assp") and self.bound < self.n_sync:
            message = f"a worker would wait for what it has not pushed; use bound={self.n_sync} or more"
        elif self.bound != type(self).model_fields["bound"].default and self.consistency not in ("ssp", "assp"):
            message = "bound is for consistency=ssp and assp, which wait; leave it out, or use one of these"
        elif self.consistency == "bsp" and self.waves == "root":
            message = "the rounds of bsp end when all have told all; leave out waves=root, or use another consistency"
        elif self.then is not None and (self.consistency == "bsp" or self.waves == "root"):
            message = "the tree cannot be changed with bsp or waves=root; leave out then, or use another consistency"
        elif (self.then is None) != (self.change_after is None):
            message = "then and change_after go together; write both, as in then=star change_after=500"
        elif self.consistency == "bsp" and self.flow == "period":
            message = "bsp tells a round once it is complete; leave out flow=period, or use another consistency"
        elif self.flow != "period" and self.period != type(self).model_fields["period"].default:
            message = "period is for flow=period; add flow=period, or leave out period"
        elif self.max_nodes is not None and not self._is_plain:
            message = (
                "nodes join a tree only with consistency=eventual, flow=newest and waves=neighbours, and without codec"
                " and then; leave out max_nodes, or use these"
            )
        if message:
            raise ValueError(message)
        return self

    @property
    def _is_plain(self) -> bool:
        """See `SharedReplica.grows`."""
        told = (self.consistency, self.flow, self.waves) == ("eventual", "newest", "neighbours")
        return told and self.then is None and self.parsed_codec is None


def build(config: Config) -> LogicalGraph:
    """The graph: a worker's updates go into its own sum; sums of sides of the tree go from neighbour to neighbour."""
    setting = Setting.of(config)
    bsp, waits = config.consistency == "bsp", config.consistency != "eventual"
    replica = SharedReplica(
        model=setting.model,
        warm_start=setting.warm_start,
        topology=parse_topology(config.topology),
        then=None if config.then is None else parse_topology(config.then),
        layout=setting.layout,
        consistency=config.consistency,
        flow=config.flow,
        every=config.n_sync,
        waves=config.waves,
        codec=config.parsed_codec,
        layers=setting.layers,
        rate=setting.schedule,
    )
    graph = add_worker(
        LogicalGraph(name="tree").with_role("worker"),
        setting,
        clocks=ShareClocks(waits=waits),
        local=not bsp,
        emits="gradient" if bsp else "update",
        slack={"bsp": 0, "ssp": config.bound - 1, "assp": config.bound - 1, "eventual": None}[config.consistency],
        waits=waits,
        replica=replica,
    )
    push = PushMean(schedule=setting.schedule) if bsp else Push(every=config.n_sync, change_after=config.change_after)
    period_s = duration(config.period) if config.flow == "period" else 0.0
    absorb = Absorb(period_s=period_s, checkpoints=setting.late_checkpoints(waits=waits))
    graph = finish_after(add_sharing(graph, push, absorb), "absorb")
    if replica.grows:
        return add_enrolling(graph)
    return graph.with_operator("attend", Attend(), role="worker").connect("absorb.finished", "attend")


def add_enrolling(graph: LogicalGraph) -> LogicalGraph:
    """`graph` whose workers share over a tree that others may join; they have state ``roll`` and ``course``, too."""
    return (
        graph.with_operator("enrol", Enrol(), role="worker")
        .with_operator("stay", Stay(), role="worker")
        .connect("absorb.arrived", "enrol")
        .connect("stay", "hear", route=Route.BY_DESTINATION, loopback=True)
    )


def add_sharing(graph: LogicalGraph, push: Push, absorb: Absorb) -> LogicalGraph:
    """`graph` whose workers share their replicas over a tree.

    Args:
        graph: role ``worker`` has an operator ``compute`` that emits gradients, and state ``replica``, shared, and
            ``clocks``.
        push: what is done with a worker's gradients.
        absorb: and with what neighbours tell.
    """
    return (
        graph.with_operator("push", push, role="worker")
        .with_operator("tell", SendContributions(), role="worker")
        .with_operator("hear", ReceiveContributions(), role="worker")
        .with_operator("absorb", absorb, role="worker")
        .connect("compute.gradients", "push")
        .connect("push.notices", "tell")
        .connect("tell", "hear", route=Route.BY_DESTINATION)
        .connect("hear", "absorb")
        .connect("absorb.notices", "tell")
    )
