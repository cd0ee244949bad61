"""Whether p=auto finds a good number of partitions: time to a target, on the hosts of a lab, with each p and with auto.

    sudo python benchmarks/lab_partitions.py --data-dir DIR --json partitions.json --markdown partitions.md
    sudo python benchmarks/lab_partitions.py --data-dir DIR --rates 100mbit --models mlp --p auto 2 --seeds 0 --cpu 0

Topology `ako` without a codec on MNIST; how many gradients a round has (`every`) is its own choice in all runs. For
each rate of the links, and each network, the values of p take turns, one seed after another, each first once. What the
runs have in common is that of `lab_mnist.py`. The aim is a median with auto within 15% of the best with
a fixed p. Files are written after each run, so that what was measured is not lost when one breaks off.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from lab_mnist import Run, bench, lab_parser
from mnist_one_node import HOLD

AUTO = "auto"
CLOSE = 0.15

COMMON = {"codec": "none", "batch": "32", "schedule": "cosine", "epochs": "2", "tau": "96"}

MODELS = {
    "paper": ({"model": "paper", "lr": "0.08"}, 0.975),
    "mlp": ({"model": "mlp", "lr": "0.3"}, 0.95),
}
"""By network: settings of its own, and the accuracy to be held.

One has 59,590 weights, and gradients that take long, the other 79,510, and gradients that are soon done.
"""

HEAD = (
    "links",
    "network",
    "p",
    "reached",
    "seconds, median",
    "of each seed",
    "MB in all",
    "images/s",
    "of the best fixed",
)


@dataclass
class Case:
    """Runs at one rate with one network, by p."""

    rate: str
    model: str
    runs: dict[str, list[Run]] = field(default_factory=dict)

    def median_s(self, p: str) -> float | None:
        """The median of the times to the target; one that never got there is later than all."""
        times = sorted(found[0] if (found := run.reached) else float("inf") for run in self.runs[p])
        middle = median(times)
        return middle if middle < float("inf") else None

    @property
    def best_s(self) -> float | None:
        """The smallest median with a fixed p."""
        return min((found for p in self.runs if p != AUTO and (found := self.median_s(p))), default=None)

    def rows(self) -> Iterator[tuple[str, ...]]:
        """A row for each p."""
        for p, runs in self.runs.items():
            times = [found and found[0] for run in runs for found in [run.reached]]
            middle, best = self.median_s(p), self.best_s
            yield (
                self.rate,
                self.model,
                p,
                f"{sum(seconds is not None for seconds in times)} of {len(runs)}",
                f"{middle:.1f}" if middle else "",
                ", ".join("never" if seconds is None else f"{seconds:.1f}" for seconds in times),
                f"{median(run.sent_nbytes for run in runs) / 1e6:,.0f}",
                f"{median(run.images_per_s for run in runs):,.0f}",
                f"{middle / best:.2f}" if middle and best else "",
            )


def table(cases: list[Case]) -> str:
    """All rows in Markdown."""
    lines = ["| " + " | ".join(HEAD) + " |", "| --- | --- | ---: | --- | ---: | --- | ---: | ---: | ---: |"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for case in cases for row in case.rows())])


def verdicts(cases: list[Case]) -> Iterator[str]:
    """A line for each case: whether auto is as good as it is to be."""
    for case in cases:
        if AUTO not in case.runs or len(case.runs) == 1:
            continue
        auto, best = case.median_s(AUTO), case.best_s
        if auto and best:
            yield f"{case.model}, {case.rate}: {auto / best:.2f} of the best fixed p; {auto / best <= 1 + CLOSE}"
        else:
            yield f"{case.model}, {case.rate}: the target was not reached in most runs"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = lab_parser(__doc__)
    parser.add_argument("--rates", nargs="+", default=["100mbit", "20mbit"])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--p", nargs="+", default=[AUTO, "1", "2", "4", "8"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of a run")
    parser.add_argument("--validate-every", type=int, default=6_000, help="images between two validations")
    parser.add_argument("--markdown", type=Path, help="write the table there")
    return parser.parse_args()


def main() -> None:
    options = parse()
    options.first_validates = False
    cases: list[Case] = []
    for rate in options.rates:
        for model in options.models:
            cases.append(case := Case(rate, model, {p: [] for p in options.p}))
            settings, target = MODELS[model]
            options.rate, options.target = rate, target
            with bench(options) as where:
                for turn, seed in enumerate(options.seeds):
                    first = turn % len(options.p)
                    for p in options.p[first:] + options.p[:first]:
                        case.runs[p].append(where.run("ako", {**COMMON, **settings, "p": p}, seed))
                        write(options, cases)
    print("\n" + table(cases) + "\n\n" + "\n".join(verdicts(cases)))


def write(options: argparse.Namespace, cases: list[Case]) -> None:
    """Keep what has been measured."""
    full = [case for case in cases if all(case.runs.values())]
    if options.markdown:
        options.markdown.write_text(table(full) + "\n")
    if options.json:
        common = {"hosts": options.hosts, "cpu": options.cpu, "hold": HOLD}
        runs = [
            {"rate": case.rate, "model": case.model, "p": p} | run.to_json()
            for case in cases
            for p, each in case.runs.items()
            for run in each
        ]
        options.json.write_text(json.dumps(common | {"runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
