"""What every training job can be told, with its defaults."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ako_jobs.datasets import LOADER
from ako_jobs.models import network
from ako_jobs.setting_values import literals, required
from dataflow import Keep, StopRules
from dataflow.errors import ConfigError, refusal, suggest
from dataflow.home import expanded
from dataflow.operators_api import WATCHDOG_S
from operators.data import DataRef
from operators.dnn import NetworkSpec
from operators.quarantine import MAX_POISON

OWN_DEFAULTS: dict[str, dict[str, Any]] = {"digits": {"batch": 8, "epochs": 20}}
"""Defaults of data sets that differ from the others'; how they were found is in docs/results.md."""


class TrainingConfig(BaseModel):
    """Settings of a training job. A topology's own `Config` adds to them.

    Args:
        data: data set: digits (in the package), mnist, fashion-mnist or cifar10.
        data_dir: folder of the data set's files; the per-user cache if left out.
        model: network: paper, small, cifar, resnet20, mlp, or auto for the data set's own.
        init: initial weights: uniform, he or glorot.
        lr: learning rate of each mini-batch.
        batch: images of a mini-batch on one node; 8 for digits unless set.
        local_steps: mini-batches that a worker trains on, one after the other on weights of its own, for one gradient:
            the sum of what they say. With more of them the engine costs less, and gradients are older.
        epochs: passes over the training data; 20 for digits unless set.
        target: stop once the test accuracy is at least this.
        hold: validations in a row that must reach the target.
        patience: stop after so many validations without a better validation accuracy.
        time: stop after so many seconds.
        redivide: when workers have died or come back, whether the data are divided anew at the next epoch, or now.
        min_nodes: the fewest nodes to go on with, if others die and cannot be started again.
        max_nodes: the most nodes: free ones join while the job runs, in addition or for nodes that have left or were
            given up; none do if left out. See docs/elasticity.md.
        seed: root of every random number.
        holdout: fraction of the training images kept for validation.
        validate_every: images between two validations; an epoch if left out.
        checkpoint_every: images between two checkpoints, to the nearest gradient; none if left out. See
            docs/checkpoints.md.
        keep_checkpoints: how many whole ones are kept.
        checkpoint_dir: folder at the master, or address such as s3://bucket/folder, for them; the master's state
            directory if left out.
        warm_start: fraction of an epoch that one replica trains before all start from its weights.
        warmup: epochs over which the learning rate rises from lr/n.
        schedule: learning rate after that: constant, step (times gamma at each milestone) or cosine (down to lr_min at
            the last epoch, whatever stops the run before).
        milestones: with schedule=step, epochs at which the rate falls, such as 4,8.
        gamma: with schedule=step, factor at each milestone.
        lr_min: with schedule=cosine, learning rate at the end.
        momentum: share of its velocity that a worker keeps from gradient to gradient. Each worker has its own: bsp
            equals momentum on one machine; where updates add up (Ako, async, ssp), many workers can diverge with a
            momentum that one worker bears, so lower lr or momentum there.
        nesterov: whether momentum looks ahead.
        weight_decay: times the weights, added to every gradient; for all weights, biases included.
        average: epochs over which a worker's weights are averaged for validations and for the model that is kept, such
            as 0.05; 0: they are not, which is the default with a rule of servers but asgd, ssgd and downpour. Accuracy
            comes sooner, and the rate need not fall to nothing for it.
        max_poison: gradients of a node that are not finite, and that the job bears: each counts as a zero gradient.
        watchdog: seconds that any task of an operator may run; if it takes longer, and ten times as long as the longest
            before it, or five minutes for the first, it hangs, and its node fails with all stacks in the log; or off.
        normalise: whether pixels get zero mean and unit variance.
        phantom: with --sim, whether network and images are replaced by some that only have a size: nothing is learnt,
            and thousands of nodes can be studied.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    gone: ClassVar[Mapping[str, str]] = {
        "rule": "update rules are those of servers: ako run parameter_server rule=...; here, see momentum and nesterov",
        "look_ahead": "it is for ako and all_to_all, where nobody keeps all momentum; with parameter_server use"
        " rule=dana-slim, else nesterov=true",
    }
    """Settings that a job does not have, but others have or it once had, and what to do instead."""

    hints: ClassVar[Mapping[str, str]] = {}
    """Of settings whose value is of no type that it takes, what may have been meant."""

    data: Literal["digits", "mnist", "fashion-mnist", "cifar10"] = "digits"
    data_dir: str | None = None
    model: str = "auto"
    init: Literal["uniform", "he", "glorot"] = "uniform"
    lr: float = Field(default=0.02, gt=0)
    batch: int = Field(default=16, ge=1)
    local_steps: int = Field(default=1, ge=1)
    epochs: float = Field(default=10, gt=0)
    target: float | None = Field(default=None, gt=0, le=1)
    hold: int = Field(default=1, ge=1)
    patience: int | None = Field(default=None, ge=1)
    time: float | None = Field(default=None, gt=0)
    redivide: Literal["epoch", "now"] = "epoch"
    min_nodes: int = Field(default=1, ge=1)
    max_nodes: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0)
    holdout: float = Field(default=0.1, ge=0, lt=1)
    validate_every: int | None = Field(default=None, ge=1)
    checkpoint_every: int | None = Field(default=None, ge=1)
    keep_checkpoints: int = Field(default=3, ge=1)
    checkpoint_dir: str | None = None
    warm_start: float = Field(default=0.1, ge=0, le=1)
    warmup: float = Field(default=0.0, ge=0)
    schedule: Literal["constant", "step", "cosine"] = "constant"
    milestones: str | None = None
    gamma: float = Field(default=0.1, gt=0, le=1)
    lr_min: float = Field(default=0.0, ge=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(default=0.0, ge=0)
    average: float = Field(default=0.05, ge=0)
    max_poison: int = Field(default=MAX_POISON, ge=0)
    watchdog: PositiveFloat | Literal["off"] = WATCHDOG_S
    normalise: bool = True
    phantom: bool = False

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_data(cls, settings: Any) -> Any:
        if not isinstance(settings, dict):
            return settings
        return {**OWN_DEFAULTS.get(settings.get("data", cls.model_fields["data"].default), {}), **settings}

    @field_validator("data_dir", "checkpoint_dir")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        return value if value is None or "://" in value else str(expanded(value).resolve())

    @field_validator("milestones")
    @classmethod
    def _ascending(cls, value: str | None) -> str | None:
        try:
            epochs = numbers(value)
        except ValueError:
            epochs = (0.0,)
        if not all(before < after < math.inf for before, after in pairwise((0.0, *epochs))):
            message = "must be ascending numbers of epochs, all above 0; write them like 4,8"
            raise ValueError(message)
        return value

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        message = ""
        if self.schedule == "step" and not self.milestones:
            message = "schedule=step needs milestones; write milestones=4,8"
        elif self.schedule == "cosine" and self.lr_min > self.lr:
            message = f"lr_min={self.lr_min:g} is above lr={self.lr:g}; use a smaller lr_min"
        elif self.phantom and self.target is not None:
            message = "a phantom learns nothing, so it reaches no target; leave out target or phantom"
        elif self.phantom and self.patience is not None:
            message = "a phantom is not validated, so nobody loses patience with it; leave out patience or phantom"
        elif self.nesterov and not self.momentum:
            message = "nesterov needs momentum; add momentum=0.9"
        for key, schedule in (("milestones", "step"), ("gamma", "step"), ("lr_min", "cosine")):
            if self.schedule != schedule and getattr(self, key) != type(self).model_fields[key].default:
                message = f"{key} is for schedule={schedule}, and schedule is {self.schedule}; add schedule={schedule}"
        if message:
            raise ValueError(message)
        return self

    def milestone_epochs(self) -> tuple[float, ...]:
        """Epochs at which the learning rate falls, with schedule=step."""
        return numbers(self.milestones)

    @classmethod
    def parse(cls, settings: dict[str, Any]) -> Self:
        """A configuration from settings, such as those of a command line.

        Raises:
            ConfigError: an unknown key, with the nearest known one, or a value that does not fit.
        """
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise _explained(error.errors()[0], cls.model_fields, cls.gone, cls.hints) from None

    def watchdog_s(self) -> float | None:
        """Seconds of `JobSpec.watchdog_s`."""
        return None if self.watchdog == "off" else self.watchdog

    def network(self) -> NetworkSpec:
        """The network to train; a job with a network of its own overrides this."""
        return network(self.model, self.data, self.init)

    def dataset(self) -> DataRef:
        """The data to train on; a job with data of its own overrides this, and `network`."""
        return DataRef(loader=LOADER, name=self.data, data_dir=self.data_dir)

    def keep(self) -> Keep:
        """What becomes of checkpoints."""
        return Keep(place=self.checkpoint_dir or "", last=self.keep_checkpoints)

    def stop_rules(self) -> StopRules:
        """When the coordinator stops the job."""
        return StopRules(
            report="validate.results",
            metric="accuracy",
            target=self.target,
            hold=self.hold,
            patience=self.patience,
            patience_metric="validation_accuracy" if self.holdout else "accuracy",
            time_s=self.time,
        )


_NO_TYPE = ("int_parsing", "int_from_float", "int_type")
"""What pydantic calls values that are no integer."""


def numbers(text: str | None) -> tuple[float, ...]:
    """The numbers of a setting that is written like 4,8; none if it is left out.

    Raises:
        ValueError: something is no number.
    """
    return () if text is None else tuple(float(part) for part in text.split(","))


def _explained(
    error: ErrorDetails, fields: Mapping[str, FieldInfo], gone: Mapping[str, str], hints: Mapping[str, str]
) -> ConfigError:
    """A wrong setting, in terms of its key: a value may have been refused by each part of a union in its own words."""
    key, kind, message = str(next(iter(error["loc"]), "")), error["type"], refusal(error)
    if kind == "extra_forbidden" and key not in fields:
        return ConfigError(what="unknown key", got=key, fix=gone.get(key) or suggest(key, fields))
    if key not in fields or kind in ("value_error", "assertion_error"):  # raised by a validator of the job's own
        return ConfigError(what=f"{key}: {message}" if key else message, got=error["input"] if key else None)
    if kind == "missing":
        return ConfigError(what=f"{key}: must be given", fix=f"write {key}=value")
    field = fields[key]
    words = required(field)
    near = difflib.get_close_matches(str(error["input"]).lower(), literals(field), n=1)
    hint = hints.get(key, "") if kind in _NO_TYPE else ""
    fix = f"did you mean {near[0]!r}?" if near else hint
    return ConfigError(what=f"{key}: must be {words}" if words else f"{key}: {message}", got=error["input"], fix=fix)
