import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from operators.pulls_state import PullsState


def test_pulls_count_what_workers_made_before_a_server_was_started_again_but_not_what_one_that_came_back_never_made():
    pulls = PullsState({0, 1})
    pulls.push((0, 2), 0, 7)
    pulls.push((0, 2), 0, 8)
    assert pulls.made == {(0, 2): 8}
    assert pulls.join((0, 2), 1) == 8
    pulls.push((0, 2), 1, 10)
    assert pulls.made == {(0, 2): 10}
    other = PullsState(set())
    other.restore(pulls.snapshot())
    assert other.made == {(0, 2): 10}
    other.push((0, 2), 1, 9)  # made again, behind the checkpoint
    assert other.made == {(0, 2): 9}


def test_pulls_restore_gives_the_same_numbers():
    pulls = PullsState({0, 1})
    pulls.push((0, 2), 0, 7)
    pulls.push((2, 5), 1, 4)
    other = PullsState({9})
    other.restore(pulls.snapshot())
    assert other.workers == {0, 1}
    assert other.pushed == {(0, 2): {0: 7}, (2, 5): {1: 4}}
    assert [other.slowest((0, 2)), other.slowest((7, 8))] == [0, 0]


def test_pulls_restore_of_nothing_is_empty():
    pulls = PullsState({0})
    pulls.restore(PullsState(set()).tensors())
    assert (pulls.workers, pulls.pushed) == (set(), {})


@given(st.lists(st.tuples(st.sampled_from(["push", "push", "push", "leave", "join"]), st.integers(0, 3)), max_size=60))
def test_slowest_is_the_least_number_of_the_workers_that_are_there(moves: list[tuple[str, int]]) -> None:
    cells, pulls = (0, 2), PullsState({0, 1, 2})
    for move, worker in moves:
        if move == "push":
            pulls.push(cells, worker, pulls.pushed.get(cells, {}).get(worker, 0) + 1)
        elif move == "leave":
            pulls.leave(worker)
        else:
            pulls.join(cells, worker)
        numbers = [pulls.pushed.get(cells, {}).get(worker, 0) for worker in pulls.workers]
        assert pulls.slowest(cells) == min(numbers, default=np.iinfo(np.int64).max)
