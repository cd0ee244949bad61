"""Max-pooling, which remembers the winners' positions for the backward pass."""

from operators.dnn.kernels.jit import kernel
from operators.dnn.kernels.table import (
    CHANNELS,
    HEIGHT,
    INPUT,
    INPUT_GRADIENT,
    KERNEL,
    OUT_HEIGHT,
    OUT_WIDTH,
    OUTPUT,
    OUTPUT_GRADIENT,
    SCRATCH,
    STRIDE,
    WIDTH,
    Floats,
    Row,
)


@kernel
def pool_forward(row: Row, buffer: Floats, batch: int) -> None:
    """Take the maximum of each window; the first of equal values wins, and a NaN beats every number."""
    line = row[WIDTH] * batch
    out_line = row[OUT_WIDTH] * batch
    for channel in range(row[CHANNELS]):
        for y in range(row[OUT_HEIGHT]):
            for x in range(row[OUT_WIDTH]):
                place = (channel * row[OUT_HEIGHT] + y) * out_line + x * batch
                best = buffer[row[OUTPUT] + place : row[OUTPUT] + place + batch]
                winner = buffer[row[SCRATCH] + place : row[SCRATCH] + place + batch]
                for i in range(row[KERNEL]):
                    corner = row[INPUT] + (channel * row[HEIGHT] + y * row[STRIDE] + i) * line
                    for j in range(row[KERNEL]):
                        begin = corner + (x * row[STRIDE] + j) * batch
                        _compete(buffer[begin : begin + batch], best, winner, i * row[KERNEL] + j)


@kernel
def _compete(values: Floats, best: Floats, winner: Floats, position: int) -> None:
    """Let the pixels at `position` of their windows, one per image, challenge the best so far."""
    mark = winner.dtype.type(position)
    if position == 0:
        for n in range(values.size):
            best[n] = values[n]
            winner[n] = mark
        return
    for n in range(values.size):
        value = values[n]
        champion = best[n]
        # a NaN wins, once: no comparison with the NaN that reigns is true
        wins = (value > champion) | ((value != value) & (champion == champion))  # noqa: PLR0124
        best[n] = value if wins else champion
        winner[n] = mark if wins else winner[n]


@kernel
def pool_backward(row: Row, buffer: Floats, batch: int) -> None:
    """Add each output's gradient to that of the input that won."""
    line = row[WIDTH] * batch
    out_line = row[OUT_WIDTH] * batch
    buffer[row[INPUT_GRADIENT] : row[INPUT_GRADIENT] + row[CHANNELS] * row[HEIGHT] * line] = 0
    zero = buffer.dtype.type(0)
    for channel in range(row[CHANNELS]):
        for y in range(row[OUT_HEIGHT]):
            for x in range(row[OUT_WIDTH]):
                place = (channel * row[OUT_HEIGHT] + y) * out_line + x * batch
                gradient = buffer[row[OUTPUT_GRADIENT] + place : row[OUTPUT_GRADIENT] + place + batch]
                winner = buffer[row[SCRATCH] + place : row[SCRATCH] + place + batch]
                for i in range(row[KERNEL]):
                    corner = row[INPUT_GRADIENT] + (channel * row[HEIGHT] + y * row[STRIDE] + i) * line
                    for j in range(row[KERNEL]):
                        begin = corner + (x * row[STRIDE] + j) * batch
                        target = buffer[begin : begin + batch]
                        mark = buffer.dtype.type(i * row[KERNEL] + j)
                        for n in range(batch):
                            target[n] += gradient[n] if winner[n] == mark else zero
