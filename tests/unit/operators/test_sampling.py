import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.sampling import epoch_order, node_indices, split_validation


def test_split_validation_tenth_of_sixty_thousand_holds_out_six_thousand():
    train, validation = split_validation(60_000, 0.1, seed=3)
    assert (len(train), len(validation)) == (54_000, 6_000)


@settings(deadline=None)
@given(n=st.integers(2, 300), fraction=st.floats(0.01, 0.99), seed=st.integers(0, 2**128))
def test_split_validation_any_accepted_size_partitions_range_in_order(n, fraction, seed):
    if not 0 < round(n * fraction) < n:
        with pytest.raises(ValueError, match="leaves one part empty"):
            split_validation(n, fraction, seed)
        return
    train, validation = split_validation(n, fraction, seed)
    assert len(validation) == round(n * fraction)
    assert np.all(np.diff(train) > 0)
    assert np.all(np.diff(validation) > 0)
    assert sorted([*train, *validation]) == list(range(n))


def test_split_validation_same_seed_repeats_and_other_seed_differs():
    first = split_validation(1000, 0.1, seed=5)[1]
    assert np.array_equal(first, split_validation(1000, 0.1, seed=5)[1])
    assert not np.array_equal(first, split_validation(1000, 0.1, seed=6)[1])


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_split_validation_fraction_out_of_range_raises(fraction):
    with pytest.raises(ValueError, match="fraction must be above 0 and below 1"):
        split_validation(10, fraction, seed=0)


def test_node_indices_three_nodes_of_eight_samples_own_every_third():
    owned = [list(range(8))[node_indices(8, rank, 3)] for rank in range(3)]
    assert owned == [[0, 3, 6], [1, 4, 7], [2, 5]]


@pytest.mark.parametrize(("n", "rank", "size"), [(8, 3, 3), (8, -1, 3), (8, 0, 0), (2, 0, 3)])
def test_node_indices_no_such_node_or_too_few_samples_raises(n, rank, size):
    with pytest.raises(ValueError, match="got"):
        node_indices(n, rank, size)


@settings(deadline=None)
@given(
    n=st.integers(0, 200), seed=st.integers(0, 2**128), epoch=st.integers(0, 2**32 - 1), rank=st.integers(0, 2**32 - 1)
)
def test_epoch_order_any_arguments_is_a_repeatable_permutation(n, seed, epoch, rank):
    order = epoch_order(n, seed, epoch, rank)
    assert order.dtype == np.int64
    assert sorted(order) == list(range(n))
    assert np.array_equal(order, epoch_order(n, seed, epoch, rank))


def test_epoch_order_seed_epoch_or_rank_changed_gives_distinct_orders():
    # 2**32 is [0, 1] in 32-bit words: concatenating seed, epoch and rank would confuse it with seed 0, epoch 1.
    arguments = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**32, 0, 0), (2**64, 0, 0), (0, 1, 1)]
    assert len({tuple(epoch_order(50, *argument)) for argument in arguments}) == len(arguments)


def test_epoch_order_first_epoch_is_independent_of_the_validation_split():
    _, validation = split_validation(1000, 0.1, seed=7)
    assert not np.array_equal(np.sort(epoch_order(1000, 7, 0, 0)[:100]), validation)
