"""The program table: how a network is described to the compiled kernels.

An int64 array with a row per operation, in forward order. Offsets count elements, of the weight vector, of the
statistics, or of the flat workspace buffer; they leave room for a whole chunk of images.

An array of one row and column is *flat*, (image, channel); any other, and what convolutions, pooling and batch
normalisation read and write, is *spatial*: (channel, row, column, image), image innermost. Both are packed to the
number of images in hand, and the channels of spatial arrays lie `channel_stride` apart.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from operators.dnn.kernels.jit import kernel

Floats = npt.NDArray[Any]
"""float32 in training; the finite-difference tests compile the same kernels for float64."""
Row = npt.NDArray[np.int64]
"""One row of the program table, int64."""

IDENTITY = 0
RELU = 1
SIGMOID = 2
TANH = 3

NOWHERE = -1
"""Offset of what an operation does not have."""

FORWARD = 0  # address of the unit that runs the operation forward
BACKWARD = 1  # and of that which runs it backward
OUTER = 2  # those of the inner loops
DOT = 3
FUNCTION = 4  # activation applied to the result: IDENTITY, RELU, SIGMOID or TANH
CHANNELS = 5  # of the input
HEIGHT = 6
WIDTH = 7
OUT_CHANNELS = 8
OUT_HEIGHT = 9  # of a convolution with a pool: before it
OUT_WIDTH = 10
KERNEL = 11  # rows of the kernel or the pooling window, pixels
KERNEL_WIDTH = 12  # its columns
STRIDE = 13
PADDING = 14
POOL = 15  # a max-pool that is part of a convolution: side of its window, 0 for none
POOL_STRIDE = 16
POOL_HEIGHT = 17  # its output
POOL_WIDTH = 18
FLAT = 19  # 1 if the input is flat
WEIGHTS = 20  # offset of the weight in the weight vector, the bias behind it
STATISTICS = 21  # offset of the running mean in the statistics, the variance behind it
NUMBER = 22  # of the layer among the network's steps, which dropout's bits depend on
RATE = 23  # the float64 of this bit pattern: dropout's rate, batch normalisation's momentum
EPSILON = 24  # likewise, added to variances
INPUT = 25  # buffer offsets from here on
SECOND = 26  # the other summand of an addition
OUTPUT = 27
INPUT_GRADIENT = 28  # NOWHERE if nothing below has weights
SECOND_GRADIENT = 29
OUTPUT_GRADIENT = 30
TOTAL = 31  # gradient of the input that INPUT_GRADIENT is added to, where several operations read it
SECOND_TOTAL = 32
KEPT = 33  # what backward needs from forward: winners of a pool, mean and deviation of a batch
PACKED = 34  # weights of a convolution as the kernels read them, forward
PACKED_BACK = 35  # and to its input
SCRATCH = 36  # dead after the operation
COLUMNS = 37  # of the table


@kernel
def channel_stride(elements: int) -> int:
    """Distance between the channels of a spatial array with `elements` in each.

    An odd number of cache lines of float32: otherwise channels whose size is a power of two would compete for the same
    few places of the caches.
    """
    return 16 * (((elements + 15) // 16) | 1)


@kernel
def real(row: Row, column: int) -> float:
    """The float64 in a column."""
    value: float = row[column : column + 1].view(np.float64)[0]
    return value
