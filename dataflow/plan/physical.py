"""Physical plans: a graph expanded to instances on nodes, as frozen data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple, Self

from pydantic import BaseModel, ConfigDict, model_validator

from dataflow.errors import PlanError
from dataflow.graph.logical import LogicalGraph, canonical_json
from dataflow.graph.specs import Edge
from dataflow.operators_api import Pool

MAX_NODES = 100_000
MAX_OPERATORS = 10_000


def check_size(nodes: int, operators: int) -> None:
    """Nothing, if a plan of so many nodes and operators is within `MAX_NODES` and `MAX_OPERATORS`.

    Raises:
        PlanError: it is not.
    """
    for what, count, limit in (("nodes", nodes, MAX_NODES), ("operators", operators, MAX_OPERATORS)):
        if count > limit:
            raise PlanError(what=f"a plan has at most {limit} {what}", got=count, fix=f"use fewer {what}")


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
        vacant: nodes that are not there at the start, and may join later.
    """

    graph: LogicalGraph
    nodes: tuple[NodePlan, ...]
    chains: tuple[ChainPlan, ...]
    window_nbytes: int = 4 << 20
    seed: int = 0
    vacant: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        check_size(len(self.nodes), len(self.graph.operators))
        if [node.index for node in self.nodes] != list(range(len(self.nodes))):
            raise PlanError(what="the nodes of a plan are not numbered from 0, in order")
        return self

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
            sources, targets = self.graph.ends(edge, members)
            for source in sources:
                for target in targets:
                    if source != target:
                        yield StreamId(number, source, target)

    def links_from(self, node: int) -> tuple[int, ...]:
        """Nodes that `node` sends to."""
        members, reached = self.members(), set[int]()
        for edge in self.stream_edges().values():
            sources, targets = self.graph.ends(edge, members)
            if node in sources:
                reached.update(targets)
        return tuple(sorted(reached - {node}))

    def digest(self) -> str:
        """SHA-256 of the plan, in hex: two nodes with the same digest run the same job.

        Where the user's files lie does not matter to it.
        """
        return hashlib.sha256(canonical_json(self).encode()).hexdigest()

    def on_any_machines(self) -> Self:
        """The plan without what machines its nodes are, which may be others by the time that a node joins."""
        nodes = tuple(node.model_copy(update={"name": "", "compute_tasks": 1}) for node in self.nodes)
        return self.model_copy(update={"nodes": nodes})
