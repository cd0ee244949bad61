"""Who the other ends of a node's links are: the handshake's checks, which incarnation may speak, who was heard when.

Invariant: all that is kept about a link belongs to one incarnation of either end. A peer that comes back as another
one is never resumed: it is told to wait until the membership says that it is part of the job again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dataflow.errors import WireError
from dataflow.transport.frames import WIRE_VERSION, only_frame, pack_control, parse
from dataflow.transport.generated import data_pb2


@dataclass(frozen=True, slots=True)
class Identity:
    """This end of the links.

    Args:
        node: number of the node.
        job: identifier of the job.
        plan_hash: hash of plan and code bundle.
        incarnation: how often the node has been started for the job, from 0.
    """

    node: int
    job: str
    plan_hash: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a peer is not talked to.

    Args:
        reason: for people.
        retry: whether it may be admitted later.
    """

    reason: str
    retry: bool = False


class Peers:
    """The incarnations of the peers: as the membership says, or else as first met."""

    def __init__(self) -> None:
        self.epoch = 0
        self._incarnations: dict[int, int] = {}
        self._members: frozenset[int] | None = None
        self._heard_s: dict[int, float] = {}

    def hear(self, node: int, now: float) -> None:
        """Note that something has come from a node over its own link, at `now` on the links' clock."""
        self._heard_s[node] = now

    def heard_s(self, node: int) -> float:
        """When something came from a node last; minus infinity if nothing has."""
        return self._heard_s.get(node, -math.inf)

    def incarnation(self, node: int) -> int | None:
        """The incarnation that node `node` must have, if it is known."""
        return self._incarnations.get(node)

    def admits(self, node: int) -> bool:
        """Whether a node may be a member, as far as is known."""
        return self._members is None or node in self._members

    def meet(self, node: int, incarnation: int, epoch: int) -> Refusal | None:
        """Why node `node` may not speak as `incarnation`, knowing membership `epoch`; None admits it."""
        known = self._incarnations.get(node)
        if self._members is not None and node not in self._members:
            reason = f"node {node} is not a member as of epoch {self.epoch}"
            return Refusal(reason, retry=epoch > self.epoch or (known is not None and incarnation > known))
        if known is None:
            self._incarnations[node] = incarnation
        elif known != incarnation:
            reason = f"node {node} comes as incarnation {incarnation}, but incarnation {known} is the member"
            return Refusal(reason, retry=incarnation > known)
        return None

    def update(self, epoch: int, incarnations: Mapping[int, int]) -> frozenset[int]:
        """Take a new membership; returns the nodes known so far that have left or are another incarnation now.

        Args:
            epoch: number of the membership; one that is not newer than the last changes nothing.
            incarnations: the members' incarnations by node.
        """
        if epoch <= self.epoch:
            return frozenset()
        self.epoch = epoch
        changed = frozenset(node for node, known in self._incarnations.items() if incarnations.get(node) != known)
        self._incarnations.update(incarnations)
        self._members = frozenset(incarnations)
        return changed


def hello(identity: Identity, target: int, epoch: int) -> bytes:
    """The packet that opens a connection to node `target`."""
    return pack_control(
        data_pb2.KIND_HELLO,
        data_pb2.Hello(
            wire_version=WIRE_VERSION,
            job=identity.job,
            plan_hash=identity.plan_hash,
            source=identity.node,
            target=target,
            incarnation=identity.incarnation,
            epoch=epoch,
        ),
    )


def refused(refusal: Refusal) -> bytes:
    """The packet that declines a connection or breaks it off."""
    return pack_control(data_pb2.KIND_REFUSED, data_pb2.Refused(reason=refusal.reason, retry=refusal.retry))


def read_hello(packet: bytes) -> data_pb2.Hello:
    """The Hello of a connection's first packet.

    Raises:
        WireError: the packet is something else.
    """
    greeting = data_pb2.Hello()
    header, payload = only_frame(packet)
    if header.kind != data_pb2.KIND_HELLO:
        what = "a connection begins with something other than a Hello"
        raise WireError(what, got=header.kind)
    parse(payload, greeting)
    return greeting


def mismatch(identity: Identity, greeting: data_pb2.Hello) -> Refusal | None:
    """Why `greeting` cannot be for `identity`: both values of what differs; None if it can."""
    pairs = (
        ("wire version", WIRE_VERSION, greeting.wire_version),
        ("job", identity.job, greeting.job),
        ("plan hash", identity.plan_hash, greeting.plan_hash),
        ("target node", identity.node, greeting.target),
    )
    for name, here, there in pairs:
        if here != there:
            return Refusal(f"{name} is {here!r} at node {identity.node}, {there!r} at node {greeting.source}")
    return None
