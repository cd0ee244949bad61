"""The protocol under any tree, order, delay, crash and change of the tree: all beliefs hold what was published."""

from __future__ import annotations

import random
from collections import deque

import networkx as nx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.contribution import Told, Total
from operators.reconfigure import region, replace
from operators.share import Sharing
from operators.topology import Edges, behind

MOST, WEIGHTS = 16, 3


class Cluster:
    """Nodes that share, what is under way between them, and an oracle that knows every published update."""

    def __init__(self, edges: Edges, rng: random.Random, waves: str, *, eager: bool) -> None:
        self.rng, self.edges, self.epoch = rng, edges, 0
        self.waves, self.eager = waves, eager
        nodes = sorted({node for edge in edges for node in edge})
        self.nodes = {node: self._fresh(node, nothing()) for node in nodes}
        self.disk = {node: nothing() for node in nodes}
        self.under_way: dict[tuple[int, int], deque[Told]] = {}
        self.made = dict.fromkeys(range(MOST), 0)

    def _fresh(self, node: int, own: Total) -> Sharing:
        above = next((each for each, nodes in behind(self.edges, node).items() if 0 in nodes), None)
        return Sharing(node, behind(self.edges, node), own, above=above, waves=self.waves, eager=self.eager)  # type: ignore[arg-type]

    def oracle(self) -> np.ndarray:
        return np.sum([total.values for total in self.disk.values()], axis=0, dtype=np.float32)

    def update(self) -> None:
        node = self.rng.choice(sorted(self.nodes))
        values = np.array([self.rng.randrange(-9, 10) for _ in range(WEIGHTS)], np.float32)
        self.nodes[node].add(values)

    def send(self) -> bool:
        able = [(node, to) for node, sharing in self.nodes.items() for to in sharing.due()]
        if not able:
            return False
        node, to = self.rng.choice(sorted(able))
        self.disk[node] = copy(self.nodes[node].own)  # what is published is kept first
        told = self.nodes[node].tell(to)
        assert told is not None
        self.under_way.setdefault((node, to), deque()).append(told)
        return True

    def deliver(self) -> bool:
        able = sorted(link for link, waiting in self.under_way.items() if waiting)
        if not able:
            return False
        node, to = self.rng.choice(able)
        told = self.under_way[node, to].popleft()
        if to in self.nodes:
            self.nodes[to].absorb(node, told)
        return True

    def crash(self) -> None:
        """A node loses its memory, and begins again with x as it was kept; its neighbours meet it anew."""
        node = self.rng.choice(sorted(self.nodes))
        self.epoch += 1
        now = behind(self.edges, node)
        for neighbour in now:
            nodes = behind(self.edges, neighbour)[node]
            self.nodes[neighbour].meet(node, nodes, epoch=self.epoch, instead_of=node)
        self.nodes[node] = Sharing(node, now, self.disk[node], epoch=self.epoch, heard=False)

    def change(self) -> None:
        """A connected part of the tree gives way to other nodes, or to the same ones otherwise connected."""
        rng, graph = self.rng, nx.Graph(self.edges)
        inside = {rng.choice(sorted(graph))}
        for _ in range(rng.randrange(4)):
            border = sorted({other for node in inside for other in graph[node]} - inside)
            if border:
                inside.add(rng.choice(border))
        new = sorted(set(range(MOST)) - set(graph))
        joined = rng.sample(sorted(inside), rng.randrange(len(inside) + 1))
        joined += rng.sample(new, min(len(new), rng.randrange(3)))
        if not joined:
            joined = [min(inside)]
        after = [edge for edge in self.edges if not inside & set(edge)]
        after += [(rng.choice(joined[:at]), joined[at]) for at in range(1, len(joined))]
        for one, other in self.edges:
            if (one in inside) != (other in inside):
                after.append((other if one in inside else one, rng.choice(joined)))
        edges = tuple(sorted((min(edge), max(edge)) for edge in after))
        if not edges or edges == self.edges:
            return
        assert nx.is_tree(nx.Graph(edges))
        part = region(self.edges, edges)
        assert nx.is_connected(graph.subgraph(part))
        gone = set(graph) - {node for edge in edges for node in edge}
        assert gone <= part
        for node in part:
            self.disk[node] = copy(self.nodes[node].own)
        self.epoch += 1
        heirs = sorted((part | set(new)) & {node for edge in edges for node in edge})
        self.nodes = replace(self.nodes, self.edges, edges, heir=rng.choice(heirs), epoch=self.epoch, n_counts=MOST)
        self.edges = edges
        for node in gone:
            del self.disk[node]
        for node in heirs:
            self.disk[node] = copy(self.nodes[node].own)

    def settle(self) -> None:
        while self.send() or self.deliver():
            if self.rng.randrange(2):
                self.deliver()


def nothing() -> Total:
    return Total(np.zeros(WEIGHTS, np.float32), np.zeros(MOST, np.int64))


def copy(total: Total) -> Total:
    return Total(total.values.copy(), total.counts.copy())


def random_tree(rng: random.Random, nodes: int) -> Edges:
    return tuple(sorted((rng.randrange(node), node) for node in range(1, nodes)))


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), nodes=st.integers(2, 9), steps=st.integers(0, 150), eager=st.booleans())
def test_sharing_under_crashes_and_changes_of_the_tree_ends_with_the_oracle(
    seed: int, nodes: int, steps: int, eager: bool
) -> None:
    rng = random.Random(seed)
    cluster = Cluster(random_tree(rng, nodes), rng, "neighbours", eager=eager)
    actions = [cluster.update] * 4 + [cluster.send] * 5 + [cluster.deliver] * 5 + [cluster.crash, cluster.change]
    for _ in range(steps):
        rng.choice(actions)()
    cluster.settle()
    for node, sharing in cluster.nodes.items():
        np.testing.assert_array_equal(cluster.disk[node].values, sharing.own.values)  # all that is left is published
        np.testing.assert_array_equal(sharing.belief.values, cluster.oracle())
        counts = np.sum([total.counts for total in cluster.disk.values()], axis=0)
        np.testing.assert_array_equal(sharing.belief.counts, counts)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    nodes=st.integers(1, 9),
    steps=st.integers(0, 100),
    waves=st.sampled_from(["neighbours", "root"]),
)
def test_sharing_ends_everywhere_with_every_update_once_ended_nodes_have_said_so(
    seed: int, nodes: int, steps: int, waves: str
) -> None:
    rng = random.Random(seed)
    if nodes == 1:
        alone = Sharing(0, {}, nothing())
        alone.end()
        assert alone.through
        return
    cluster = Cluster(random_tree(rng, nodes), rng, waves, eager=bool(seed % 2))
    for _ in range(steps):
        rng.choice([cluster.update, cluster.send, cluster.deliver])()
    order = sorted(cluster.nodes)
    rng.shuffle(order)
    for node in order:
        for _ in range(rng.randrange(10)):
            rng.choice([cluster.send, cluster.deliver])()
        cluster.nodes[node].end()
    cluster.settle()
    for sharing in cluster.nodes.values():
        assert sharing.through
        assert sharing.missing() == 0
        np.testing.assert_array_equal(sharing.belief.values, cluster.oracle())
