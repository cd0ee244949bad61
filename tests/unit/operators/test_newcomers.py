"""Nodes that join a tree: places, who is where, and what is told to whom."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dataflow.errors import BeginAnewError
from dataflow.node_context import NodeContext
from dataflow.operators_api import Adjusted
from operators.contribution import FAR, Contribution, Total
from operators.course import CourseState
from operators.enrol import Arrived, Enrol
from operators.layout import Layout
from operators.newcomers import ASKS, SHUT, WELCOME, Arrival
from operators.roll import RollState
from operators.share import Sharing
from operators.share_clocks import ShareClocksState
from operators.shared_replica import SharedReplica
from operators.shared_replica_state import SharedReplicaState
from operators.survivors import CLAIM, NOBODY, Claim, Leaf, Survivors
from operators.topology import Topology
from tests.unit.operators.test_shared_replica import states

CHAIN = ((0, 1), (1, 2))


def told(state: SharedReplicaState) -> list[tuple[int, str]]:
    """The words that a node says now, by receiver."""
    newcomers = state._newcomers
    assert newcomers is not None
    return [(each.to, each.word) for each in newcomers.sayings]


def test_places_of_earlier_lives_are_dead_for_good_and_the_tree_does_not_depend_on_the_order() -> None:
    left, right = (Survivors(0, range(3), CHAIN, size=4) for _ in range(2))
    left.lose(1, Claim(1, {}))
    left.hear(CLAIM, 2, 1, Claim(2, {}))
    list(left.shares())
    left.put(1 + 4, Leaf(2, 1))
    right.put(1 + 4, Leaf(2, 1))  # it is heard of again before its death
    assert left.tree == right.tree == ((0, 2), (1, 2))
    assert left.place_of(1) == right.place_of(1) == 5
    assert left.others == (1, 2)


def test_who_asks_anew_is_no_heir_of_its_dead_host_any_more() -> None:
    left = Survivors(0, range(3), CHAIN, size=4)
    left.put(3 + 4, Leaf(1, 1))
    assert left.lose(1, Claim(5, {})) == (2, 3)
    left.hear(CLAIM, 2, 1, Claim(6, {0: 1}))
    assert list(left.shares()) == []
    left.put(3 + 4, Leaf(0, 2))
    (share,) = left.shares()
    assert (share.dead, share.first, share.number, share.neighbours) == (1, False, 1, (2,))
    assert left.tree == ((0, 2), (0, 3))


def test_newcomer_learns_of_the_newest_turn_only_and_of_who_is_dead() -> None:
    newcomer, knows = Survivors(3, range(3), CHAIN, size=4, life=1), Survivors(0, range(3), CHAIN, size=4)
    knows.put(1 + 4, Leaf(2, 7))
    leaves, dead, edges = knows.view()
    newcomer.put(1 + 4, Leaf(NOBODY, 9))
    newcomer.learn(leaves, dead, {0, 1, 2})
    assert (newcomer.place_of(1), newcomer.dead) == (NOBODY, {1})
    newcomer.put(1 + 4, Leaf(0, 10))
    newcomer.learn(np.array([[2 + 4], [0], [1]]), np.zeros(0, np.int64), {0, 1})
    assert newcomer.others == (0, 1), "2 has left, though it is not heard of as dead yet"
    assert edges.T.tolist() == [list(edge) for edge in CHAIN]


def test_host_takes_a_newcomer_and_is_shut_once_it_has_told_anybody_what_is_final() -> None:
    one, other = states(2)
    one.greet(5)
    assert told(one) == [(5, WELCOME)]
    other.end()
    told_last = other.sharing.tell(0)
    assert told_last is not None
    assert told_last.final
    other.greet(5)
    assert told(other) == [(5, SHUT)]


def test_sums_are_final_for_nobody_while_a_newcomer_may_make_updates() -> None:
    nothing = Total(np.zeros(1, np.float32), np.zeros(4, np.int64))
    sharing = Sharing(0, {1: (1,)}, nothing, keeps=True)
    sharing.host(3, epoch=1 << 32)
    sharing.end()
    assert not sharing.is_final_for(1)
    assert sharing.is_final_for(3) is False, "1 has not ended"
    sharing.part(3)
    assert sharing.is_final_for(1)


@pytest.mark.parametrize(("life", "made"), [(1, 3), (2, 5)])
def test_updates_of_a_later_life_are_known_though_all_know_that_the_one_before_makes_no_more(
    life: int, made: int
) -> None:
    nothing = Total(np.zeros(1, np.float32), np.zeros(2, np.int64))
    old, new = Sharing(0, {1: (1,)}, nothing, keeps=True), Sharing(1, {}, nothing, keeps=True, life=life)
    old.known[:, 1] = FAR
    for _ in range(made):
        new.add(np.ones(1, np.float32))
    old.known = np.maximum(old.known, new.known)
    assert old.missing() == made
    old.forget(1, {})
    assert old.missing() == 0


def test_only_plain_trees_without_a_bound_can_be_joined() -> None:
    element = SharedReplica.model_construct(topology=Topology())
    assert element.grows
    for changed in ({"consistency": "ssp"}, {"flow": "period"}, {"waves": "root"}, {"then": Topology(kind="star")}):
        assert not element.model_copy(update=changed).grows


def test_newcomer_that_can_join_nobody_is_late_and_dies_if_all_that_had_joined_have_died_and_not_ended() -> None:
    (state, _) = states(2)
    newcomer = _newcomer(state)
    assert newcomer.hear(_word(newcomer, ASKS, origin=0))
    assert newcomer.over
    arrivals = list(newcomer.arrivals())
    assert arrivals == [Arrival(0, late=True), Arrival(1, late=True)]
    node = NodeContext(index=1, members={"worker": (0, 1, 2)}, incarnation=1)
    for died in ("before", "after", "ended", "not"):
        roll, course, clocks = RollState(1, (0, 1, 2), 1), CourseState(), ShareClocksState()
        enrol = Enrol()
        if died in ("before", "ended"):
            list(enrol.on_left(2, roll, ended=died == "ended"))
        first, second = (enrol.process(Arrived(*each), roll, course, clocks, node) for each in arrivals)
        list(first)
        if died == "before":
            with pytest.raises(BeginAnewError, match="all nodes that had joined the tree have died"):
                list(second)
            continue
        assert not list(second)
        assert roll.idle
        if died == "after":
            with pytest.raises(BeginAnewError, match="all nodes that had joined the tree have died"):
                list(enrol.on_left(2, roll, ended=False))


def test_end_of_another_that_is_too_late_is_none_of_one_that_has_learnt_anything() -> None:
    roll, course, clocks = RollState(1, (0, 1, 2), 1), CourseState(), ShareClocksState()
    enrol, node = Enrol(), NodeContext(index=1, members={"worker": (0, 1, 2)}, incarnation=1)
    for arrived in (Arrived(0, 0, 0, late=True), Arrived(1, 0, 0, late=True)):
        list(enrol.process(arrived, roll, course, clocks, node))
    list(enrol.on_left(0, roll, ended=True))
    with pytest.raises(BeginAnewError, match="all nodes that had joined the tree have died"):
        list(enrol.on_left(2, roll, ended=False))


def test_newcomer_that_has_not_joined_is_not_ready_for_a_change_of_the_tree() -> None:
    newcomer = _newcomer(states(4)[0])
    newcomer.prepare(7, ((0, 1), (0, 2), (0, 3)))
    (told,) = [each for each in newcomer.reports() if isinstance(each, Adjusted)]
    why = "nodes of the tree have died, or come, and it is changed no more"
    assert (told.adjustment, told.stage, told.why) == (7, "refused", why)


def _newcomer(like: SharedReplicaState) -> SharedReplicaState:
    weights = like.current.size
    element = SharedReplica.model_construct(topology=Topology(), layout=Layout.of(weights))
    context = NodeContext(index=1, members={"worker": (0, 1)}, incarnation=1)
    return element.begin(np.ones(weights, np.float32), context)


def _word(state: SharedReplicaState, word: str, origin: int) -> Contribution:
    said = state._word(word, NOBODY, Claim(1, {}))
    return dataclasses.replace(said, origin=origin, counts=np.array([origin + 2], np.int64))
