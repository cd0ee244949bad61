"""Physical plans: a graph expanded to instances on nodes, as frozen data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from dataflow.graph.logical import Edge, LogicalGraph, canonical_json
from dataflow.operators_api import Pool


class StreamId(NamedTuple):
    """A stream: edge number `edge` of the graph, from node `source` to node `target`."""

    edge: int
    source: int
    target: int


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NodePlan(_Data):
    """One node.

    Args:
        index: its number.
        name: its name.
        roles: the roles it plays.
        compute_tasks: tasks of its compute pool.
        network_tasks: tasks of its network pool.
    """

    index: int
    name: str
    roles: tuple[str, ...]
    compute_tasks: int = 1
    network_tasks: int = 1


class ChainPlan(_Data):
    """Operators of one role that run as one task, in order; the first one's inputs are the chain's."""

    operators: tuple[str, ...]
    role: str
    pool: Pool

    @property
    def head(self) -> str:
        """Id of the first operator, and of the chain."""
        return self.operators[0]


class PhysicalPlan(_Data):
    """What a master sends to nodes, and what both drivers run.

    Args:
        graph: the logical graph.
        nodes: every node, by number.
        chains: every chain of every role.
        window_nbytes: bytes a sender may have under way on one stream: its first credit.
        seed: root of every random number of the job.
    """

    graph: LogicalGraph
    nodes: tuple[NodePlan, ...]
    chains: tuple[ChainPlan, ...]
    window_nbytes: int = 4 << 20
    seed: int = 0

    def members(self) -> dict[str, tuple[int, ...]]:
        """Node numbers of every role, in rank order."""
        return {
            role.name: tuple(node.index for node in self.nodes if role.name in node.roles) for role in self.graph.roles
        }

    def chains_on(self, node: int) -> tuple[ChainPlan, ...]:
        """Chains that run on a node, in graph order."""
        roles = self.nodes[node].roles
        return tuple(chain for chain in self.chains if chain.role in roles)

    def stream_edges(self) -> dict[int, Edge]:
        """Edges that cross nodes, by their number in the graph."""
        return {number: edge for number, edge in enumerate(self.graph.edges) if edge.route is not None}

    def streams(self) -> Iterator[StreamId]:
        """Every stream between two different nodes."""
        members = self.members()
        for number, edge in self.stream_edges().items():
            for source in members[self.graph.operator(edge.source).role]:
                for target in members[self.graph.operator(edge.target).role]:
                    if source != target:
                        yield StreamId(number, source, target)

    def links_from(self, node: int) -> tuple[int, ...]:
        """Nodes that `node` sends to."""
        return tuple(sorted({stream.target for stream in self.streams() if stream.source == node}))

    def digest(self) -> str:
        """SHA-256 of the plan, in hex: two nodes with the same digest run the same job."""
        return hashlib.sha256(canonical_json(self).encode()).hexdigest()
