"""The sizes of blocks of dot products: all that is asked for is compiled, whatever registers a machine has."""

from itertools import pairwise

import pytest

from operators.dnn.kernels.dot import MAX_B, most_a


@pytest.mark.parametrize("registers", [16, 32])
def test_blocks_fit_the_registers_and_hide_how_long_a_sum_takes(registers):
    for b_rows, a_rows in enumerate(most_a(registers), 1):
        assert a_rows * b_rows + b_rows + 1 <= registers
    assert max(a_rows * b_rows for b_rows, a_rows in enumerate(most_a(registers), 1)) >= 12


@pytest.mark.parametrize("registers", [16, 32])
def test_rows_that_fit_the_largest_block_fit_every_smaller_one(registers):
    sizes = most_a(registers)
    assert len(sizes) == MAX_B
    assert all(after <= before for before, after in pairwise(sizes))
