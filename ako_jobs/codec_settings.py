"""Settings of jobs whose gradients may be sent in fewer bytes, and what they mean for graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from ako_jobs.config import TrainingConfig
from ako_jobs.worker import Setting
from dataflow.errors import ConfigError
from dataflow.graph.logical import LogicalGraph
from operators.coded_window import CodedWindow
from operators.compression import Codec, parse_codec
from operators.kept import CAP_NBYTES, Kept
from operators.layout import Sharding
from operators.ledger import BarrierLedger, Ledger
from operators.owed import Owed
from operators.send import SendCoded, SendGradients
from operators.window import Window

NONE = "none"

STALENESS = 4
"""Setting `tau` of jobs that have it, if it is left out."""

_KEPT_MODELS = 16
"""What a worker keeps for one that joins is so many models, at least."""

Emits = Literal["gradient", "update"]


class CodecConfig(TrainingConfig):
    """Settings of a job with a codec.

    Args:
        codec: what makes fewer bytes of gradients: none, threshold, topk, fp16, int8 or onebit, with its parameters
            behind it, if they are to differ from their defaults: codec=threshold:tau=0.1. See docs/compression.md.
    """

    hints: ClassVar[Mapping[str, str]] = {
        **TrainingConfig.hints,
        "tau": "the threshold of a codec is a part of it: codec=threshold:tau=0.1",
    }

    codec: str = NONE

    @field_validator("codec")
    @classmethod
    def _parses(cls, value: str) -> str:
        if value != NONE:
            require_codec(value)
        return value

    @model_validator(mode="after")
    def _has_values(self) -> Self:
        if self.phantom and self.codec != NONE:
            message = "a phantom has no gradients to code; leave out codec or phantom"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _tau_is_a_bound(self) -> Self:
        tau, consistency = getattr(self, "tau", None), getattr(self, "consistency", "ssp")
        message = ""
        if tau is not None and consistency != "ssp":
            message = (
                f"tau is for consistency=ssp, and consistency is {consistency}; add consistency=ssp, or leave out tau; "
                f"the threshold of a codec is a part of it: codec=threshold:tau={tau}"
            )
        elif tau is not None and self.codec == "threshold" and "consistency" not in self.model_fields_set:
            message = (
                f"tau={tau} is the staleness bound; for a threshold write codec=threshold:tau={tau}, "
                f"and for the bound with a threshold that is adapted codec=threshold:density=0.03 tau={tau}"
            )
        if message:
            raise ValueError(message)
        return self

    @property
    def staleness(self) -> int:
        """With bounded staleness, gradients that a worker may be ahead: setting `tau`."""
        tau: int | None = getattr(self, "tau", None)
        return STALENESS if tau is None else tau

    @property
    def parsed_codec(self) -> Codec | None:
        """The codec; None without one."""
        return None if self.codec == NONE else parse_codec(self.codec)


def require_codec(text: str) -> None:
    """Nothing, if `text` is a codec; for validators of settings.

    Raises:
        ValueError: it is none; the message says what to do.
    """
    try:
        parse_codec(text)
    except ConfigError as error:
        message = f"{error.what}; {error.fix}" if error.fix else error.what
        raise ValueError(message) from None


def send_whole(
    graph: LogicalGraph,
    setting: Setting,
    codec: Codec | None,
    *,
    emits: Emits,
    rated: bool,
    own: bool,
    span: int = 0,
    alike: bool = False,
) -> LogicalGraph:
    """`graph` with an operator ``send`` in role ``worker`` that sends every gradient whole.

    Args:
        graph: has the role.
        setting: of the job.
        codec: its codec.
        emits: what comes of a worker's gradients.
        rated: whether what leaves has the learning rate in it.
        own: whether a worker is sent its own gradients as well.
        span: gradients of a worker that others may lack.
        alike: whether receivers add up what they are sent of one run of cells.
    """
    layout = setting.layout
    cap_nbytes = max(CAP_NBYTES, _KEPT_MODELS * 4 * layout.n_weights)
    graph = graph.with_state("window", Kept(receivers="worker", own=own, cap_nbytes=cap_nbytes), role="worker")
    if codec is None:
        return graph.with_operator("send", SendGradients(layout=layout), role="worker")
    # with a barrier nothing is under way when a checkpoint is taken
    counted = not alike and setting.config.checkpoint_every is not None
    residual = Owed(codec=codec, n_weights=layout.n_weights, layers=setting.layers, counted=counted)
    if alike:
        graph = graph.with_state("ledger", BarrierLedger(owed="residual"), role="worker")
    else:
        graph = with_ledger(graph, setting, "residual", local=emits == "update")
    return graph.with_state("residual", residual, role="worker").with_operator(
        "send",
        SendCoded(layout=layout, rated=rated, updates=emits == "update", span=span, alike=alike),
        role="worker",
    )


def with_ledger(graph: LogicalGraph, setting: Setting, owed: str, *, local: bool) -> LogicalGraph:
    """`graph` with what makes its workers exact where they go on from a checkpoint; see `Ledger`."""
    ledger = Ledger(model=setting.model, warm_start=setting.warm_start, owed=owed, local=local)
    return graph.with_state("ledger", ledger, role="worker")


def window(
    setting: Setting,
    codec: Codec | None,
    receivers: str,
    *,
    updates: bool,
    sharding: Sharding | None = None,
    newest_only: bool = False,
    counted: bool = True,
) -> Window | CodedWindow:
    """The window of a job's workers.

    Args:
        setting: of the job.
        codec: its codec.
        receivers: role whose nodes are sent to.
        updates: whether updates come and leave, and not gradients.
        sharding: the cells that each receiver is sent; all if None.
        newest_only: no accumulation.
        counted: whether rounds may be under way when a checkpoint is taken.
    """
    if codec is None:
        return Window(layout=setting.layout, receivers=receivers, sharding=sharding, newest_only=newest_only)
    return CodedWindow(
        layout=setting.layout,
        layers=setting.layers,
        codec=codec,
        receivers=receivers,
        sharding=sharding,
        updates=updates,
        counted=counted and setting.config.checkpoint_every is not None,
    )
