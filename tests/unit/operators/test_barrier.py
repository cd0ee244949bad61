import numpy as np
import pytest

from dataflow.node_context import NodeContext
from operators.barrier import Barrier, BarrierState, mean
from operators.messages import Fragment


def fragment(origin, number, *values, start=0, stop=2):
    array = np.array(values, np.float32)
    array.flags.writeable = False
    return Fragment(origin, start, stop, number - 1, number, 0, skips=False, values=array)


def test_add_last_contribution_gives_the_mean_of_all():
    barrier = BarrierState({0, 1, 2})
    assert barrier.add(fragment(2, 1, 3, 30)) is None
    assert barrier.add(fragment(0, 1, 1, 10)) is None
    complete = barrier.add(fragment(1, 1, 5, 80))
    assert (complete.start, complete.stop, complete.number) == (0, 2, 1)
    assert complete.contributors == (0, 1, 2)
    assert complete.values.tolist() == [3, 40]
    assert complete.values.dtype == np.float32


def test_add_any_order_of_arrival_gives_the_same_bits():
    rng = np.random.default_rng(0)
    parts = [fragment(origin, 1, *rng.standard_normal(100), stop=100) for origin in range(5)]
    means = []
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]):
        barrier = BarrierState(set(range(5)))
        means.append([barrier.add(parts[origin]) for origin in order][-1].values)
    assert np.array_equal(*means)
    assert np.array_equal(means[0], mean([part.values for part in parts]))


def test_add_runs_of_cells_and_steps_wait_separately():
    barrier = BarrierState({0, 1})
    barrier.add(fragment(0, 1, 1, 1))
    barrier.add(fragment(0, 1, 2, 2, start=2, stop=4))
    barrier.add(fragment(0, 2, 3, 3))
    assert barrier.add(fragment(1, 1, 4, 4, start=2, stop=4)).values.tolist() == [3, 3]
    assert barrier.add(fragment(1, 2, 5, 5)).values.tolist() == [4, 4]
    assert barrier.add(fragment(1, 1, 7, 7)).values.tolist() == [4, 4]


def test_add_single_contributor_gives_its_own_values():
    assert BarrierState({3}).add(fragment(3, 1, 1, 2)).values.tolist() == [1, 2]


def test_leave_completes_what_only_the_leaver_was_missing_from_oldest_first():
    barrier = BarrierState({0, 1, 2})
    barrier.add(fragment(0, 2, 8, 8))
    barrier.add(fragment(1, 2, 4, 4))
    barrier.add(fragment(0, 1, 2, 2))
    barrier.add(fragment(1, 1, 4, 4))
    barrier.add(fragment(0, 3, 1, 1))
    complete = list(barrier.leave(2))
    assert [(one.number, one.values.tolist(), one.contributors) for one in complete] == [
        (1, [3, 3], (0, 1)),
        (2, [6, 6], (0, 1)),
    ]
    assert barrier.add(fragment(1, 3, 3, 3)).values.tolist() == [2, 2]


def test_leave_contribution_of_the_leaver_still_counts():
    barrier = BarrierState({0, 1})
    barrier.add(fragment(1, 1, 4, 6))
    assert list(barrier.leave(1)) == []
    complete = barrier.add(fragment(0, 1, 2, 2))
    assert (complete.values.tolist(), complete.contributors) == ([3, 4], (0, 1))
    assert barrier.add(fragment(0, 2, 5, 5)).contributors == (0,)


def test_last_remembers_the_last_complete_step_of_each_run():
    barrier = BarrierState({0})
    barrier.add(fragment(0, 1, 1, 1))
    barrier.add(fragment(0, 2, 1, 1))
    barrier.add(fragment(0, 1, 1, 1, start=2, stop=4))
    assert barrier.last == {(0, 2): (2, (0,)), (2, 4): (1, (0,))}


def test_restore_takes_over_who_is_expected_and_forgets_contributions():
    barrier = BarrierState({0, 1})
    barrier.add(fragment(0, 1, 1, 1))
    barrier.restore(BarrierState({4}).tensors())
    assert barrier.expected == {4}
    assert barrier.add(fragment(4, 1, 2, 2)).contributors == (4,)


@pytest.mark.parametrize("role", ["worker", "server"])
def test_create_expects_every_member_of_the_role(role):
    node = NodeContext(index=2, role="server", members={"worker": (0, 1), "server": (2,)})
    assert Barrier(contributors=role).create(node).snapshot().expected == set(node.members[role])
