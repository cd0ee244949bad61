"""A worker's replica that is shared over a tree: what a job says of it, and how it begins on a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from dataflow.node_context import NodeContext
from dataflow.state import StateElement, StateKind
from operators.compression import Codec, Residual
from operators.contribution import Total
from operators.dnn import NetworkSpec
from operators.layout import Layout
from operators.messages import Vector
from operators.newcomers import Newcomers
from operators.schedule import Schedule
from operators.share import Sharing, Waves
from operators.share_clocks import Consistency
from operators.shared_replica_state import Flow, SharedReplicaState
from operators.survivors import Survivors
from operators.topology import Edges, Topology, behind
from operators.warm_start import WarmStart, initial_weights


class SharedReplica(StateElement):
    """A whole model on every node, all equal at the start, that updates are shared of over a tree.

    Args:
        model: the network.
        warm_start: training before the start; none if None.
        topology: the tree.
        then: what it is changed to while the nodes run; None: it stays.
        layout: the model's cells.
        consistency: what a worker waits for: ``bsp`` rounds, ``ssp`` and ``assp`` bounds, ``eventual`` nobody.
        flow: ``newest``: of each change as soon as the neighbour has taken in what it was told before; ``period``:
            again and again, whatever waits to be sent.
        every: gradients between two pushes, and pulls.
        waves: see `Sharing`.
        codec: what makes fewer bytes of sums; none if None.
        layers: offset at which each layer begins.
        rate: learning rate of gradients, for codecs.
        role: of the nodes.
    """

    kind: ClassVar[StateKind] = StateKind.SUMMED
    model: NetworkSpec
    warm_start: WarmStart | None = None
    topology: Topology
    then: Topology | None = None
    layout: Layout
    consistency: Consistency = "eventual"
    flow: Flow = "newest"
    every: int = 1
    waves: Waves = "neighbours"
    codec: Codec | None = None
    layers: tuple[int, ...] = (0,)
    rate: Schedule | None = None
    role: str = "worker"

    @property
    def rebuilt(self) -> bool:
        """Whether the sums that nodes were told are those that were made, one at a time, and the tree stays."""
        plain = self.codec is None and self.flow == "newest" and self.waves == "neighbours"
        return plain and self.consistency != "bsp" and self.then is None

    @property
    def grows(self) -> bool:
        """Whether nodes join while the others go on; with a bound, these would wait for one that begins."""
        return self.rebuilt and self.consistency == "eventual"

    def create(self, node: NodeContext) -> SharedReplicaState:
        """The initial weights, by the job's seed, and nothing shared yet."""
        return self.begin(initial_weights(self.model, self.warm_start, node.seed).copy(), node)

    def begin(self, initial: Vector, node: NodeContext) -> SharedReplicaState:
        """The state of a node whose weights are `initial`.

        Raises:
            ConfigError: the topology is no tree of so many nodes.
        """
        members, life = members_at_start(node, self.role), node.incarnation if self.grows else 0
        edges = edges_among(self.topology, members)
        sides = {} if life else behind(edges, node.index)
        sharing = Sharing(
            node.index,
            sides,
            Total(np.zeros_like(initial), np.zeros(max(node.members[self.role]) + 1, np.int64)),
            above=next((neighbour for neighbour, nodes in sides.items() if members[0] in nodes), None),
            waves=self.waves,
            eager=self.consistency in ("ssp", "assp"),
            acknowledges=self.consistency != "bsp" and self.flow == "newest",
            keeps=self.rebuilt,
            life=life,
        )
        sharing.grows, sharing.quiet = self.grows, life > 0
        survivors = newcomers = None
        if self.rebuilt and (self.grows or len(members) > 1):
            size = max(node.members[self.role]) + 1
            survivors = Survivors(node.index, members, edges, size=size, life=life)
        if self.grows and survivors is not None:
            newcomers = Newcomers(sharing, survivors, node.members[self.role], life)
        if self.codec:
            Residual.compile(self.codec)
        return SharedReplicaState(
            initial,
            sharing,
            self.layout,
            consistency=self.consistency,
            flow=self.flow,
            every=self.every,
            codec=self.codec,
            layers=self.layers,
            rate=self.rate,
            edges=edges,
            then=None if self.then is None else edges_among(self.then, members),
            survivors=survivors,
            newcomers=newcomers,
        )


def members_at_start(node: NodeContext, role: str) -> tuple[int, ...]:
    """The nodes of a role that are there when the job begins."""
    return tuple(member for member in node.members[role] if member not in node.vacant)


def edges_among(topology: Topology, members: Sequence[int]) -> Edges:
    """The edges of a topology, by numbers of nodes.

    Raises:
        ConfigError: it is no tree of so many nodes.
    """
    return tuple(sorted((members[one], members[other]) for one, other in topology.of(len(members))))
