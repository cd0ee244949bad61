"""Messages of as many updates as the paper's, of models as large as the paper's (strom_sparse_sgd.txt, Tables 3 and 4).

    python benchmarks/reproductions/strom_messages.py

Vectors are normally distributed, and the threshold is set so that as many weights are sent as the paper's ratio says:
so this tells how large such a message is and how long it takes, and nothing about how few updates a model needs.
Processor time of one thread, least of several rounds: `quantise` and `encode` together, and `add`, which checks first.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from operators.compression import Residual, Threshold, add

PAPER = (
    (14_600_000, 278),
    (14_600_000, 846),
    (14_600_000, 1_770),
    (14_600_000, 3_893),
    (14_600_000, 7_487),
    (14_600_000, 12_978),
    (21_700_000, 998),
    (23_700_000, 1_436),
    (48_800_000, 2_871),
)
"""Weights, and the paper's compression ratio: dense bytes over those of its messages, 4 for each update."""

COLUMNS = (
    "weights, millions",
    "updates",
    "the paper's ratio",
    "words, kB",
    "Rice, kB",
    "bits of an update",
    "ratio",
    "encode, ms",
    "add, ms",
)
ROUNDS = 5


def milliseconds(function: Callable[[], object]) -> float:
    """Processor time of a call."""
    begin = time.process_time()
    function()
    return 1e3 * (time.process_time() - begin)


def row(n_weights: int, ratio: int) -> str:
    """A row of the table: size and time of one message."""
    values = np.random.default_rng(0).standard_normal(n_weights, np.float32)
    rank = n_weights - n_weights // ratio
    magnitudes = np.abs(values)
    magnitudes.partition(rank)
    tau = float(magnitudes[rank])
    target = magnitudes  # its memory is used again
    sizes, encodes, decodes = [], [], []
    for packing in ("words", "rice"):
        residual = Residual(Threshold(tau=tau, packing=packing), n_weights)
        for _ in range(ROUNDS):
            residual.values[:] = values
            encodes.append(milliseconds(lambda r=residual: r.quantise().encode(0, n_weights)))
        residual.values[:] = values
        code = residual.quantise().encode(0, n_weights)
        target[:] = 0
        decodes += [milliseconds(lambda c=code: add(target, c)) for _ in range(ROUNDS)]
        sizes.append(code.size)
        updates = int(np.count_nonzero(target))
    words, rice = sizes
    return (
        f"| {n_weights / 1e6:.1f} | {updates:,} | {ratio:,} | {words / 1e3:.1f} | {rice / 1e3:.1f} "
        f"| {8 * rice / updates:.1f} | {4 * n_weights / rice:,.0f} "
        f"| {min(encodes[ROUNDS:]):.1f} | {min(decodes[ROUNDS:]):.2f} |"
    )


def main() -> None:
    print(f"| {' | '.join(COLUMNS)} |\n{'| --- ' * len(COLUMNS)}|")
    for n_weights, ratio in PAPER:
        print(row(n_weights, ratio), flush=True)


if __name__ == "__main__":
    main()
