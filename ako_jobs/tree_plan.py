"""How a tree of nodes would do before it runs: delay and load of topologies (parameter_sharing_tree.txt, 3.6)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np

from operators.contribution import Total
from operators.share import Sharing
from operators.topology import parse_topology

CANDIDATES = ("chain", "tree(2)", "tree(3)", "tree(4)", "tree(8)", "twin_masters", "star")


@dataclass(frozen=True)
class Costs:
    """What exchange costs.

    Args:
        update_s: seconds of a node to make or to take in a sum: the paper's C.
        hop_s: seconds of a sum from one node to the next: the paper's t.
        link_s: seconds in which a link carries a sum.
        period_s: seconds between two sums on each edge, each way.
        pushes: updates that a node's own workers push in that time.
    """

    update_s: float
    hop_s: float
    link_s: float
    period_s: float = 1.0
    pushes: float = 1.0


@dataclass(frozen=True)
class Prediction:
    """What is to be expected of a topology.

    Args:
        topology: as it is written.
        hops: edges on the longest way.
        degree: neighbours of the node that has most.
        delay_s: seconds at most until an update has come from one end to the other while nobody is overloaded.
        busy: share of its time that this node needs for sums and updates; above 1 sums queue up without end.
        link: share of its time that its link needs, each way.
    """

    topology: str
    hops: int
    degree: int
    delay_s: float
    busy: float
    link: float

    @property
    def holds(self) -> bool:
        """Whether no node and no link has more to do than it can."""
        return max(self.busy, self.link) < 1


def predict(topology: str, nodes: int, costs: Costs) -> Prediction:
    """The bound of 3.6, for any tree: t for each hop of a way, and at each node between its ends C for each neighbour.

    That is each but the one that the update has come from. The paper has C d for all of these nodes of a d-ary tree, so
    2 t log_d N + C d (2 log_d N - 1). The root has no parent and passes an update on to d - 1: C less than printed.
    """
    tree: nx.Graph[int] = nx.Graph()
    tree.add_nodes_from(range(nodes))
    tree.add_edges_from(parse_topology(topology).of(nodes))
    degrees = dict(tree.degree)
    delay_s, hops = 0.0, 0
    for node in tree:
        # Each way between two leaves is seen from one of its ends.
        if degrees[node] > 1 and nodes > 2:
            continue
        reached = {node: 0.0}
        for parent, child in nx.bfs_edges(tree, node):
            between = costs.update_s * (degrees[parent] - 1) if parent != node else 0.0
            reached[child] = reached[parent] + between + costs.hop_s
        delay_s = max(delay_s, *reached.values())
        hops = max(hops, *nx.single_source_shortest_path_length(tree, node).values())
    degree = max(degrees.values())
    return Prediction(
        topology=topology,
        hops=hops,
        degree=degree,
        delay_s=delay_s,
        busy=costs.update_s * (2 * degree + costs.pushes) / costs.period_s,
        link=costs.link_s * degree / costs.period_s,
    )


def compare(nodes: int, costs: Costs, topologies: Sequence[str] = CANDIDATES) -> list[Prediction]:
    """Predictions, the best first: those that hold by delay, then the others by load."""
    found = [predict(topology, nodes, costs) for topology in topologies]
    return sorted(found, key=lambda each: (not each.holds, each.delay_s if each.holds else max(each.busy, each.link)))


def measured_update_s(n_weights: int, now: Callable[[], float]) -> float:
    """Seconds in which this machine makes a sum for one of two neighbours: the least of several times.

    Args:
        n_weights: of the model.
        now: a clock, in seconds.
    """
    nothing = Total(np.zeros(n_weights, np.float32), np.zeros(3, np.int64))
    sharing, least_s = Sharing(0, {1: (1,), 2: (2,)}, nothing), math.inf
    for _ in range(5):
        begin_s = now()
        sharing.sum_for(1)
        least_s = min(least_s, now() - begin_s)
    return least_s
