"""A server's update by each rule: time beside a plain `w -= eta * g` and a copy of the same vector.

    python benchmarks/update_rules.py [--weights N] [--rounds N]
    python benchmarks/update_rules.py --served [--weights 60000] [--workers 8 32 64]

One thread, processor time. Each round times a copy (`np.copyto`), the plain update (one pass, which reads g and w and
writes w) and the rule's, one after the other. Told are the least times over the rounds, and the median over the rounds
of rule / plain. GB/s count what must be moved: 4 bytes for each weight of each vector that is read or written.

With `--served` it times all that a server does for a gradient, by the number of workers, which push in turns: the
update, the gaps that it measures, and the answer, in microseconds, the mean of as many rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from operators.messages import Fragment
from operators.served import ServedState
from operators.update_rules import (
    AnyRule,
    Asgd,
    DanaDc,
    DanaZero,
    DcAsgd,
    Easgd,
    GapAware,
    Lwp,
    MultiAsgd,
    NagAsgd,
    Push,
    StalenessAware,
    YellowFin,
)
from operators.vector_state import VectorState

STREAMS: tuple[tuple[str, AnyRule, int], ...] = (
    ("asgd, dana-slim", Asgd(), 3),
    ("staleness-aware", StalenessAware(), 3),
    ("nag-asgd", NagAsgd(momentum=0.9), 5),
    ("multi-asgd", MultiAsgd(momentum=0.9), 5),
    ("lwp", Lwp(momentum=0.9), 5),
    ("dana-zero", DanaZero(momentum=0.9), 5),
    ("dana-zero with decay", DanaZero(momentum=0.9, weight_decay=1e-4), 7),
    ("easgd", Easgd(), 5),
    ("gap-aware", GapAware(), 6),
    ("dc-asgd", DcAsgd(momentum=0.9), 6),
    ("dana-dc", DanaDc(momentum=0.9), 9),
    ("yellowfin", YellowFin(), 11),
)
"""Name, rule, and vectors that an update must read or write."""

WORKERS = 4


def seconds(function: Callable[[], object]) -> float:
    """Processor time of a call."""
    began = time.process_time()
    function()
    return time.process_time() - began


def row(name: str, rule: AnyRule, streams: int, n_weights: int, rounds: int) -> str:
    """A row of the table."""
    rng = np.random.default_rng(0)
    weights, gradient = (rng.standard_normal(n_weights, np.float32) for _ in range(2))
    sent, copy, plain = weights.copy(), np.empty_like(weights), VectorState(weights.copy())
    memory = rule.init(weights, WORKERS)
    pushes = [Push(worker, gradient, 1e-6, WORKERS - 1, sent) for worker in range(WORKERS)]
    for push in pushes:
        rule.update(weights, memory, push)
    plain.descend(gradient, 1e-6, scale=False)
    copies, plains, rules = [], [], []
    for number in range(rounds):
        copies.append(seconds(lambda: np.copyto(copy, gradient)))
        plains.append(seconds(lambda: plain.descend(gradient, 1e-6, scale=False)))
        push = pushes[number % WORKERS]
        rules.append(seconds(lambda push=push: rule.update(weights, memory, push)))
    gigabytes = 4e-9 * n_weights
    ratio = median(own / least for own, least in zip(rules, plains, strict=True))
    return (
        f"| {name} | {streams} | {1e3 * min(rules):.2f} | {streams * gigabytes / min(rules):.1f} "
        f"| {3 * gigabytes / min(plains):.1f} | {2 * gigabytes / min(copies):.1f} | {ratio:.2f} |"
    )


def served(rule: AnyRule, workers: int, n_weights: int, rounds: int) -> float:
    """Microseconds of a gradient at a server with so many workers, each of which pushes so many."""
    rng = np.random.default_rng(0)
    weights, gradient = (rng.standard_normal(n_weights, np.float32) for _ in range(2))
    run = ServedState(rule).at((0, 1), weights, range(workers))
    for worker in range(workers):  # begins with velocities of its own
        run.answer(weights, worker)
    taken = []
    for number in range(1, rounds + 1):
        for worker in range(workers):
            push = Fragment(worker, 0, 1, number - 1, number, span=0, skips=False, values=gradient)
            taken.append(seconds(lambda push=push: run.take(weights, push, 1e-6)))
            taken[-1] += seconds(lambda worker=worker: run.answer(weights, worker))
    return 1e6 * sum(taken[workers:]) / len(taken[workers:])


def print_served(counts: list[int], n_weights: int, rounds: int) -> None:
    """The table of `served`."""
    print(f"| rule | {' | '.join(f'{count} workers, us' for count in counts)} |")
    print(f"| --- |{' --- |' * len(counts)}")
    for name, rule, _ in STREAMS:
        found = [f"{served(rule, count, n_weights, rounds):.1f}" for count in counts]
        print(f"| {name} | {' | '.join(found)} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=int, default=None, help="4,000,000; with --served 60,000")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--served", action="store_true", help="all that a server does for a gradient")
    parser.add_argument("--workers", nargs="*", type=int, default=[1, 8, 32, 64], help="with --served, how many push")
    asked = parser.parse_args()
    if asked.served:
        print_served(asked.workers, asked.weights or 60_000, asked.rounds)
        return
    print("| rule | vectors | update, ms | GB/s | plain, GB/s | copy, GB/s | rule / plain |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, rule, streams in STREAMS:
        print(row(name, rule, streams, asked.weights or 4_000_000, asked.rounds), flush=True)


if __name__ == "__main__":
    main()
