"""Codecs: how much of a gradient is sent at once, and how. The rest is sent later (error feedback)."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from dataflow.errors import ConfigError, refusal, suggest
from operators.compression.update import Packing


class _Codec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Threshold(_Codec):
    """Plus or minus tau for every weight that is owed more than tau (strom_sparse_sgd.txt).

    Args:
        tau: in gradient units. If None it is adapted so that a share `density` of the weights is sent.
        density: see `tau`.
        per_layer: adapt a tau for each layer.
        most: what a weight is sent at once at most: ``one`` tau, or as many as ``fit``, up to 255.
        clip: what stays owed to a weight that is sent is cut to `clip` times tau; never if None. What is cut is lost.
        packing: of the positions; ``auto`` takes what is smallest.
    """

    kind: Literal["threshold"] = "threshold"
    tau: float | None = Field(default=None, ge=1e-30, le=1e30)
    density: float = Field(default=0.03, gt=0, le=0.5)
    per_layer: bool = False
    most: Literal["one", "fit"] = "one"
    clip: float | None = Field(default=None, ge=1)
    packing: Packing = "auto"

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        adapted = self.per_layer or self.density != type(self).model_fields["density"].default
        if self.tau is not None and adapted:
            what = "density and per_layer are for a tau that is adapted; leave out tau, or the two"
            raise ValueError(what)
        return self


class TopK(_Codec):
    """The weights that are owed most, as float32.

    Args:
        density: share of the weights that is sent, at least one weight.
    """

    kind: Literal["topk"] = "topk"
    density: float = Field(default=0.003, gt=0, le=1)

    def count(self, n_weights: int) -> int:
        """How many of so many weights are sent."""
        return max(1, min(n_weights, math.floor(self.density * n_weights + 0.5)))


class Half(_Codec):
    """Every weight as float16."""

    kind: Literal["fp16"] = "fp16"


class Int8(_Codec):
    """Every weight as a multiple, from -127 to 127, of a 127th of the largest magnitude in its chunk."""

    kind: Literal["int8"] = "int8"


class OneBit(_Codec):
    """Every weight as one of two means of its chunk: of what is negative there, and of the rest (Seide et al. 2014)."""

    kind: Literal["onebit"] = "onebit"


Codec = Annotated[Threshold | TopK | Half | Int8 | OneBit, Field(discriminator="kind")]
"""Any of them, told apart by `kind`."""

_CODECS: dict[str, type[_Codec]] = {
    "threshold": Threshold,
    "topk": TopK,
    "fp16": Half,
    "int8": Int8,
    "onebit": OneBit,
}
_ANY: TypeAdapter[Codec] = TypeAdapter(Codec)


def pooled(codec: Codec, times: int) -> Codec:
    """A codec with room for what so many updates of `codec` say: that many times its density, and its tau as often."""
    match codec:
        case Threshold(tau=None):
            return codec.model_copy(update={"density": min(0.5, times * codec.density), "most": "fit"})
        case Threshold():
            return codec.model_copy(update={"most": "fit"})
        case TopK():
            return codec.model_copy(update={"density": min(1.0, times * codec.density)})
        case _:
            return codec


def parse_codec(text: str) -> Codec:
    """A codec written as its kind and what differs from its defaults, such as ``threshold:tau=0.1:packing=rice``.

    Raises:
        ConfigError: there is no such codec, or it has no such parameter or value.
    """
    kind, *settings = text.split(":")
    if kind not in _CODECS:
        what, begun = "there is no such codec", re.match(r"\w+", kind)
        if begun and begun[0] in _CODECS:
            raise ConfigError(what, got=text, fix="write parameters behind colons, as in threshold:tau=0.1")
        raise ConfigError(what, got=kind, fix=suggest(kind, _CODECS))
    values: dict[str, Any] = {"kind": kind}
    for setting in settings:
        key, equals, value = setting.partition("=")
        known = _CODECS[kind].model_fields.keys() - {"kind"}
        if key not in known:
            what = f"codec {kind} has no such parameter"
            raise ConfigError(what, got=key, fix=suggest(key, known) if known else "leave it out")
        if not equals or key in values:
            what = f"{key} of codec {kind} must be given once, with a value"
            raise ConfigError(what, got=text, fix=f"write {key}=VALUE")
        if "_" in value:
            what = f"{key} of codec {kind} is not valid"
            raise ConfigError(what, got=value, fix="write numbers without underscores")
        values[key] = None if value == "none" else value
    try:
        return _ANY.validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][-1]) if len(first["loc"]) > 1 else ""
        what = f"{key} of codec {kind} is not valid" if key else f"codec {kind} is not valid"
        raise ConfigError(what, got=first["input"] if key else text, fix=refusal(first)) from error
