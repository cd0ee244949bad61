import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.node_context import NodeContext
from operators.clocks import FAR, Clocks, ClocksState, everything
from operators.layout import Layout, Sharding


def make(origins=(1, 2), cells=4, span=0):
    return ClocksState(cells, everything(origins, cells, without=None), span=span)


ALL = slice(0, 4)


def test_advance_interval_that_follows_is_accepted():
    clocks = make()
    assert clocks.advance(1, slice(1, 3), 0, 2)
    assert clocks.applied(1).tolist() == [0, 2, 2, 0]
    assert clocks.rejected == 0


@pytest.fixture(autouse=True, scope="module")
def compiled():
    ClocksState.compile()


@pytest.mark.parametrize("restored", [False, True])
@given(st.lists(st.booleans(), min_size=1, max_size=8).filter(any), st.data())
def test_origin_is_as_far_as_the_least_of_the_cells_that_it_answers_for(restored, owned, data):
    clocks = ClocksState(len(owned), {1: np.array(owned)})
    if restored:
        clocks.restore(clocks.tensors())
    expected = np.where(owned, 0, FAR)
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(owned) - 1))
        stop, number = data.draw(st.integers(start + 1, len(owned))), data.draw(st.integers(0, 5))
        clocks.reach(1, slice(start, stop), number)
        expected[start:stop] = np.maximum(expected[start:stop], number)
        assert clocks.slowest() == expected.min()
        assert clocks.applied(1).tolist() == expected.tolist()


def test_clocks_over_all_workers_begin_with_a_span_of_others_and_none_of_their_own():
    node = NodeContext(index=1, members={"worker": (0, 1, 2)})
    clocks = Clocks(cells=4, origins="worker", span=FAR, own=True).create(node)
    assert clocks.slowest() == 0
    clocks.advance(1, ALL, 0, 1)
    assert clocks.slowest() == 1
    assert clocks.tensors()["span"].tolist() == [FAR, 0, FAR]


@pytest.mark.parametrize(
    ("low", "high", "reason"), [(0, 3, "duplicate"), (1, 3, "overlap"), (3, 4, "gap"), (2, 2, "empty")]
)
def test_advance_interval_that_does_not_follow_is_rejected_and_changes_nothing(low, high, reason):
    clocks = make()
    clocks.advance(1, ALL, 0, 2, span=5)
    assert not clocks.advance(1, ALL, low, high, span=9), reason
    assert clocks.applied(1).tolist() == [2] * 4
    assert clocks.rejected == 1
    assert clocks.slowest() == 0  # origin 2; span 9 was not taken over


def test_advance_cells_that_differ_are_rejected_together():
    clocks = make()
    clocks.advance(1, slice(0, 1), 0, 1)
    assert not clocks.advance(1, slice(0, 2), 0, 2)
    assert clocks.applied(1).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(("low", "accepted"), [(1, False), (2, True), (5, True)])
def test_advance_skipping_accepts_gaps_but_no_duplicates(low, accepted):
    clocks = make()
    clocks.advance(1, ALL, 0, 2)
    assert clocks.advance(1, ALL, low, 6, skips=True) is accepted


@pytest.mark.parametrize("cells", [slice(0, 5), slice(3, 2), slice(-1, 2), slice(9, 12)])
def test_advance_and_reach_of_cells_that_there_are_not_are_refused(cells):
    clocks = ClocksState(4, everything((1,), 4, without=None))
    with pytest.raises(ValueError, match="of 4"):
        clocks.advance(1, cells, 0, 1)
    with pytest.raises(ValueError, match="of 4"):
        clocks.reach(1, cells, 1)


def test_advance_unknown_origin_is_rejected_and_counted():
    clocks = make()
    assert not clocks.advance(9, ALL, 0, 1)
    assert clocks.rejected == 1


def test_slowest_is_the_least_applied_of_any_cell_and_origin():
    clocks = make()
    clocks.advance(1, ALL, 0, 7)
    clocks.advance(2, slice(0, 3), 0, 9)
    assert clocks.slowest() == 0
    clocks.advance(2, slice(3, 4), 0, 4)
    assert clocks.slowest() == 4


def test_slowest_adds_each_origins_own_span():
    clocks = make(span=3)
    assert clocks.slowest() == 3
    clocks.advance(1, ALL, 0, 5, span=2)
    assert clocks.slowest() == 3  # origin 2: 0 + 3; origin 1: 5 + 2
    clocks.advance(2, ALL, 0, 6, span=10)
    assert clocks.slowest() == 7


def test_slowest_nobody_else_is_infinite():
    assert make(origins=()).slowest() == math.inf


def test_lag_is_gradients_made_beyond_those_applied_of_the_slowest():
    clocks = make(span=5)
    clocks.made = 4
    clocks.advance(1, ALL, 0, 6)
    assert clocks.lag() == 4
    clocks.advance(2, ALL, 0, 3)
    assert clocks.lag() == 1
    clocks.advance(2, ALL, 3, 8)
    assert clocks.lag() == 0


def test_lag_nobody_else_is_zero():
    clocks = make(origins=())
    clocks.made = 4
    assert clocks.lag() == 0


def test_reach_never_goes_back():
    clocks = make()
    clocks.reach(1, slice(0, 2), 5)
    clocks.reach(1, ALL, 3)
    assert clocks.applied(1).tolist() == [5, 5, 3, 3]


def test_reach_origin_that_has_left_is_ignored():
    clocks = make()
    clocks.leave(1)
    clocks.reach(1, ALL, 3)
    assert clocks.tensors()["origins"].tolist() == [2]


def test_leave_slowest_origin_is_waited_for_no_more():
    clocks = make()
    clocks.advance(1, ALL, 0, 7)
    clocks.leave(2)
    assert clocks.slowest() == 7
    clocks.leave(2)
    clocks.leave(1)
    assert clocks.slowest() == math.inf


def test_snapshot_later_writes_do_not_change_it():
    clocks = make()
    clocks.made, clocks.images = 3, 48
    clocks.advance(1, ALL, 0, 2, span=4)
    copy = clocks.snapshot()
    clocks.made = 9
    clocks.advance(1, ALL, 2, 5, span=1)
    clocks.leave(2)
    assert (copy.made, copy.images, copy.slowest(), copy.lag()) == (3, 48, 0, 3)
    assert copy.applied(1).tolist() == [2] * 4


def test_restore_tensors_gives_the_same_clocks():
    clocks = make(span=2)
    clocks.made, clocks.images = 5, 80
    clocks.advance(1, slice(0, 2), 0, 3, span=6)
    clocks.advance(2, ALL, 0, 4, span=1)
    other = make(origins=(8,))
    other.restore(clocks.tensors())
    assert (other.made, other.images, other.slowest(), other.lag()) == (5, 80, 5, 5)
    assert other.applied(1).tolist() == [3, 3, 0, 0]
    assert other.applied(2).tolist() == [4] * 4
    clocks.advance(2, ALL, 4, 9)
    assert other.applied(2).tolist() == [4] * 4


def test_poisoned_gradients_count_on_after_a_checkpoint():
    clocks, other, healthy = make(), make(), make()
    assert "poisoned" not in clocks.tensors()
    clocks.poisoned = 3
    other.resume(clocks.kept(), 9, {9: 5})
    assert (other.poisoned, other.made) == (3, 5)
    other.restore(healthy.kept())
    assert other.poisoned == 0


def test_gradients_of_all_nodes_count_on_as_they_were_told_else_as_those_there_have_made():
    clocks, other = make(), make()
    clocks.of_all, clocks.come = 11, 40
    other.resume(clocks.kept(), 9, {1: 3, 2: 4, 9: 5})
    assert (other.of_all, other.come) == (11, 40)
    new = make()
    new.resume(make().kept(), 9, {1: 3, 2: 4, 9: 5})
    assert (new.of_all, new.come) == (12, 0)


def test_restore_other_number_of_cells_raises():
    with pytest.raises(ValueError, match="cells, not 4"):
        make().restore(make(cells=5).tensors())


def test_tensors_of_nobody_keep_their_shape():
    assert make(origins=()).tensors()["applied"].shape == (0, 4)


def test_create_follows_the_other_nodes():
    node = NodeContext(index=1, members={"worker": (0, 1, 2)})
    assert Clocks(cells=4, origins="worker").create(node).tensors()["origins"].tolist() == [0, 2]
    assert Clocks(cells=4, origins="worker", own=True).create(node).tensors()["origins"].tolist() == [0, 1, 2]


def test_create_with_sharding_counts_only_the_cells_an_origin_owns():
    sharding = Sharding(layout=Layout(bounds=(0, 1, 2)))
    node = NodeContext(index=0, members={"worker": (0,), "server": (1, 2)})
    clocks = Clocks(cells=2, origins="server", sharding=sharding).create(node)
    assert clocks.applied(1).tolist() == [0, FAR]
    clocks.reach(1, slice(0, 1), 4)
    clocks.reach(2, slice(1, 2), 6)
    assert clocks.slowest() == 4


def test_create_server_that_owns_nothing_is_not_waited_for():
    sharding = Sharding(layout=Layout(bounds=(0, 1, 2)))
    node = NodeContext(index=0, members={"worker": (0,), "server": (1, 2, 3)})
    clocks = Clocks(cells=2, origins="server", sharding=sharding).create(node)
    assert clocks.tensors()["origins"].tolist() == [1, 2]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["advance", "reach", "leave"]), st.integers(1, 3), st.integers(0, 3), st.integers(0, 4)
        ),
        max_size=40,
    )
)
def test_slowest_is_the_same_whether_it_was_asked_for_before_or_not(actions):
    clocks = make(origins=(1, 2, 3))
    for action, origin, start, span in actions:
        if action == "advance" and origin in clocks.snapshot().tensors()["origins"]:
            low = int(clocks.applied(origin)[start : start + 1].max(initial=0))
            clocks.advance(origin, slice(start, start + 1), low, low + 2, span=span)
        elif action == "reach":
            clocks.reach(origin, slice(0, start + 1), 3 * span)
        elif action == "leave":
            clocks.leave(origin)
        assert clocks.slowest() == clocks.snapshot().slowest()  # a snapshot was never asked


def follows(*origins, span=0):
    clocks = ClocksState(2, everything(origins, 2, without=None), span=span)
    for origin in origins:
        assert clocks.advance(origin, slice(0, 2), 0, 5, span=span)
    return clocks


def test_join_of_an_origin_forgets_what_was_applied_and_waits_for_it_once_it_has_said_where_it_begins():
    clocks = follows(1, 2)
    clocks.join(1)
    assert (clocks.slowest(), clocks.fresh) == (5, {1})
    assert clocks.applied(1).tolist() == [0, 0]
    # A new origin may begin anywhere, and what comes of it may be ahead of its word.
    assert clocks.advance(1, slice(0, 1), 3, 4)
    clocks.begin(1, 3)
    assert (clocks.slowest(), clocks.fresh) == (3, set())
    assert clocks.applied(1).tolist() == [4, 3]
    assert not clocks.advance(1, slice(0, 1), 5, 6)


def test_end_of_an_origin_is_waited_for_until_its_last_gradient_is_applied():
    clocks = follows(1, 2)
    clocks.end(1, 6)
    assert clocks.slowest() == 5
    clocks.advance(2, slice(0, 2), 5, 9)
    assert clocks.slowest() == 5
    assert clocks.advance(1, slice(0, 2), 5, 6)
    assert (clocks.slowest(), clocks.last) == (9, {1: 6})


def test_leave_tells_how_many_gradients_some_cells_have_got_and_others_have_not():
    clocks = follows(1)
    clocks.advance(1, slice(0, 1), 5, 8)
    assert clocks.leave(1) == 3
    assert clocks.leave(1) == 0


def test_lacks_is_about_the_cell_that_is_furthest_behind_and_no_later_than_the_last_gradient():
    clocks = follows(1)
    clocks.advance(1, slice(0, 1), 5, 8)
    assert [clocks.lacks(1, number) for number in (5, 6)] == [False, True]
    clocks.end(1, 5)
    assert not clocks.lacks(1, 6)
    assert not clocks.lacks(7, 6)


def test_take_over_of_an_origin_that_has_left_does_not_bring_it_back():
    clocks = follows(1)
    clocks.leave(1)
    clocks.take_over(1, np.array([3, 4]))
    assert clocks.origins == ()


def test_take_over_tells_behind_which_number_an_origin_goes_on_in_the_cell_that_is_furthest_behind():
    clocks = ClocksState(2, everything((1, 2), 2, without=None))
    clocks.take_over(1, np.array([9, 10]))
    clocks.take_over(2, np.array([12, 12]))
    assert clocks.since == {1: 9, 2: 12}


def test_create_with_sharding_on_a_node_that_comes_back_has_no_answer_yet():
    layout = Layout(bounds=(0, 1, 2))
    node = NodeContext(index=0, members={"worker": (0,), "server": (1, 2)}, incarnation=1)
    clocks = Clocks(cells=2, origins="server", sharding=Sharding(layout=layout)).create(node)
    assert clocks.slowest() == -1
    clocks.reach(1, slice(0, 1), 4)
    clocks.reach(2, slice(1, 2), 3)
    assert (clocks.slowest(), clocks.furthest()) == (3, 4)


def test_average_counts_those_that_are_gone_with_what_they_had_made_and_those_that_joined_once_they_begin():
    clocks = ClocksState(2, everything((1, 2), 2, without=None))
    clocks.made = 6
    clocks.advance(1, slice(0, 2), 0, 9)
    clocks.advance(2, slice(0, 2), 0, 3)
    assert clocks.average() == 6
    clocks.leave(1)
    assert clocks.average() == 6
    clocks.made = 12
    assert clocks.average() == 8
    clocks.join(1)
    assert clocks.average() == 8
    clocks.begin(1, 12)
    assert clocks.average() == 9


def test_what_servers_have_told_of_all_is_counted_with_what_was_made_here_since():
    layout = Layout(bounds=(0, 1, 2))
    node = NodeContext(index=0, members={"worker": (0,), "server": (1, 2)})
    clocks = Clocks(cells=2, origins="server", sharding=Sharding(layout=layout)).create(node)
    clocks.made = 3
    assert clocks.told() == 3
    clocks.reach(1, slice(0, 1), 2)
    clocks.reach(2, slice(1, 2), 3)
    clocks.of_all = 7
    assert clocks.told() == 8


def test_worker_goes_on_as_answered_by_servers_that_are_workers_whatever_these_have_made():
    layout = Layout(bounds=(0, 1, 2))
    node = NodeContext(index=0, members={"worker": (0, 1), "server": (0, 1)})
    clocks = Clocks(cells=2, origins="server", sharding=Sharding(layout=layout)).create(node)
    clocks.made = 11
    clocks.resume(clocks.tensors(), 0, {0: 11, 1: 10})
    assert (clocks.made, clocks.slowest(), clocks.pace) == (11, 11, 10)
    peers = ClocksState(2, everything((1,), 2, without=None))
    peers.made = 11
    peers.resume(peers.tensors(), 0, {0: 11, 1: 10})
    assert peers.slowest() == 10
