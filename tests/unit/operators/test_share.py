"""The protocol of parameter sharing on small trees, by hand: the paper's figures, who is told when, and lost nodes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from dataflow.errors import OperatorError
from operators.contribution import FAR, UNKNOWN, Total, rebuilt, together
from operators.reconfigure import region, replace
from operators.share import Sharing
from operators.topology import Edges, behind, parse_topology

NODES = 6


def total(value: float = 0.0, **updates: int) -> Total:
    counts = np.zeros(NODES, np.int64)
    for node, made in updates.items():
        counts[int(node[1:])] = made
    return Total(np.array([value], np.float32), counts)


def tree(edges: Edges, values: Mapping[int, float] | None = None, **how: bool) -> dict[int, Sharing]:
    """Nodes that have made an update each, of these values."""
    nodes = {
        node: Sharing(node, behind(edges, node), total(), **how)  # type: ignore[arg-type]
        for node in sorted({node for edge in edges for node in edge})
    }
    for node, value in (values or {}).items():
        nodes[node].add(np.array([value], np.float32))
    return nodes


def exchange(nodes: Mapping[int, Sharing]) -> None:
    """Let everybody tell everybody until nobody has anything to say."""
    while told := [
        (node, to, told) for node in nodes for to in list(nodes[node].due()) if (told := nodes[node].tell(to))
    ]:
        for node, to, what in told:
            nodes[to].absorb(node, what)


def beliefs(nodes: Mapping[int, Sharing]) -> dict[int, float]:
    return {node: float(sharing.belief.values[0]) for node, sharing in nodes.items()}


@pytest.mark.parametrize("topology", ["chain", "star", "twin_masters", "tree(2)"])
def test_updates_of_6_less_3_0_and_8_are_11_in_every_belief(topology: str) -> None:
    nodes = tree(parse_topology(topology).of(4), {0: 6, 1: -3, 2: 0, 3: 8})
    exchange(nodes)
    assert beliefs(nodes) == dict.fromkeys(range(4), 11.0)


def test_nodes_1_and_4_merged_into_5_in_the_middle_of_it_make_11_everywhere() -> None:
    """Figure 2: x of the new node is 6 + 8; the nodes that stay are not asked to begin again."""
    before, after = ((1, 2), (1, 4), (3, 4)), ((2, 5), (3, 5))
    nodes = tree(before, {1: 6, 2: -3, 4: 8})
    for node in (2, 1):
        for to in list(nodes[node].due()):
            what = nodes[node].tell(to)
            assert what is not None
            nodes[to].absorb(node, what)
    stays = nodes[2], nodes[3]
    nodes = replace(nodes, before, after, heir=5, epoch=1, n_counts=NODES)
    assert (nodes[2], nodes[3]) == stays
    assert sorted(nodes) == [2, 3, 5]
    assert nodes[5].own.values == [14.0]
    exchange(nodes)
    assert beliefs(nodes) == {2: 11.0, 3: 11.0, 5: 11.0}


def test_region_of_a_merger_are_the_nodes_that_are_merged() -> None:
    assert region(((1, 2), (1, 4), (3, 4)), ((2, 5), (3, 5))) == {1, 4}


def test_region_of_trees_that_are_equal_is_empty() -> None:
    assert region(((0, 1), (1, 2)), ((0, 1), (1, 2))) == set()


def test_region_of_a_leaf_that_moves_leaves_the_rest_alone() -> None:
    chain = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5))
    assert region(chain, ((0, 1), (1, 2), (2, 3), (3, 4), (3, 5))) == {3, 4}


def test_node_outside_a_region_believes_what_it_was_told_until_its_new_neighbour_has_spoken() -> None:
    before, after = ((0, 1), (1, 2)), ((0, 3), (2, 3))
    nodes = tree(before, {0: 1, 1: 2, 2: 4})
    exchange(nodes)
    nodes = replace(nodes, before, after, heir=3, epoch=1, n_counts=NODES)
    assert beliefs(nodes) == {0: 7.0, 2: 7.0, 3: 2.0}
    nodes[0].add(np.array([8], np.float32))
    assert nodes[3].tell(0) is None  # which has not heard of what is behind 2
    exchange(nodes)
    assert beliefs(nodes) == dict.fromkeys((0, 2, 3), 15.0)


def test_sum_is_told_only_once_the_one_before_has_come() -> None:
    nodes = tree(((0, 1),))
    one, other = nodes[0], nodes[1]
    one.add(np.array([1], np.float32))
    first = one.tell(1)
    assert first is not None
    one.add(np.array([2], np.float32))
    one.add(np.array([4], np.float32))
    assert one.tell(1) is None
    other.absorb(0, first)
    answer = other.tell(0)
    assert answer is not None
    assert answer.total is None  # nothing but that it has come
    one.absorb(1, answer)
    newest = one.tell(1)
    assert newest is not None
    assert newest.total is not None
    np.testing.assert_array_equal(newest.total.values, [7])
    np.testing.assert_array_equal(newest.total.counts, [3, 0, 0, 0, 0, 0])


def test_sum_that_is_told_again_or_late_changes_nothing() -> None:
    nodes = tree(((0, 1),), acknowledges=False)
    sums = []
    for _ in range(2):
        nodes[0].add(np.array([1], np.float32))
        sums.append(nodes[0].sum_for(1))
    assert nodes[1].absorb(0, sums[1])
    assert not nodes[1].absorb(0, sums[0])
    assert not nodes[1].absorb(0, sums[1])
    assert beliefs(nodes)[1] == 2


def test_sum_of_another_epoch_or_of_who_is_no_neighbour_is_not_listened_to() -> None:
    nodes = tree(((0, 1), (1, 2)), {0: 5})
    what = nodes[0].sum_for(1)
    assert not nodes[2].absorb(0, what)
    nodes[1].meet(0, (0,), epoch=1, instead_of=0)
    assert not nodes[1].absorb(0, what)
    assert beliefs(nodes)[1] == 0


def test_mirror_of_another_is_told_as_no_sum_of_the_new_neighbour_until_that_has_spoken() -> None:
    nodes = tree(((0, 1), (1, 2)), {0: 5, 1: 1}, keeps=True)
    nodes[3] = Sharing(3, {1: (1, 2)}, total(3), keeps=True, epoch=1)
    exchange({node: nodes[node] for node in range(3)})
    nodes[1].meet(3, (3,), epoch=1, instead_of=0)
    assert (nodes[1].whole, nodes[1].settled) == (True, False)
    assert nodes[1].sum_for(2).basis == {3: UNKNOWN}
    nodes[1].absorb(3, nodes[3].sum_for(1))
    assert nodes[1].settled
    assert nodes[1].sum_for(2).basis == {3: 1}


def test_root_waves_tell_a_sibling_only_what_has_been_at_the_root() -> None:
    edges = ((0, 1), (1, 2), (1, 3))
    above = {1: 0, 2: 1, 3: 1}
    nodes = {
        node: Sharing(node, behind(edges, node), total(), above=above.get(node), waves="root") for node in range(4)
    }
    nodes[2].add(np.array([1], np.float32))
    assert list(nodes[2].due()) == [1]
    told = nodes[2].tell(1)
    assert told is not None
    nodes[1].absorb(2, told)
    assert [to for to in nodes[1].due() if nodes[1].may_tell(to)] == [0]
    exchange(nodes)
    assert beliefs(nodes) == dict.fromkeys(range(4), 1.0)


def test_counts_of_eager_nodes_travel_without_sums() -> None:
    nodes = tree(((0, 1), (1, 2)), eager=True)
    nodes[0].add(np.array([1], np.float32))
    note = nodes[0].note_for(1)
    assert note is not None
    nodes[1].absorb(0, note)
    on = nodes[1].note_for(2)
    assert on is not None
    nodes[2].absorb(1, on)
    assert nodes[2].known[0].tolist() == [1, 0, 0, 0, 0, 0]
    assert (nodes[2].missing(), beliefs(nodes)[2]) == (1, 0.0)


def test_rounds_are_as_many_as_the_slowest_node_has_made_and_far_once_all_is_final() -> None:
    nodes = tree(((0, 1),), {0: 1, 1: 1}, acknowledges=False)
    nodes[0].add(np.array([1], np.float32))
    assert (nodes[0].rounds(), nodes[0].rounds(1)) == (0, 2)
    nodes[0].absorb(1, nodes[1].sum_for(0))
    assert nodes[0].rounds() == 1
    for node in (0, 1):
        nodes[node].end()
    exchange(nodes)
    assert nodes[0].rounds() == FAR
    assert nodes[0].through


def test_neighbour_that_leaves_is_taken_to_be_through_with_what_it_has_said() -> None:
    nodes = tree(((0, 1), (1, 2)), {0: 1, 1: 2, 2: 4})
    exchange(nodes)
    nodes[1].leave(2)
    for node in (0, 1):
        nodes[node].end()
    exchange({node: nodes[node] for node in (0, 1)})
    assert nodes[0].through
    assert nodes[1].through
    assert beliefs(nodes)[0] == 7


def test_x_of_a_lost_node_is_rebuilt_from_what_it_told_and_was_told() -> None:
    nodes = tree(((0, 1), (1, 2), (1, 3)), {0: 1, 1: 2, 2: 4, 3: 8})
    exchange(nodes)
    published = nodes[0].sides[1].total
    others = [nodes[2].sum_for(1).total, nodes[3].sum_for(1).total]
    x = rebuilt(published, [each for each in others if each], (2, 3))
    np.testing.assert_array_equal(x.values, [2])
    np.testing.assert_array_equal(x.counts, nodes[1].own.counts)


def test_x_of_a_lost_node_is_refused_where_a_neighbour_has_told_it_what_it_told_nobody() -> None:
    nodes = tree(((0, 1), (1, 2)), {0: 1, 1: 2, 2: 4})
    exchange(nodes)
    nodes[2].add(np.array([16], np.float32))
    told = nodes[2].sum_for(1).total
    assert told is not None
    with pytest.raises(OperatorError, match="different moments"):
        rebuilt(nodes[0].sides[1].total, [told], (2,))


def test_together_x_of_a_region_is_the_sum_of_values_and_of_counts() -> None:
    x = together([total(6, n1=2), total(8, n4=3), total(0)])
    assert (x.values.tolist(), x.counts.tolist()) == ([14.0], [0, 2, 0, 0, 3, 0])
