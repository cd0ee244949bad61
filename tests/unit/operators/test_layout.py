from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dataflow.message import nbytes
from operators.layout import FRAME_NBYTES as LIMIT
from operators.layout import Layout, Sharding, runs
from operators.messages import Fragment

FRAME_NBYTES = 1 << 20


@pytest.mark.parametrize("bounds", [(), (0,), (1, 2), (0, 2, 2), (0, 3, 1)])
def test_layout_bounds_that_do_not_ascend_from_zero_are_refused(bounds):
    with pytest.raises(ValidationError, match="bounds must ascend from 0"):
        Layout(bounds=bounds)


def test_of_ten_weights_in_four_cells_are_nearly_even():
    assert Layout.of(10, cells=4).bounds == (0, 2, 5, 7, 10)


def test_of_fewer_weights_than_cells_makes_one_cell_each():
    assert Layout.of(3).bounds == (0, 1, 2, 3)


def test_of_aligned_cells_begin_at_the_layers():
    layout = Layout.of(10, cells=2, align=(0, 3, 7, 10))
    assert layout.bounds == (0, 3, 5, 7, 10)


@given(
    n_weights=st.integers(1, 10**8),
    cells=st.integers(1, 600),
    align=st.lists(st.integers(0, 10**8), max_size=8),
)
@settings(deadline=None, max_examples=50)
def test_of_any_size_tiles_the_vector_with_cells_that_fit_a_frame(n_weights, cells, align):
    layout = Layout.of(n_weights, cells=cells, align=align)
    sizes = np.diff(layout.bounds)
    assert (layout.bounds[0], layout.n_weights) == (0, n_weights)
    assert sizes.min() > 0
    assert sizes.max() * 4 + 128 <= FRAME_NBYTES
    assert {offset for offset in align if offset < n_weights} <= set(layout.bounds)
    assert layout.cells >= min(cells, n_weights)


def test_frames_of_a_large_model_cover_it_and_fit_one_mebibyte():
    layout = Layout.of(20_800_000)
    frames = list(layout.frames(0, layout.cells))
    assert frames[0][0] == 0
    assert frames[-1][1] == layout.cells
    assert all(before[1] == after[0] for before, after in pairwise(frames))
    assert len(frames) == 128  # 256 cells of 81,250 weights, two to a frame
    for start, stop in frames:
        size = layout.weights(start, stop).stop - layout.weights(start, stop).start
        values = np.zeros(size, np.float32)
        assert nbytes(Fragment(0, start, stop, 0, 1, 1, skips=False, values=values)) <= FRAME_NBYTES


def test_frames_of_a_small_model_are_one():
    layout = Layout.of(59_590)
    assert list(layout.frames(3, layout.cells)) == [(3, 256)]


def test_weights_of_cells_are_their_slice():
    assert Layout(bounds=(0, 2, 5, 9)).weights(1, 3) == slice(2, 9)


@pytest.mark.parametrize("size", range(1, 9))
def test_owners_by_range_are_within_one_cell_of_even(size):
    layout = Layout.of(59_590, align=(0, 260, 5_280, 37_380, 57_580))
    owners = Sharding(layout=layout).owners(size)
    assert list(owners) == sorted(owners)
    cell = np.diff(layout.bounds)
    for rank in range(size):
        owned = sum(size for size, owner in zip(cell, owners, strict=True) if owner == rank)
        assert abs(owned - layout.n_weights / size) <= cell.max()


def test_owners_by_layer_deal_out_whole_layers_in_turn():
    layout = Layout(bounds=(0, 5, 10, 20, 21, 30, 40))
    owners = Sharding(layout=layout, by="layer", layers=(0, 10, 21)).owners(2)
    assert owners == (0, 0, 1, 1, 0, 0)


def test_owners_more_servers_than_layers_leave_some_without():
    owners = Sharding(layout=Layout(bounds=(0, 5, 10)), by="layer", layers=(0, 5)).owners(4)
    assert owners == (0, 1)


def test_owned_masks_are_keyed_by_node_and_disjoint():
    owned = Sharding(layout=Layout(bounds=(0, 1, 2, 3))).owned((7, 4))
    assert owned[7].tolist() == [True, True, False]
    assert owned[4].tolist() == [False, False, True]


def test_runs_of_owners_are_maximal():
    assert list(runs((0, 0, 1, 0, 2, 2))) == [(0, 2, 0), (2, 3, 1), (3, 4, 0), (4, 6, 2)]


@given(data=st.data())
@settings(deadline=None, max_examples=50)
def test_fitting_runs_are_as_long_as_their_bytes_fit_a_frame_and_one_cell_at_least(data):
    layout = Layout.of(data.draw(st.integers(1, 10**7)), cells=data.draw(st.integers(1, 60)))
    each = data.draw(st.sampled_from([0.001, 0.25, 1, 4, 5]))
    start = data.draw(st.integers(0, layout.cells - 1))
    stop = data.draw(st.integers(start + 1, layout.cells))

    def size(begin, end):
        return int(each * (end - begin))

    found = list(layout.fitting(start, stop, size))
    assert [found[0][0], found[-1][1]] == [start, stop]
    assert all(before[1] == after[0] for before, after in pairwise(found))
    for first, end in found:
        assert end > first
        assert end == first + 1 or size(layout.bounds[first], layout.bounds[end]) <= LIMIT
        assert end == stop or size(layout.bounds[first], layout.bounds[end + 1]) > LIMIT
