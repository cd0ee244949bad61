"""A simulated cluster in a user's words: the options of ``ako run --sim``, each written as it is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, PositiveFloat, PositiveInt, ValidationError

from dataflow import ClusterModel, parse_fault
from dataflow.errors import ConfigError, refusal
from dataflow.quantities import bytes_per_second, duration

_OPTIONS = {
    "speeds": "speed",
    "step_s": "step-time",
    "latency_s": "latency",
    **{name: name for name in ("shares", "tasks", "cpu", "cores")},
}


def _several(given: object) -> Sequence[object]:
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, Sequence):
        message = 'must be "text", or a list of these'
        raise ValueError(message)
    return given


def no_boolean(given: object) -> object:
    """What is to be a number, unless it is true or false, which pydantic takes for 1 and 0."""
    if isinstance(given, bool):
        message = "must be a number"
        raise ValueError(message)
    return given


Count = Annotated[PositiveInt, BeforeValidator(no_boolean)]
"""How many of something; one at least."""

Texts = Annotated[tuple[str, ...], BeforeValidator(_several)]
"""Some texts; one may stand for itself."""


class ClusterOptions(BaseModel):
    """What a user says of a simulated cluster; what is left out is as a `ClusterModel` comes.

    Args:
        bandwidth: of every node's link each way, such as 1gbit, or of one node's, such as 3=10mbit.
        latency: between two nodes, such as 100us.
        shares: how what goes to several nodes at once shares a link; see `ClusterModel`.
        compute: how long tasks take; see `ClusterModel`.
        step_time: mean time of a node's gradient, such as 5ms.
        tasks: compute tasks of a node.
        speed: how many times as fast as the others a node is, such as 3=0.5.
        cpu: what every node may use of the processor, in cores.
        cores: those of one machine that all nodes share.
        fault: see `parse_fault`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bandwidth: Texts = ()
    latency: str = ""
    shares: str = ""
    compute: str = ""
    step_time: str = ""
    tasks: Count | None = None
    speed: Texts = ()
    cpu: Annotated[PositiveFloat, BeforeValidator(no_boolean)] | None = None
    cores: Count | None = None
    fault: Texts = ()

    def plus(self, key: str, value: str) -> Self:
        """These options with one more: added to those of a key that may be given often, else in place of the old one.

        Raises:
            ConfigError: the value cannot be used.
        """
        before = getattr(self, key)
        try:
            return self.model_validate({**dict(self), key: (*before, value) if isinstance(before, tuple) else value})
        except ValidationError as error:
            raise ConfigError(what=f"{key}: {refusal(error.errors()[0])}", got=value) from None

    def model(self) -> ClusterModel:
        """The cluster they describe.

        Raises:
            ConfigError: one of them cannot be used.
        """
        said: dict[str, Any] = {"rates": {}, "speeds": {}}
        for text in self.bandwidth:
            node, equals, rate = text.rpartition("=")
            if equals:
                said["rates"][_node(node, text, "3=10mbit")] = bytes_per_second(rate)
            else:
                said["rate"] = bytes_per_second(rate)
        for text in self.speed:
            node, _, factor = text.rpartition("=")
            said["speeds"][_node(node, text, "3=0.5")] = factor
        if self.latency:
            said["latency_s"] = duration(self.latency)
        if self.step_time:
            said["step_s"] = duration(self.step_time)
            said["compute"] = "constant"
        said |= {key: value for key in ("shares", "compute") if (value := getattr(self, key))}
        said |= {key: value for key in ("tasks", "cpu", "cores") if (value := getattr(self, key)) is not None}
        said["faults"] = tuple(parse_fault(text) for text in self.fault)
        try:
            return ClusterModel.model_validate(said)
        except ValidationError as error:
            first = error.errors()[0]
            option = _OPTIONS.get(str(first["loc"][0]), "compute")
            raise ConfigError(what=f"--{option}: {refusal(first)}", got=first["input"]) from None


def _node(text: str, whole: str, example: str) -> int:
    if not text.isdecimal():
        raise ConfigError(what="not about a node", got=whole, fix=f"write it like {example}")
    return int(text)
