"""What is declared before a simulation begins: what happens to nodes and links, and when; and who comes and goes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from string import ascii_lowercase
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from dataflow.errors import ConfigError, refusal
from dataflow.quantities import bytes_per_second

LONGEST_S = 1e9
"""No fault begins later or takes longer: virtual seconds are floating-point numbers, exact to 0.1 us up to there."""

PATIENCE_S = 2.0
"""Seconds after which a link that is down counts as broken."""

Moment = Annotated[float, Field(ge=0, le=LONGEST_S)]
Duration = Annotated[float, Field(gt=0, le=LONGEST_S)]
Factor = Annotated[float, Field(ge=1e-6, le=1e6)]
ByteRate = Annotated[float, Field(ge=1, le=1e15)]


class _Happening(BaseModel):
    """What all have: the second they begin at."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    at_s: Moment

    @property
    def nodes(self) -> tuple[int, ...]:
        """All nodes that it is about."""
        return ()


class _Fault(_Happening):
    """What has a node that it is about."""

    node: NonNegativeInt

    @property
    def nodes(self) -> tuple[int, ...]:
        """That node."""
        return (self.node,)


class NodeFails(_Fault):
    """A node does nothing more; its agent is never heard of again, or is back after a while."""

    kind: Literal["fail"] = "fail"
    for_s: Duration | None = None


class NodePauses(_Fault):
    """A node does nothing for a while, and then goes on where it was."""

    kind: Literal["pause"] = "pause"
    for_s: Duration


class NodeSlows(_Fault):
    """All that a node does for a while takes `factor` times as long."""

    kind: Literal["slow"] = "slow"
    for_s: Duration
    factor: Factor


class LinkFails(_Fault):
    """Nothing passes between two nodes for a while, or ever again; what is sent meanwhile waits.

    Of two nodes that are cut off each other for more than `PATIENCE_S` seconds, one is buried.
    """

    kind: Literal["cut"] = "cut"
    other: NonNegativeInt
    for_s: Duration | None = None

    @property
    def nodes(self) -> tuple[int, ...]:
        """The two nodes."""
        return (self.node, self.other)


class LinkChanges(_Fault):
    """A node's link carries so many bytes per second from now on, up and down alike."""

    kind: Literal["rate"] = "rate"
    rate: ByteRate


class NodeLeaves(_Fault):
    """A node is drained: it gives the others all that it has begun, and leaves the job, which goes on."""

    kind: Literal["leave"] = "leave"


class NodeJoins(_Happening):
    """A machine that takes no part so far joins the job, as soon as a place is open."""

    kind: Literal["join"] = "join"


Fault = Annotated[
    NodeFails | NodePauses | NodeSlows | LinkFails | LinkChanges | NodeLeaves | NodeJoins, Field(discriminator="kind")
]

_NODE, _AT, _FOR = r"(?P<node>\d+)", r"@(?P<at_s>[\d.]+)", r"\+(?P<for_s>[\d.]+)"
_FORMS: dict[str, tuple[type[Fault], str, str]] = {
    "fail": (NodeFails, rf":{_NODE}{_AT}(?:{_FOR})?", "fail:2@10"),
    "pause": (NodePauses, f":{_NODE}{_AT}{_FOR}", "pause:2@10+1.5"),
    "slow": (NodeSlows, rf":{_NODE}{_AT}{_FOR}x(?P<factor>[\d.]+)", "slow:2@10+5x4"),
    "cut": (LinkFails, rf":{_NODE}-(?P<other>\d+){_AT}(?:{_FOR})?", "cut:0-2@10+3"),
    "rate": (LinkChanges, rf":{_NODE}{_AT}=(?P<rate>.+)", "rate:2@10=10mbit"),
    "leave": (NodeLeaves, f":{_NODE}{_AT}", "leave:2@10"),
    "join": (NodeJoins, _AT, "join@10"),
}


def parse_fault(text: str) -> Fault:
    """A fault from its short form.

    That is ``fail:2@10`` (node 2, at second 10), ``fail:2@10+5`` (its agent is back 5 s later), ``pause:2@10+1.5`` (for
    1.5 s), ``slow:2@10+5x4`` (for 5 s everything takes 4 times as long), ``cut:0-2@10+3`` (between nodes 0 and 2, for
    3 s), ``cut:0-2@10`` (for ever), ``rate:2@10=10mbit`` (what node 2's link carries from then on), ``leave:2@10`` (it
    is drained) or ``join@10`` (another machine joins).

    Raises:
        ConfigError: it is not written like one of these.
    """
    kind = text[: len(text) - len(text.lstrip(ascii_lowercase))]
    rest = text.removeprefix(kind)
    forms = ", ".join(example for _, _, example in _FORMS.values())
    if kind not in _FORMS:
        raise ConfigError(what="there is no such fault", got=text, fix=f"write one of: {forms}")
    make, pattern, example = _FORMS[kind]
    found = re.fullmatch(pattern, rest)
    try:
        if found:
            said: dict[str, object] = dict(found.groupdict())
            if make is LinkChanges:
                said["rate"] = bytes_per_second(found["rate"])
            return make.model_validate(said)
    except ValidationError as error:
        first = error.errors()[0]
        what = f"the fault cannot be used: {first['loc'][0]}: {refusal(first)}"
        raise ConfigError(what=what, got=text, fix=f"write it like {example}") from None
    raise ConfigError(what="the fault cannot be read", got=text, fix=f"write it like {example}")


def check_faults(faults: Sequence[Fault], nodes: int, detection_s: float = 0.0) -> None:
    """Nothing, if the faults are about nodes that exist; one that fails is away until that is known, at least.

    Raises:
        ConfigError: one is not, cuts a node off itself, or has a node fail that has failed and is not back.
    """
    for fault in faults:
        if any(node >= nodes for node in fault.nodes):
            what = f"the fault at second {fault.at_s:g} is about a node that does not exist"
            raise ConfigError(what, got=max(fault.nodes), fix=f"nodes: 0 to {nodes - 1}")
        if len(set(fault.nodes)) < len(fault.nodes):
            what = f"the fault at second {fault.at_s:g} cuts a node off itself"
            raise ConfigError(what, got=fault.nodes[0], fix="name two different nodes")
    gone_until_s: dict[int, float] = {}
    for fails in sorted((each for each in faults if isinstance(each, NodeFails)), key=lambda each: each.at_s):
        if fails.at_s < gone_until_s.get(fails.node, 0.0):
            what = f"node {fails.node} cannot fail at second {fails.at_s:g}: it has failed before, and is not back"
            raise ConfigError(what, fix="have it fail once, for as long as it is to be away")
        gone_until_s[fails.node] = fails.at_s + max(math.inf if fails.for_s is None else fails.for_s, detection_s)


def check_joining(faults: Sequence[Fault], free: int) -> None:
    """Nothing, if there may be a place for everybody who joins.

    Args:
        faults: what happens.
        free: places that nobody has at the start.

    Raises:
        ConfigError: more join than there can be places for.
    """
    joining = sorted(each.at_s for each in faults if isinstance(each, NodeJoins))
    for count, at_s in enumerate(joining, start=1):
        gone = {each.node for each in faults if isinstance(each, NodeFails | NodeLeaves) and each.at_s <= at_s}
        if count > free + len(gone):
            what = f"nobody can join at second {at_s:g}: no place is open"
            had = f"{free} of max_nodes are free at the start, {count - 1} join, and {len(gone)} leave or fail before"
            raise ConfigError(what, got=had, fix="set a larger max_nodes, or have fewer join")
