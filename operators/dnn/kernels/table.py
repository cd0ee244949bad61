"""The program table: how a network is described to the compiled kernels.

An int64 array with a row per operation, in forward order. Offsets count elements, of the weight vector
or of the flat workspace buffer. Activations are arrays (channel, row, column, image), image innermost,
packed to the batch in hand; offsets leave room for the workspace's full batch.
"""

from typing import Any

import numpy.typing as npt

from operators.dnn.kernels.jit import kernel

Floats = npt.NDArray[Any]
"""float32 in training; the finite-difference tests compile the same kernels for float64."""
Row = npt.NDArray[Any]
"""One row of the program table, int64."""

CONV = 0
MAX_POOL = 1
DENSE = 2
ACTIVATION = 3

IDENTITY = 0
RELU = 1
SIGMOID = 2
TANH = 3

OPCODE = 0
FUNCTION = 1  # the activation applied to the result: IDENTITY, RELU, SIGMOID or TANH
CHANNELS = 2  # of the input
HEIGHT = 3
WIDTH = 4
OUT_CHANNELS = 5
OUT_HEIGHT = 6
OUT_WIDTH = 7
KERNEL = 8  # side of the kernel or the pooling window, pixels
STRIDE = 9
PADDING = 10
WEIGHTS = 11  # offset of the weight in the weight vector, the bias behind it; -1 where there are none
INPUT = 12  # buffer offsets from here on
OUTPUT = 13
INPUT_GRADIENT = 14
OUTPUT_GRADIENT = 15
SCRATCH = 16  # conv: columns, tile, product; dense: tile; max-pool: the winners' positions, kept until backward
COLUMNS = 17  # of the table

TILE_ELEMENTS = 32768
"""Size aimed at for a tile of im2col columns: 128 KiB of float32, which stays in the level-2 cache."""


@kernel
def matrix(array: Floats, offset: int, rows: int, columns: int) -> Floats:
    """View (rows, columns) elements of a flat array from `offset`."""
    return array[offset : offset + rows * columns].reshape((rows, columns))


@kernel
def tile_rows(patch: int, out_height: int, run: int) -> int:
    """Output rows per im2col tile, where a patch has `patch` weights per filter and a row `run` elements."""
    return max(1, min(out_height, TILE_ELEMENTS // (patch * run)))


def tile_columns_bound(patch: int, out_height: int, run: int) -> int:
    """Most columns a tile has at this or any smaller batch; `run` is out_width times the largest batch."""
    return min(out_height * run, max(TILE_ELEMENTS // patch, run))
