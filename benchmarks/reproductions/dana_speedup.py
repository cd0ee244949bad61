"""Figure 12 of dana.txt: how much faster asynchronous training is than synchronous, whatever messages cost.

    python benchmarks/reproductions/dana_speedup.py

Gradients' times are gamma-distributed as in the simulator (`--compute gamma`, `gamma-heterogeneous`). In a step of
synchronous training every worker makes a gradient and waits for the slowest; asynchronous workers never wait.
"""

from __future__ import annotations

import numpy as np

from dataflow.sim.costs import SPREADS, Spread

WORKERS = (8, 16, 32, 64, 128, 256, 512, 1000)
DRAWS = 400
"""Clusters that are drawn, or steps of one where all machines are alike."""


def ratio(spread: Spread, workers: int, draws: int = DRAWS, seed: int = 0) -> tuple[float, float]:
    """Gradients per second of asynchronous workers over those of synchronous ones: mean over draws, and its error.

    Args:
        spread: of the times, whose mean is 1.
        workers: how many.
        draws: of a cluster and 20 steps on it.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    found = np.empty(draws)
    for number in range(draws):
        machine = gamma(rng, spread.machine, (workers,))
        times = machine * gamma(rng, spread.task, (20, workers))
        found[number] = (1 / machine).mean() * times.max(axis=1).mean()
    return float(found.mean()), float(found.std() / draws**0.5)


def gamma(rng: np.random.Generator, variation: float, shape: tuple[int, ...]) -> np.ndarray:
    """Draws of mean 1 and this coefficient of variation."""
    return rng.gamma(1 / variation**2, variation**2, shape) if variation else np.ones(shape)


def main() -> None:
    """Print the table."""
    print("| workers | homogeneous | heterogeneous |")
    print("| --- | --- | --- |")
    for workers in WORKERS:
        cells = ("{:.3f} ± {:.3f}".format(*ratio(SPREADS[name], workers)) for name in ("gamma", "gamma-heterogeneous"))
        print(f"| {workers} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
