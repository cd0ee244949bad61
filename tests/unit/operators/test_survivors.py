"""Who is left of a tree, and how neighbours of a dead node share what it held."""

from __future__ import annotations

import numpy as np
import pytest

from dataflow.errors import OperatorError
from operators.contribution import UNKNOWN, Total
from operators.share import KEPT, Sharing
from operators.survivors import CLAIM, OVER, THROUGH, Claim, Share, Survivors
from operators.topology import Bereaved, behind, bereaved, left_of

CHAIN = ((0, 1), (1, 2), (2, 3))
STAR = ((0, 1), (0, 2), (0, 3))
NOBODY = frozenset[int]()


def sharing(node: int, edges: tuple[tuple[int, int], ...]) -> Sharing:
    nothing = Total(np.zeros(1, np.float32), np.zeros(4, np.int64))
    return Sharing(node, behind(edges, node), nothing, keeps=True)


def tell(nodes: dict[int, Sharing], node: int, to: int) -> None:
    told = nodes[node].tell(to)
    assert told is not None
    nodes[to].absorb(node, told)


def make(nodes: dict[int, Sharing], node: int, value: float) -> None:
    nodes[node].add(np.array([value], np.float32))


def test_tree_that_is_left_joins_each_node_to_the_nearest_above_or_to_the_first() -> None:
    assert left_of(CHAIN, frozenset({1})) == ((0, 2), (2, 3))
    assert left_of(CHAIN, frozenset({1, 2})) == ((0, 3),)
    assert left_of(CHAIN, frozenset({0})) == ((1, 2), (2, 3))
    assert left_of(STAR, frozenset({0})) == ((1, 2), (1, 3))


def test_bereaved_are_the_neighbours_of_the_dead_and_the_heir_is_the_one_above_it() -> None:
    assert bereaved(CHAIN, NOBODY, 2) == Bereaved(1, (3,))
    assert bereaved(STAR, NOBODY, 0) == Bereaved(1, (2, 3))
    assert bereaved(CHAIN, frozenset({1}), 2) == Bereaved(0, (3,))


def test_share_is_known_once_all_claims_are_there_and_goes_by_the_highest_stamp() -> None:
    heir, other = Survivors(1, range(4), CHAIN), Survivors(3, range(4), CHAIN)
    assert heir.lose(2, Claim(5, {3: 2})) == (3,)
    assert list(heir.shares()) == []
    heir.hear(CLAIM, 3, 2, Claim(7, {1: 4}))
    assert list(heir.shares()) == [Share(2, first=False, number=4, neighbours=(3,))]
    other.hear(CLAIM, 1, 2, Claim(5, {3: 2}))  # ahead of the news of the death
    assert other.lose(2, Claim(7, {1: 4})) == (1,)
    assert list(other.shares()) == [Share(2, first=True, number=0, neighbours=(1,))]


def test_neighbour_that_dies_before_all_claims_are_there_is_an_error() -> None:
    left = Survivors(1, range(4), CHAIN)
    left.lose(2, Claim(5, {}))
    with pytest.raises(OperatorError, match="nodes 2 and 3"):
        left.lose(3, None)


@pytest.mark.parametrize("node", [0, 2])
def test_newest_sum_with_what_a_neighbour_never_told_is_shared_by_nobody(node: int) -> None:
    """2 has come to the dead node 1 in the place of another, and 0 was told what that one had said."""
    left = Survivors(node, range(4), CHAIN)
    claims = {0: Claim(7, {2: UNKNOWN}), 2: Claim(5, {0: 1})}
    left.lose(1, claims.pop(node))
    for other, claim in claims.items():
        left.hear(CLAIM, other, 1, claim)
    with pytest.raises(OperatorError, match="nodes 1 and 2"):
        list(left.shares())


def test_claim_of_a_node_that_has_died_since_does_not_count() -> None:
    left = Survivors(0, range(4), CHAIN)
    left.lose(3, None)
    left.hear(CLAIM, 3, 1, Claim(9, {}))
    assert left.lose(1, Claim(2, {2: 1})) == (2,)
    assert list(left.shares()) == []


def test_all_are_through_once_those_that_are_left_have_said_so_and_over_is_heard_at_once() -> None:
    left = Survivors(0, range(4), STAR)
    for node in (1, 2):
        left.hear(THROUGH, node, 0, Claim(0, {}))
    assert not left.all_through
    left.lose(3, Claim(0, {}))
    assert left.all_through
    assert not left.over
    left.hear(OVER, 1, 0, Claim(0, {}))
    assert left.over


def test_neighbours_share_what_a_dead_node_had_told_the_last_of_them() -> None:
    """1 has 6 of its own and 2 of 0's first update; it tells 2 both, then hears 5 more of 0, and dies."""
    edges = ((0, 1), (1, 2))
    nodes = {node: sharing(node, edges) for node in range(3)}
    make(nodes, 0, 2)
    tell(nodes, 0, 1)
    make(nodes, 1, 6)
    tell(nodes, 1, 2)
    tell(nodes, 1, 0)
    make(nodes, 0, 5)
    tell(nodes, 0, 1)
    zero, two = nodes[0].sides[1], nodes[2].sides[1]
    assert (two.stamp, dict(two.basis), dict(zero.basis)) == (zero.stamp, {0: 1}, {2: 0})
    nodes[2].bereave(1, first=True, number=0)
    nodes[0].bereave(1, first=False, number=two.basis[0])
    assert nodes[2].inherited.values == [8]
    assert nodes[0].inherited.values == [-2]
    for node, other in ((0, 2), (2, 0)):
        nodes[node].meet(other, (other,), epoch=0)
    for node, other in ((0, 2), (2, 0)):
        tell(nodes, node, other)
    assert [float(nodes[node].belief.values[0]) for node in (0, 2)] == [13, 13]
    np.testing.assert_array_equal(nodes[0].counts, [2, 1, 0, 0])
    np.testing.assert_array_equal(nodes[2].counts, [2, 1, 0, 0])


def test_sums_are_kept_until_they_are_in_nothing_that_others_have() -> None:
    """2 does not answer: what 1 has told it holds the first sum of 0, which stays while newer ones come and go."""
    edges = ((0, 1), (1, 2))
    nodes = {node: sharing(node, edges) for node in range(3)}
    make(nodes, 0, 1)
    tell(nodes, 0, 1)
    first = nodes[1].tell(2)
    for value in range(2, 10):
        tell(nodes, 1, 0)
        make(nodes, 0, value)
        tell(nodes, 0, 1)
    assert sorted(nodes[0].sides[1].kept) == [1, 8, 9]
    assert first is not None
    nodes[2].absorb(1, first)
    tell(nodes, 2, 1)
    tell(nodes, 1, 2)
    tell(nodes, 2, 1)
    tell(nodes, 1, 0)
    assert sorted(nodes[0].sides[1].kept) == [9]


def test_neighbour_with_as_many_sums_kept_as_may_be_is_told_no_more() -> None:
    nodes = {node: sharing(node, ((0, 1), (1, 2))) for node in range(2)}
    make(nodes, 0, 1)
    nodes[0].sides[1].kept.update(dict.fromkeys(range(KEPT), nodes[0].own))
    assert not nodes[0].may_tell(1)
    nodes[0].sides[1].kept.popitem()
    assert nodes[0].may_tell(1)
