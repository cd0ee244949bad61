"""Parameter servers: workers push gradients to the owners of ranges of the model and pull weights (ako.txt 2)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from ako_jobs.codec_settings import NONE, require_codec, window
from ako_jobs.update_rules import RuleConfig
from ako_jobs.worker import Setting, add_worker, finish_after
from dataflow.errors import ConfigError
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.state import StateElement
from operators.accumulate import Accumulate
from operators.apply import Load
from operators.barrier import Barrier
from operators.clocks import Clocks
from operators.coded_window import CodedWindow
from operators.compression import Codec, parse_codec
from operators.images import Images
from operators.layout import Layout, Sharding
from operators.ledger import BarrierLedger, PushesLedger
from operators.partition import PartitionByOwner
from operators.passes import Passes
from operators.pulling import AttendUntilEnough, Pull, ReceiveAnswers
from operators.receive import ReceiveFragments, ReceiveWeights
from operators.schedule import Schedule
from operators.send import SendChanges, SendIntervals, SendWeights
from operators.serve import Pulls, Serve, ServeMean
from operators.served import ServedCells
from operators.shadows import Shadows
from operators.update_rules import AnyRule, Asgd
from operators.vector_state import Replica, Shard
from operators.window import Window

SAME = "same"
PLAIN = Asgd()


class Config(RuleConfig):
    """Settings of a parameter-server job.

    Args:
        servers: nodes that are servers; the others are workers. "all" puts a server and a worker on every node.
        shard: what a server owns: a range of the model, or whole layers.
        tau: with ssp, gradients that a worker may be ahead of the slowest; 4 if left out.
        pull_codec: what makes fewer bytes of servers' answers, written as codec is; or same, the codec with room for
            what all workers push between two pulls. See docs/compression.md.
    """

    servers: PositiveInt | Literal["all"] = 1
    shard: Literal["range", "layer"] = "range"
    tau: int | None = Field(default=None, ge=0)
    pull_codec: str = SAME

    @field_validator("pull_codec")
    @classmethod
    def _pulls_parse(cls, value: str) -> str:
        if value not in (NONE, SAME):
            require_codec(value)
        return value

    @model_validator(mode="after")
    def _pulls_have_values(self) -> Self:
        if self.phantom and self.pull_codec not in (NONE, SAME):
            message = "a phantom has no weights to code; leave out pull_codec or phantom"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _sent_is_known(self) -> Self:
        if self.parsed_pull_codec and self.server_rule.uses_sent:
            message = (
                f"rule={self.rule} compares weights with those it sent, and a code of them is not what arrives; "
                "add pull_codec=none"
            )
            raise ValueError(message)
        return self

    @property
    def parsed_pull_codec(self) -> Codec | None:
        """The codec of answers; None without one."""
        text = self.codec if self.pull_codec == SAME else self.pull_codec
        return None if text == NONE else parse_codec(text)


def build(config: Config) -> LogicalGraph:
    """The graph: Ako's worker with partitions by owner, and a server role that answers with weights."""
    _check(config)
    setting = Setting.of(config)
    layout, schedule = setting.layout, setting.schedule
    rule, optimizer = config.server_rule, config.worker_optimizer
    rated = optimizer.scaled
    _check_in_one(config, rule, layout)
    sharding = setting.sharding(config.shard)
    _check_shards(config, sharding)
    codec, pull_codec = config.parsed_codec, config.parsed_pull_codec
    colocated, shared, waits = config.servers == "all", config.consistency != "bsp", config.consistency != "async"
    graph = LogicalGraph(name="parameter_server").with_role("worker", "all" if colocated else "rest")
    graph = graph.with_role("server", config.servers)
    graph = add_worker(
        graph,
        setting,
        clocks=Clocks(cells=layout.cells, origins="server", sharding=sharding),
        local=config.n_fetch > 1,
        emits="update" if rated else "gradient",
        slack=config.n_fetch - 1,
        waits=waits,
        measures=False,
        shared=shared,
        optimizer=optimizer,
    )
    graph = graph.with_state(
        "shard", Shard(model=setting.model, sharding=sharding, warm_start=setting.warm_start), role="server"
    )
    serve: Serve | ServeMean
    if config.consistency == "bsp":
        own = None if rated else schedule
        serve = ServeMean(sharding=sharding, schedule=own, codec=codec, checkpoints=setting.checkpoints())
    else:
        tau = config.staleness if config.consistency == "ssp" else None
        serve = Serve(
            sharding=sharding,
            schedule=None if rated else schedule,
            tau=tau,
            fetch_every=config.n_fetch,
            shared=shared,
            codec=codec,
            checkpoints=setting.checkpoints(at_pace=not waits),
        )
    shadows = copy = None
    if pull_codec:
        pushes = config.n_fetch // config.n_push if config.pull_codec == SAME else None
        shadows = Shadows(layout=layout, codec=pull_codec, layers=setting.layers, pushes=pushes)
        copy = Replica(model=setting.model, warm_start=setting.warm_start) if config.n_fetch > 1 else None
    graph = add_servers(
        graph,
        serve,
        window(setting, codec, "server", updates=rated, sharding=sharding, counted=shared),
        PartitionByOwner(sharding=sharding, every=config.n_push),
        schedule,
        rule=rule,
        shadows=shadows,
        copy=copy,
        colocated=colocated,
        counted=codec is not None and config.checkpoint_every is not None,
        epochs=config.epochs if shared else None,
        passes=setting.passes if shared else None,
    )
    if codec:
        bsp = config.consistency == "bsp"
        ledger = BarrierLedger(owed="window") if bsp else PushesLedger(layout=layout)
        graph = graph.with_state("ledger", ledger, role="worker")
    graph = (
        graph.replace("pull", ReceiveAnswers())
        .with_operator("pulling", Pull(sharding=sharding), role="worker")
        .with_operator("attend", AttendUntilEnough(), role="worker")
        .connect("pulling", "receive", route=Route.BY_DESTINATION, loopback=colocated)
        .connect("load.finished", "attend.finished")
        .connect("load.enough", "attend.enough")
    )
    return finish_after(graph, "load")


def add_servers(
    graph: LogicalGraph,
    serve: Serve | ServeMean,
    kept: Window | CodedWindow,
    partition: PartitionByOwner,
    schedule: Schedule,
    *,
    rule: AnyRule = PLAIN,
    shadows: Shadows | None = None,
    copy: StateElement | None = None,
    colocated: bool = False,
    counted: bool = False,
    epochs: float | None = None,
    passes: Passes | None = None,
) -> LogicalGraph:
    """`graph` with pushes of its workers' gradients to its servers, and pulls of weights.

    Args:
        graph: role ``worker`` has an operator ``compute`` that emits gradients, and state ``replica`` and ``clocks``;
            role ``server`` has state ``shard``.
        serve: what servers do.
        kept: the window of the workers towards the servers.
        partition: when pushes are due, and of what.
        schedule: learning rate of a worker's gradients.
        rule: of asynchronous servers.
        shadows: of the servers, for answers that are codes; None: answers are weights.
        copy: with `shadows`, of the workers, for the weights as they were pulled, where compute updates the replica.
        colocated: whether nodes have both roles.
        counted: whether asynchronous servers add up what they apply; see `PullsState`.
        epochs: after which workers need make no more, where servers tell of how many images gradients have come.
        passes: how many are an epoch; needed with `epochs`.
    """
    layout, pulled = serve.sharding.layout, "pulled" if copy else "replica"
    if isinstance(serve, ServeMean):
        graph = graph.with_state("barrier", Barrier(contributors="worker"), role="server")
    else:
        graph = graph.with_state("pulls", Pulls(workers="worker", counted=counted), role="server")
        graph = graph.with_state("served", ServedCells(rule=rule), role="server")
        graph = graph.with_state("images", Images(sharding=partition.sharding), role="server")
    if shadows:
        graph = graph.with_state("shadows", shadows, role="server")
    if copy:
        graph = graph.with_state(pulled, copy, role="worker")
    load = Load(layout=layout, epochs=epochs, passes=passes, codec=shadows.codec if shadows else None)
    changes = SendChanges(schedule=schedule, mean=isinstance(serve, ServeMean))
    return (
        graph.with_state("window", kept, role="worker")
        .with_operator("accumulate", Accumulate(), role="worker")
        .with_operator("partition", partition, role="worker")
        .with_operator("send", SendIntervals(layout=layout), role="worker")
        .with_operator("receive", ReceiveFragments(), role="server")
        .with_operator("serve", serve, role="server")
        .with_operator("answer", changes if shadows else SendWeights(), role="server")
        .with_operator("pull", ReceiveWeights(), role="worker")
        .with_operator("load", load, role="worker", bind={"pulled": pulled})
        .connect("compute.gradients", "accumulate")
        .connect("accumulate", "partition")
        .connect("partition", "send")
        .connect("send", "receive", route=Route.BY_DESTINATION, loopback=colocated)
        .connect("receive", "serve")
        .connect("serve", "answer")
        .connect("answer", "pull", route=Route.BY_DESTINATION, loopback=colocated)
        .connect("pull", "load")
    )


def _check(config: Config) -> None:
    if config.consistency != "async" and max(config.n_push, config.n_fetch) > 1:
        raise ConfigError(
            what=f"consistency={config.consistency} needs a push and a pull per mini-batch",
            got=(config.n_push, config.n_fetch),
            fix="use n_push=1 n_fetch=1, or consistency=async",
        )
    if config.n_fetch % config.n_push:
        raise ConfigError(
            what="n_fetch must be a multiple of n_push: a pull is answered when a push is applied",
            got=(config.n_push, config.n_fetch),
            fix=f"use n_fetch={config.n_push}",
        )


def _check_shards(config: Config, sharding: Sharding) -> None:
    """Refuse more servers than own something: of the others nothing would be heard, and no checkpoint become whole."""
    if config.servers == "all":
        return
    owners = len(set(sharding.owners(config.servers)))
    if owners < config.servers:
        what = f"with shard={config.shard} only {owners} servers would own a part of the model"
        raise ConfigError(what, got=config.servers, fix=f"use servers={owners}, or fewer")


def _check_in_one(config: Config, rule: AnyRule, layout: Layout) -> None:
    """Refuse a rule that needs the whole model at once where servers have parts of it."""
    if not rule.in_one:
        return
    if config.servers != 1:
        raise ConfigError(
            what=f"rule={config.rule} takes norms over the whole model, and several servers have parts of it each",
            got=config.servers,
            fix="use servers=1, or another rule",
        )
    if len(list(layout.frames(0, layout.cells))) > 1:
        raise ConfigError(
            what=f"rule={config.rule} takes norms over the whole model, and gradients of this one come in parts",
            got=f"{layout.n_weights} weights",
            fix="use another rule, or a smaller model",
        )
