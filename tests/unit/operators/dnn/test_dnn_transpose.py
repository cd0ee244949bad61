"""The compiled transposition: every size, beside squares of a register, and nothing written elsewhere."""

import numpy as np
import pytest

from operators.dnn.kernels.jit import entry
from operators.dnn.kernels.simd import REGISTER_BYTES
from operators.dnn.kernels.transpose import transpose

SIDE = REGISTER_BYTES // 4
SIZES = (0, 1, SIDE - 1, SIDE, SIDE + 1, 2 * SIDE, 3 * SIDE - 1)


@entry
def compiled(source, source_at, source_step, target, target_at, target_step, rows, columns):
    transpose(source, source_at, source_step, target, target_at, target_step, rows, columns)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("columns", SIZES)
def test_every_element_is_moved_and_no_other_written(rows, columns, dtype):
    source = np.arange(5 + rows * (columns + 3), dtype=dtype)
    target = np.full(7 + columns * (rows + 2), -1, dtype)
    expected = target.copy()
    for r in range(rows):
        for c in range(columns):
            expected[7 + c * (rows + 2) + r] = source[5 + r * (columns + 3) + c]
    source.setflags(write=False)
    compiled(source, 5, columns + 3, target, 7, rows + 2, rows, columns)
    np.testing.assert_array_equal(target, expected)
