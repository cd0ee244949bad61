"""What the workers of every topology have in common: data in, gradients out, a replica that is validated and kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from ako_jobs.config import TrainingConfig
from ako_jobs.datasets import LOADER, DataSet
from dataflow.errors import ConfigError, DataError
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.state import StateElement
from operators.advance import Advance
from operators.average import Average
from operators.checkpointing import Checkpoints
from operators.compute import Compute
from operators.course import Course
from operators.data import DataRef, open_data
from operators.divergence import SAMPLED_WEIGHTS, Divergence, SampleReplica, Samples
from operators.dnn import Network, NetworkSpec, PhantomSpec, WeightRange, build_network
from operators.due import DueInSuccession, Every, Newest
from operators.examine import Examine
from operators.follow import Follow
from operators.joining import Listen, Talk
from operators.keep_model import KeepModel
from operators.layout import Layout, Sharding
from operators.lending import Borrow, Lend, Loan
from operators.optimizer import Sgd
from operators.passes import Passes
from operators.preprocess import Normalise
from operators.roll import Roll
from operators.schedule import Constant, Cosine, Schedule, Step
from operators.source import Source
from operators.validate import Examinations, Validate
from operators.vector_state import Replica, Statistics, Velocity
from operators.warm_start import WarmStart


@dataclass(frozen=True)
class Setting:
    """What a configuration means for graphs: the network, its layout, the data and their normalisation.

    Args:
        config: the job's configuration.
        model: the network.
        layout: its cells, none of which lies in two layers.
        layers: offset at which each layer begins.
        data: how nodes open the data set.
        train_images: images that are trained on.
        normalise: the normalising operator; None if pixels stay in [0, 1].
    """

    config: TrainingConfig
    model: NetworkSpec
    layout: Layout
    layers: tuple[int, ...]
    data: DataRef
    train_images: int
    normalise: Normalise | None

    @classmethod
    def of(cls, config: TrainingConfig) -> Setting:
        """The setting of a configuration; opens the data set.

        Raises:
            ConfigError: the network cannot be trained, or does not fit the images, or another data set is named than
                the job's own.
            DataError: the data set cannot be read, or not be normalised.
        """
        model = config.network()
        ref = config.dataset()
        if ref.loader != LOADER and config.data != type(config).model_fields["data"].default:
            what = f"the job is on data of its own, {ref.name}, and data names another set"
            raise ConfigError(what, got=config.data, fix="leave it out")
        data = cast("DataSet", open_data(ref))
        network = build_network(model)
        _check_network(network, model.input, data, ref.name)
        if config.phantom:
            model = PhantomSpec.like(network.n_weights, network.n_classes)
            network = build_network(model)
            ref = DataRef(loader="ako_jobs.phantom:load", name=f"{len(data.train_images)}")
            data = cast("DataSet", open_data(ref))
        network.rehearse()
        ranges = network.ranges
        layers = _layer_starts(ranges)
        return cls(
            config=config,
            model=model,
            layout=Layout.of(ranges[-1].stop, align=layers),
            layers=layers,
            data=ref,
            train_images=_train_images(data, config),
            normalise=_normalise(data, ref.name) if config.normalise else None,
        )

    @property
    def tensor_scale(self) -> int:
        """How many weights each one of the vector stands for: more than 1 in a phantom."""
        return self.model.scale if isinstance(self.model, PhantomSpec) else 1

    @property
    def sampled_weights(self) -> int:
        """Weights of the vector in a sample of the replica: as many as count for those of a real one."""
        return max(1, SAMPLED_WEIGHTS // self.tensor_scale)

    @property
    def batch(self) -> int:
        """Images of a worker's gradient."""
        return self.config.batch * self.config.local_steps

    @property
    def passes(self) -> Passes:
        """How many gradients are an epoch."""
        return Passes(images=self.train_images, batch=self.batch)

    @property
    def schedule(self) -> Schedule:
        """The learning rate of each gradient."""
        config = self.config
        decay: Constant | Step | Cosine = Constant()
        if config.schedule == "step":
            decay = Step(milestones=config.milestone_epochs(), gamma=config.gamma)
        elif config.schedule == "cosine":
            decay = Cosine(begin=config.warmup, end=max(config.epochs, config.warmup), lr_min=config.lr_min)
        return Schedule(lr=config.lr, warmup=config.warmup, decay=decay, passes=self.passes)

    @property
    def optimizer(self) -> Sgd:
        """What makes directions of gradients."""
        config = self.config
        return Sgd(momentum=config.momentum, look_ahead=int(config.nesterov), weight_decay=config.weight_decay)

    def checkpoints(self, *, at_pace: bool = False) -> Checkpoints | None:
        """When the state of every node is kept; `at_pace` where no worker waits for another."""
        every = self.config.checkpoint_every
        return Checkpoints(images=every, batch=self.batch, at_pace=at_pace) if every else None

    def late_checkpoints(self, *, waits: bool) -> Checkpoints | None:
        """When that of a worker is kept which has made its gradients, while others make more: where none `waits`."""
        return None if waits else self.checkpoints(at_pace=True)

    @property
    def warm_start(self) -> WarmStart | None:
        """Training before the start."""
        config = self.config
        if not config.warm_start or config.phantom:
            return None
        return WarmStart(
            fraction=config.warm_start,
            lr=config.lr,
            optimizer=self.optimizer,
            batch=config.batch,
            data=self.data,
            holdout=config.holdout,
            normalise=self.normalise,
        )

    def sharding(self, by: str) -> Sharding:
        """The division of the model over servers, by ``range`` or by ``layer``."""
        return Sharding.model_validate({"layout": self.layout, "by": by, "layers": self.layers})


def add_worker(
    graph: LogicalGraph,
    setting: Setting,
    *,
    clocks: StateElement,
    local: bool,
    emits: Literal["gradient", "update"],
    slack: int | None,
    waits: bool = True,
    measures: bool = True,
    shared: bool = False,
    owes: bool = False,
    optimizer: Sgd | None = None,
    replica: StateElement | None = None,
) -> LogicalGraph:
    """`graph` with the operators and state elements of role ``worker`` up to the gradients.

    Args:
        graph: has the role.
        setting: of the job.
        clocks: whom the workers wait for.
        local: whether a worker updates its replica with its own gradients.
        emits: whether gradients leave the workers, or updates.
        slack: gradients that may be made beyond what the slowest clock allows; None for no bound.
        waits: whether there is a bound, by `slack` or by whom the workers send to.
        measures: whether workers measure how stale their gradients are; else whoever applies them does.
        shared: whether workers make gradients until they are told that there are enough of all of them; else each makes
            as many.
        owes: whether state ``window`` of the role has an `owed`, what others lack of gradients that a worker's replica
            has: averages go without it.
        optimizer: what workers make of their gradients; None: the setting's.
        replica: the model on a worker; one that nobody else knows of if None.
    """
    config, data, optimizer = setting.config, setting.data, optimizer or setting.optimizer
    averages_over = 0.0 if config.phantom else config.average * setting.passes.gradients(1)
    average = Average(n_weights=setting.layout.n_weights, averages=averages_over > 0)
    every: Every = config.validate_every or "epoch"
    replica = replica or Replica(model=setting.model, warm_start=setting.warm_start)
    graph = (
        graph.with_tensor_scale(setting.tensor_scale)
        .with_state("replica", replica, role="worker")
        .with_state("statistics", Statistics(model=setting.model, warm_start=setting.warm_start), role="worker")
        .with_state("velocity", Velocity(n_weights=setting.layout.n_weights, optimizer=optimizer), role="worker")
        .with_state("average", average, role="worker")
        .with_state("clocks", clocks, role="worker")
        .with_state("newest", Newest(), role="worker")
        .with_state("samples", Samples(), role="worker")
        .with_state("roll", Roll(), role="worker")
        .with_state(
            "course", Course(batch=setting.batch, data=setting.data.name, holdout=config.holdout), role="worker"
        )
        .with_operator(
            "source",
            Source(
                data=data,
                batch=setting.batch,
                epochs=None if shared else config.epochs,
                needed=config.epochs if shared else None,
                holdout=config.holdout,
                redivide=config.redivide,
            ),
            role="worker",
        )
        .with_operator(
            "compute",
            Compute(
                model=setting.model,
                schedule=setting.schedule,
                optimizer=optimizer,
                mini_batch=config.batch if config.local_steps > 1 else None,
                local=local,
                measures=measures,
                emits=emits,
                slack=slack,
                passes=setting.passes if shared else None,
                averages_over=0 if owes else averages_over,
                checkpoints=setting.checkpoints(at_pace=not waits),
                max_poison=config.max_poison,
            ),
            role="worker",
        )
        .with_operator("due", DueInSuccession(every=every), role="worker")
        .with_operator("sample", SampleReplica(weights=setting.sampled_weights, every=every), role="worker")
        .with_operator("divergence", Divergence(), role="worker")
        .with_operator("keep_model", KeepModel(model=setting.model), role="worker")
        .connect("source", "compute")
        .connect("compute.progress", "due.progress")
        .connect("due.in_turn", "keep_model")
        .connect("keep_model.over", "due.over", route=Route.FIRST_TO_ALL)
        .connect("due.due", "sample")
        .connect("sample", "divergence", route=Route.ALL_TO_ONE, loopback=True)
    )
    if owes and averages_over:
        graph = graph.insert_after("compute.progress", Follow(over=averages_over))
    graph = graph.insert_after("source", setting.normalise) if setting.normalise else graph
    return _add_validations(graph, setting, setting.passes if shared else None)


def _add_validations(graph: LogicalGraph, setting: Setting, passes: Passes | None) -> LogicalGraph:
    """`graph` with what looks at the workers' models; for a phantom, with what says how far it is.

    Args:
        graph: has the workers' operators and states.
        setting: of the job.
        passes: see `Examine`.
    """
    config, data = setting.config, setting.data
    if config.phantom:
        return graph.with_operator("advance", Advance(), role="worker").connect("due.in_turn", "advance")
    examine = Examine(
        model=setting.model, data=data, holdout=config.holdout, normalise=setting.normalise, passes=passes
    )
    return (
        graph.with_state("examinations", Examinations(), role="worker")
        .with_operator("examine", examine, role="worker")
        .with_operator("validate", Validate(data=data, holdout=config.holdout), role="worker")
        .connect("due.shared", "examine")
        .connect("examine.examined", "validate.examined", route=Route.ALL_TO_ONE, loopback=True)
        .connect("examine.whole", "validate.whole")
        .connect("examine.over", "due.over", route=Route.FIRST_TO_ALL)
    )


def finish_after(graph: LogicalGraph, operator: str) -> LogicalGraph:
    """`graph` whose last validation and final model come after `operator` has ended."""
    return graph.connect(f"{operator}.finished", "due.progress")


def add_joining(graph: LogicalGraph) -> LogicalGraph:
    """`graph` whose workers go on when others die, and lend those that come back what they need to catch up.

    Args:
        graph: role ``worker`` has operators ``send`` and ``receive`` for what workers exchange, with ports for words,
            and state ``replica``, ``statistics``, ``clocks``, ``window``, ``roll`` and ``course``. Whoever applies what
            is received tells `clocks` and `roll` of nodes that join, as `operators.apply.ApplyFromPeers` does: no node
            is welcomed before.
    """
    return (
        graph.with_state("loan", Loan(), role="worker")
        .with_operator("talk", Talk(), role="worker")
        .with_operator("listen", Listen(), role="worker")
        .with_operator("lend", Lend(), role="worker")
        .with_operator("borrow", Borrow(), role="worker")
        .connect("talk.words", "listen", route=Route.BY_DESTINATION, loopback=True)
        .connect("talk.presence", "receive.words", route=Route.BY_DESTINATION, loopback=True)
        .connect("listen.begins", "send.begun")
        .connect("listen.loans", "lend")
        .connect("lend", "borrow", route=Route.BY_DESTINATION)
    )


def _check_network(network: Network, takes: tuple[int, ...], data: DataSet, name: str) -> None:
    """Refuse a network that takes other images, or knows fewer classes.

    Raises:
        ConfigError: it does.
    """
    has, fix = data.train_images.shape[1:], "have Config.network and Config.dataset fit each other"
    if takes != has:
        what = f"the network takes images of shape {takes}, and those of {name} have another"
        raise ConfigError(what, got=has, fix=fix)
    if network.n_classes < data.n_classes:
        what = f"the network has fewer classes than the {data.n_classes} of {name}"
        raise ConfigError(what, got=network.n_classes, fix=fix)


def _normalise(data: DataSet, name: str) -> Normalise:
    """What normalises the images of a data set.

    Raises:
        DataError: all training pixels of a channel are alike.
    """
    if 0 in data.std:
        what = f"all training pixels of channel {data.std.index(0)} of {name} are alike, and cannot be normalised"
        raise DataError(what, fix="leave the channel out, or set normalise=false")
    return Normalise(mean=data.mean, std=data.std)


def _layer_starts(ranges: Sequence[WeightRange]) -> tuple[int, ...]:
    """Offset at which each layer begins: where the part of the name before its last dot changes."""
    owners = [weights.name.rpartition(".")[0] for weights in ranges]
    return tuple(
        weights.start for number, weights in enumerate(ranges) if not number or owners[number] != owners[number - 1]
    )


def _train_images(data: DataSet, config: TrainingConfig) -> int:
    images = len(data.train_images)
    return images - round(images * config.holdout)
