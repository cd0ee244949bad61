import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.node_context import NodeContext
from operators.average import Average, AverageState


def vector(*values):
    return np.array(values, np.float32)


def followed(values, window):
    state = AverageState(1)
    for value in values:
        state.follow(vector(value), window)
    return state


@pytest.mark.parametrize(("averages", "size", "form"), [(True, 6, "averaged weights"), (False, 0, "")])
def test_average_of_nothing_is_none_and_takes_no_memory_where_nothing_is_averaged(averages, size, form):
    """Its shape never changes: a job goes on from a checkpoint only if its state has the shapes of a new one."""
    element = Average(n_weights=6, averages=averages)
    state = element.create(NodeContext())
    assert state.snapshot() is None
    assert state.tensors()["values"].shape == (size,)
    assert element.form == form


def test_average_is_the_plain_mean_until_the_window_is_full():
    assert followed([1, 2, 6], 8).snapshot().tolist() == [3]


def test_average_forgets_by_its_window():
    """Shares 1, 1/2, then 1/2 for ever: ((0 + 4) / 2 + 8) / 2."""
    assert followed([0, 4, 8], 2).snapshot().tolist() == [5]


@pytest.mark.parametrize("window", [0.25, 1])
def test_average_over_one_gradient_or_less_is_none(window):
    """Where others apply gradients, it would lack the last one, and a job of one gradient be in vain."""
    assert followed([3, 9, 27], window).snapshot() is None


@given(st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=40), st.floats(1.01, 20))
def test_average_lies_among_what_was_averaged(values, window):
    found = followed(values, window).snapshot()[0]
    assert min(values) - 1e-5 <= found <= max(values) + 1e-5


def test_average_snapshot_stays_and_what_is_averaged_is_only_read():
    state, values = AverageState(2), vector(2, 4)
    state.follow(values, 4)
    seen = state.snapshot()
    values.flags.writeable = False
    state.follow(vector(4, 8), 4)
    assert seen.tolist() == [2, 4]
    assert state.snapshot().tolist() == [3, 6]
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 1


def test_average_adds_what_was_subtracted_and_is_not_to_count():
    state, owed = AverageState(2), vector(1, -1)
    owed.flags.writeable = False
    state.follow(vector(2, 4), 4, owed=owed)
    state.follow(vector(0, 0), 4)
    assert state.snapshot().tolist() == [1.5, 1.5]


def test_average_restored_goes_on_as_if_never_interrupted():
    state, other = followed([1, 5], 4), AverageState(1)
    other.restore({name: tensor.copy() for name, tensor in state.kept().items()})
    for each in (state, other):
        each.follow(vector(9), 4)
    assert state.snapshot().tolist() == other.snapshot().tolist() == [5]


def test_average_restored_to_before_the_first_is_none():
    state = followed([1], 4)
    state.restore(AverageState(1).tensors())
    assert state.snapshot() is None
