"""How a convolution by tiles goes over a chunk of images, and what memory that takes."""

from typing import NamedTuple

from operators.dnn.kernels.jit import kernel
from operators.dnn.kernels.outer import MAX_ROWS
from operators.dnn.kernels.table import (
    CHANNELS,
    KERNEL,
    OUT_CHANNELS,
    OUT_HEIGHT,
    OUT_WIDTH,
    PADDING,
    POOL,
    SCRATCH,
    WIDTH,
    Row,
    channel_stride,
)
from operators.dnn.kernels.winograd_lines import TILE

BAND_ELEMENTS = 64 * 1024
"""Elements at the points that are in hand at once, unless one row of tiles has more: they stay in the level-2 cache."""

MOST_SPACE = 32
"""Most elements that `channel_stride` adds."""


class Plan(NamedTuple):
    """How the tiles of a chunk are gone over, and where in the buffer that lies which is made of them.

    Args:
        rows: output rows of a tile.
        tiles: rows of tiles.
        band: rows of tiles in hand at once.
        whole: all outputs before the pool, and their gradient.
        zeros: a line of them.
        spare: `TILE` lines, `reach` apart.
        sums: the weight's gradient at the points: (point, filter, channel, column).
        inputs: inputs at the points, and their gradient: (point, channel, tile, column, image).
        outputs: outputs at the points, and their gradient: likewise, with filters.
        input_step, output_step: distance between channels, and between filters.
    """

    rows: int
    tiles: int
    band: int
    whole: int
    zeros: int
    spare: int
    reach: int
    sums: int
    inputs: int
    outputs: int
    input_step: int
    output_step: int


@kernel
def tile_plan(row: Row, batch: int) -> Plan:
    """The plan of a row of the program table for so many images."""
    side, channels, filters = row[KERNEL], row[CHANNELS], row[OUT_CHANNELS]
    line, padded = row[OUT_WIDTH] * batch, (row[WIDTH] + 2 * row[PADDING]) * batch
    rows = TILE - side + 1
    tiles = (row[OUT_HEIGHT] + rows - 1) // rows
    band = max(1, min(tiles, BAND_ELEMENTS // (TILE * (channels * padded + filters * line))))
    zeros = row[SCRATCH] + (filters * channel_stride(row[OUT_HEIGHT] * line) if row[POOL] else 0)
    reach = channel_stride(max(padded, channels * side, MAX_ROWS * side))
    sums = zeros + (1 + TILE) * reach
    inputs = sums + channel_stride(TILE * filters * channels * side)
    input_step, output_step = channel_stride(band * padded), channel_stride(band * line)
    outputs = inputs + TILE * channels * input_step
    return Plan(
        rows, tiles, band, row[SCRATCH], zeros, zeros + reach, reach, sums, inputs, outputs, input_step, output_step
    )


def tile_elements(
    shape: tuple[int, int, int], output: tuple[int, int, int], side: int, padding: int, batch: int
) -> int:
    """Elements that a plan for up to `batch` images needs, besides all outputs before the pool.

    Args:
        shape: (channels, height, width) of the input.
        output: likewise, before the pool.
        side: of the kernel.
        padding: of zeros.
        batch: images.
    """
    channels, _, width = shape
    filters, height, out_width = output
    tiles = (height - 1) // (TILE - side + 1) + 1
    padded = (width + 2 * padding) * batch
    tile = TILE * (channels * padded + filters * out_width * batch)
    reach = max(padded, channels * side, MAX_ROWS * side) + MOST_SPACE
    points = max(tile, min(tiles * tile, BAND_ELEMENTS)) + TILE * (channels + filters) * MOST_SPACE
    return (1 + TILE) * reach + TILE * filters * channels * side + MOST_SPACE + points
